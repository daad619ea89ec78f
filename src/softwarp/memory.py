"""Keeps memory that tensors free for the next ones."""

import ctypes
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

# The parameters of mallopt, from glibc's malloc.h.
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4

_lock = Lock()
_users = 0


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Let the process keep the memory that CPU tensors free; return what is unused to the system at the end.

    glibc returns every large block to the system at once, and the system hands out the next one page by page,
    filled with zeros, which can take longer than the work itself (results/benchmark_training.json).

    The setting affects the whole process, so it is for commands and scripts, never for library calls. Use it
    for long work in the main thread: leaving the block walks all of the process's memory. It may be nested.
    Without glibc it does nothing.
    """
    global _users
    with _lock:
        _users += 1
        if _users == 1 and _is_glibc():
            glibc = ctypes.CDLL(None)
            glibc.mallopt(MMAP_MAX, 0)
            glibc.mallopt(TRIM_THRESHOLD, -1)
    try:
        yield
    finally:
        with _lock:
            if _users == 1:
                give_back_memory()
            _users -= 1


def trim_memory() -> None:
    """Return the memory that is unused now to the system, whether or not freed memory is kept."""
    if _is_glibc():
        ctypes.CDLL(None).malloc_trim(0)


def give_back_memory() -> None:
    """Return unused memory to the system, and keep doing so, if `freed_memory_kept` is active.

    A process forked in the meantime should call it too; otherwise it does nothing.
    """
    if _users and _is_glibc():
        glibc = ctypes.CDLL(None)
        glibc.mallopt(MMAP_MAX, 65536)
        glibc.mallopt(MMAP_THRESHOLD, 32 << 20)  # what glibc itself comes to after it has freed such a block
        glibc.mallopt(TRIM_THRESHOLD, 64 << 20)
        glibc.malloc_trim(0)


def _is_glibc() -> bool:
    return sys.platform == "linux" and platform.libc_ver()[0] == "glibc"
