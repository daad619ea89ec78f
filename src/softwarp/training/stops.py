"""Signals that ask training to stop: heard between two steps, by all processes of a run alike."""

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import torch

from softwarp import processes

# Not every system has SIGHUP.
STOPS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextmanager
def asked_to_stop(
    device: torch.device, heard: Callable[[int], None] = lambda signals: None
) -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether Ctrl-C or a termination signal has arrived.

    Training stops between steps, at the second signal at once. All processes of a run get the same answer.

    Args:
        heard: called with the number of signals so far as they arrive, in another thread, even while this one
            computes a batch or waits for another process that does not answer.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # signals can only be caught there
        yield asked.is_set
        return

    def note(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    # Under nohup SIGHUP is ignored, and it stays ignored.
    caught = [number for number in STOPS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in caught}
    try:
        with _answered_at_once(heard):
            yield lambda: processes.anywhere(asked.is_set(), device)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _answered_at_once(heard: Callable[[int], None]) -> Iterator[None]:
    """Let a thread answer signals: Python's own handlers are not called while torch computes or waits."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)

    def watch() -> None:
        signals = 0
        while data := ours.recv(16):
            for number in data:
                if number in STOPS:  # other signals, such as those of workers, do not count
                    signals += 1
                    heard(signals)

    earlier = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(earlier)
        theirs.shutdown(socket.SHUT_WR)  # closing is not enough, because workers may hold a copy
        watching.join()  # what it still has to say comes before what follows
        for end in (ours, theirs):
            end.close()
