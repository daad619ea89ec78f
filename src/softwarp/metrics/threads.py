"""Work side by side on the cores, with nothing of the process changed."""

import ctypes
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Protocol, TypeVar

import torch

AHEAD = 2  # batches that are read while one is worked on

Given = TypeVar("Given")
Made = TypeVar("Made")


class Map(Protocol):
    """The type of the built-in `map`."""

    def __call__(self, function: Callable[[Given], Made], items: Iterable[Given], /) -> Iterable[Made]: ...


@contextmanager
def side_by_side(device: torch.device) -> Iterator[Map]:
    """A `map` whose calls run side by side on the CPU, one to a core, each with single-threaded operations.

    The other way round, one call at a time with every operation spread over all cores, the threads wait for
    each other after each operation; with anything else running on the machine that takes many times as long.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        yield map
        return
    with ThreadPoolExecutor(threads, initializer=use_one_core) as pool:
        yield pool.map


def read_ahead(
    given: Iterable[Given], read: Callable[[Given], Made], batch_size: int, threads: int | None
) -> Iterator[list[Made]]:
    """Yield what `read` returns in batches, in order; threads are two batches ahead."""
    todo = iter(given)
    with ThreadPoolExecutor(threads, initializer=use_one_core) as pool:
        waiting: deque[list[Future[Made]]] = deque()
        try:
            while True:
                while len(waiting) <= AHEAD and (batch := list(islice(todo, batch_size))):
                    waiting.append([pool.submit(read, each) for each in batch])
                if not waiting:
                    return
                yield [future.result() for future in waiting.popleft()]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def use_one_core() -> None:
    """Let torch's operations in this thread, and in no other, run on one core.

    `torch.set_num_threads` would do so for every thread that is yet to come, too, and those keep it. Where
    torch's libraries have no such function, operations take more cores than they should, and no harm is done.
    """
    torch.get_num_threads()  # else the first operation would look at the process's setting and undo this
    library = ctypes.CDLL(torch._C.__file__)
    for name in ("omp_set_num_threads", "MKL_Set_Num_Threads_Local"):
        with suppress(AttributeError):
            library[name](1)
