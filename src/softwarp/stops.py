"""Signals that ask training to stop: heard between two steps, by all processes of a run alike."""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import torch

from softwarp import processes

# Not every system has SIGHUP.
STOPS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextmanager
def asked_to_stop(device: torch.device) -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether Ctrl-C or a termination signal has arrived.

    Training stops between steps. A second signal stops at once, even while this process waits for another
    that does not answer. All processes of a run get the same answer.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # signals can only be caught there
        yield asked.is_set
        return

    def note(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    # nohup has SIGHUP ignored, and it stays so
    heard = [number for number in STOPS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in heard}
    try:
        with _answered_at_once():
            yield lambda: processes.anywhere(asked.is_set(), device)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _answered_at_once() -> Iterator[None]:
    """Let a thread acknowledge the first signal and, of several processes, end this one at the second.

    Python's own handlers are not called while torch computes a batch, or waits for other processes.
    """
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)

    def watch() -> None:
        signals = 0
        while data := ours.recv(16):
            before, signals = signals, signals + sum(number in STOPS for number in data)  # not of workers
            if not before and signals and processes.is_main():
                _say("stopping after this batch or evaluation; Ctrl-C again stops at once")
            if signals > 1 and processes.count() > 1:
                _say("stopped at once; the last checkpoint is kept")
                os._exit(130)

    earlier = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(earlier)
        theirs.shutdown(socket.SHUT_WR)  # workers may hold a copy, and closing this one would not do
        watching.join()  # so that its line comes before what follows
        for end in (ours, theirs):
            end.close()


def _say(text: str) -> None:
    """Write a line to stderr past all buffers, below a progress bar if there is one."""
    with suppress(OSError):  # the terminal may be gone
        os.write(2, b"\n" * os.isatty(2) + text.encode() + b"\n")
