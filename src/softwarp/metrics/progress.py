"""What surrounds a long computation: a progress bar, and matrix products in full float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


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
