"""How long a piece of work takes on this machine."""

import time
from collections.abc import Callable

import torch


def seconds_of(act: Callable[[], object], *, times: int = 2, before: int = 1) -> float:
    """Return the mean seconds of some calls, after others that load and allocate.

    Args:
        before: calls that are not timed.

    >>> seconds_of(lambda: sum(range(1000))) > 0
    True
    """
    for _ in range(before):
        act()
    _wait()
    start = time.perf_counter()
    for _ in range(times):
        act()
    _wait()
    return (time.perf_counter() - start) / times


def _wait() -> None:
    """Wait for a GPU, which works on while Python goes on."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
