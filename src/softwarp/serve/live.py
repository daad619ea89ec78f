"""The index as it is on disk now, and long work that runs beside the requests."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from softwarp.events import Event, OnEvent, Progress
from softwarp.index.index import Index


class LiveIndex:
    """An index that is opened again when another process has changed it."""

    def __init__(self, index: Index) -> None:
        self._index, self._lock = index, threading.Lock()

    def now(self) -> Index:
        """Return the index with everything that is confirmed by now."""
        with self._lock:
            if self._index.store.changed():
                with suppress(OSError, ValueError):  # damaged, or no longer there: what is open still answers
                    self._index = self._index.reopen()
            return self._index


class BackgroundWork:
    """Long work in a thread of its own, with its progress, and its result or why there is none."""

    def __init__(self, work: Callable[[OnEvent], Any]) -> None:
        self.result: Any = None
        self.error: str | None = None
        self.progress = Progress("starting", 0, 0)
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def working(self) -> bool:
        return self._thread.is_alive()

    def wait(self) -> None:
        """Return when the work is done."""
        self._thread.join()

    def status(self) -> dict[str, Any]:
        """Return what to say about the work: its state, what is being done, how much of how much."""
        now = self.progress
        state = "working" if self.working else "failed" if self.error is not None else "ready"
        return {
            "state": state,
            "what": self.error or now.work,
            "done": int(now.done),
            "total": int(now.total or 0),
        }

    def _run(self) -> None:
        try:
            self.result = self._work(self._show)
        except Exception as error:
            self.error = str(error) or type(error).__name__

    def _show(self, event: Event) -> None:
        if isinstance(event, Progress):
            self.progress = event
