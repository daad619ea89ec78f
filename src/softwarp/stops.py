"""Signals that ask training to stop: heard between two steps, by all processes of a run alike."""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
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
        with _leave_at_second_signal() if processes.count() > 1 else nullcontext():
            yield lambda: processes.anywhere(asked.is_set(), device)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _leave_at_second_signal() -> Iterator[None]:
    """Let a thread end the process at a second signal.

    Python's own handlers are not called while the process waits for others inside torch.
    """
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)

    def watch() -> None:
        signals = 0
        while data := ours.recv(16):
            signals += sum(number in STOPS for number in data)  # torch counts its workers by a signal, too
            if signals > 1:
                os.write(2, b"stopped at once; the last checkpoint is kept\n")
                os._exit(130)

    before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        theirs.close()
