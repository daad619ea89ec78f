"""Memory that tensors leave behind, kept for the next ones."""

import ctypes
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

# Of glibc's malloc.h: the parameters of mallopt.
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4

_lock = Lock()
_users = 0


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Let the process keep the memory that tensors on the CPU free; afterwards what is unused goes back.

    glibc returns every large block to the system at once, and the system hands the next one out page by page,
    filled with zeros, which can take longer than the work itself (results/benchmark_training.json).

    The setting is the whole process's: it is for commands and scripts, never for library calls, and for long
    work in the main thread: the end goes through all of the process's memory. It may be nested. Without glibc
    nothing is done.
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


def give_back_memory() -> None:
    """Return unused memory to the system, and do so from now on, where it is kept.

    A process forked meanwhile should call it, too; elsewhere it does nothing.
    """
    if _users and _is_glibc():
        glibc = ctypes.CDLL(None)
        glibc.mallopt(MMAP_MAX, 65536)
        glibc.mallopt(MMAP_THRESHOLD, 32 << 20)  # what glibc itself comes to after it has freed such a block
        glibc.mallopt(TRIM_THRESHOLD, 64 << 20)
        glibc.malloc_trim(0)


def _is_glibc() -> bool:
    return sys.platform == "linux" and platform.libc_ver()[0] == "glibc"
