"""Progress bars on stderr, and the message when work is stopped."""

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from softwarp.files import printable


class Speed(ProgressColumn):
    """Images per second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f}/s" if task.speed else "")


def progress_bars() -> Progress:
    """Return bars that count images and show images per second and the time left, at the end that taken.

    In a narrow terminal the bar gets shorter, and the figures stay whole.
    """
    whole = Column(no_wrap=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(table_column=whole),
        Speed(table_column=whole),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True, table_column=whole),
        console=Console(stderr=True),
    )


@contextmanager
def bars_until_stopped(folder: Path) -> Iterator[Progress]:
    """Yield progress bars; Ctrl-C ends with a line on what is kept and how to resume, and exit code 130."""
    from softwarp.train import StoppedError

    with progress_bars() as progress:
        try:
            yield progress
        except KeyboardInterrupt as error:
            progress.stop()
            note(_how_to_resume(folder, isinstance(error, StoppedError)))
            raise typer.Exit(130) from None


def note(text: str) -> None:
    """Print a line to stderr, from the main process only."""
    if int(os.environ.get("RANK", "0")) == 0:
        typer.secho(printable(text), fg="yellow", err=True)


def _how_to_resume(folder: Path, saved: bool) -> str:
    if not saved and not any(folder.glob("**/recipe.yaml")):
        return "stopped before training began"
    start = "torchrun ... -m softwarp" if "WORLD_SIZE" in os.environ else "softwarp"
    again = shlex.join(word for word in sys.argv[1:] if word != "--fresh")
    checkpoint = any(folder.glob("**/checkpoint*.pt"))
    last = "the last checkpoint is kept" if checkpoint else "there is no checkpoint yet"
    return f"stopped; {'nothing is lost' if saved else last}. To resume: {start} {again}"


@contextmanager
def share_bar(name: str) -> Iterator[Callable[[float], None]]:
    """Yield a function that advances a bar by a share of the work; the bar shows only on a terminal."""
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as bars:
        task = bars.add_task(name, total=1.0)
        yield lambda share: bars.advance(task, share)
