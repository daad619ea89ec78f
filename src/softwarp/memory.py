"""Memory that tensors leave behind, kept for the next ones."""

import ctypes
import platform
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
    filled with zeros, which can take longer than the work itself (results/benchmark_training.json). Elsewhere
    than in glibc nothing is done. It may be nested, and decorates functions too.
    """
    global _users
    glibc = ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None
    with _lock:
        _users += 1
        if glibc and _users == 1:
            glibc.mallopt(MMAP_MAX, 0)
            glibc.mallopt(TRIM_THRESHOLD, -1)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if glibc and _users == 0:  # what glibc itself comes to after it has freed a block of 32 MB
                glibc.mallopt(MMAP_MAX, 65536)
                glibc.mallopt(MMAP_THRESHOLD, 32 << 20)
                glibc.mallopt(TRIM_THRESHOLD, 64 << 20)
                glibc.malloc_trim(0)
