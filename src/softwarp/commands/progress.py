"""The bars of long work, on the error stream."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text


class Speed(ProgressColumn):
    """Images a second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f}/s" if task.speed else "")


def progress_bars() -> Progress:
    """Return bars that count images and say how many a second, how long it took and will take."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Speed(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


@contextmanager
def share_bar(name: str) -> Iterator[Callable[[float], None]]:
    """Yield what moves a bar by the share of the work just done; there is none but on a terminal."""
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as bars:
        task = bars.add_task(name, total=1.0)
        yield lambda share: bars.advance(task, share)
