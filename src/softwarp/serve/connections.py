"""Connections that are closed when a request does not arrive, or when the server stops.

uvicorn's own limits do not do that: `timeout_keep_alive` counts only after an answer, so the rest of half a
head is waited for without end, and each such connection counts towards `limit_concurrency`: a few of them
shut everybody else out. A test in tests/serve/test_server.py fails once uvicorn closes them itself.
"""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 20.0  # how long the head of a request may take; uvicorn itself waits for ever


class Connection(H11Protocol):
    """uvicorn's connection with a deadline for the head of each request; the guard has one for bodies."""

    seconds = SECONDS
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def shutdown(self) -> None:
        super().shutdown()
        if self.conn.their_state is h11.SEND_BODY:  # an answer is worth waiting for, half a request is not
            self.transport.close()

    def _watch(self) -> None:
        """Start the clock when a request begins, stop it when its head is there."""
        if self.conn.their_state is not h11.IDLE:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.seconds, self._close)

    def _close(self) -> None:
        self._deadline = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()
