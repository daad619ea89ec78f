"""What surrounds a long computation: a progress bar, full float32, and a thread for each core."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch

Job = TypeVar("Job")
Result = TypeVar("Result")


class ForEach(Protocol):
    """What `map` is."""

    def __call__(self, function: Callable[[Job], Result], jobs: Iterable[Job], /) -> Iterable[Result]: ...


@contextmanager
def bar(name: str, show: bool) -> Iterator[Callable[[float], None]]:
    """A function that takes the share of the work just done and moves a bar on stderr, if wanted."""
    if not show:
        yield lambda share: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task(name, total=1.0)
        yield lambda share: progress.advance(task, share)


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Matrix products in float32 proper: no autocast, TensorFloat-32 or bfloat16, whatever is set."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def one_thread_per_job(device: torch.device) -> Iterator[ForEach]:
    """A `map` whose jobs run side by side on the CPU, one to a core, each with single-threaded operations.

    The other way round, one job at a time with every operation spread over all cores, the threads wait for
    each other after each operation; with anything else running on the machine that takes many times as long.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        yield map
        return
    torch.set_num_threads(1)  # here and in threads to come
    try:
        with ThreadPoolExecutor(threads) as pool:
            yield pool.map
    finally:
        torch.set_num_threads(threads)
