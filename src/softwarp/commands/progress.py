"""What commands print: bars and notes on stderr, lines on stdout, and how to resume what was stopped."""

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from softwarp.events import Drawn, Event, Note, OnEvent, Progress, Stopping, bars
from softwarp.files import printable

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


@contextmanager
def listening(stopped: Callable[[KeyboardInterrupt], str]) -> "Iterator[OnEvent]":
    """Yield a function that draws events as bars; Ctrl-C ends with the line given and exit code 130."""
    with bars() as drawn:
        draw = Drawn(drawn)

        def show(event: Event) -> None:
            if not isinstance(event, Stopping):
                if isinstance(event, Note):
                    event = Note(printable(event.text))
                if int(os.environ.get("RANK", "0")) == 0 or isinstance(event, Progress):
                    draw(event)
                return
            if event.signals == 1 and int(os.environ.get("RANK", "0")) == 0:
                _write_at_once(str(event))
            if event.signals > 1 and int(os.environ.get("WORLD_SIZE", "1")) > 1:  # another may never answer
                _write_at_once(str(event))
                os._exit(130)

        try:
            yield show
        except KeyboardInterrupt as error:
            drawn.stop()
            note(stopped(error))
            raise typer.Exit(130) from None


def bars_until_stopped(folder: Path) -> "AbstractContextManager[OnEvent]":
    """Return `listening` with a line on what is kept of the trainings in a folder, and how to resume."""
    from softwarp.training.train import StoppedError

    return listening(lambda error: _how_to_resume(folder, isinstance(error, StoppedError)))


def _write_at_once(text: str) -> None:
    """Write a line to stderr past all buffers, below a bar if there is one."""
    with suppress(OSError):  # the terminal may be gone
        os.write(2, b"\n" * os.isatty(2) + text.encode() + b"\n")


def note(text: str) -> None:
    """Print a line to stderr, from the main process only."""
    if int(os.environ.get("RANK", "0")) == 0:
        typer.secho(printable(text), fg="yellow", err=True)


def say(text: str) -> None:
    """Print text to stdout."""
    typer.echo(printable(text))


def this_command() -> str:
    """Return the command line as it was given."""
    return shlex.join(["softwarp", *sys.argv[1:]])


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
    from rich.console import Console
    from rich.progress import Progress as Bars

    with Bars(console=Console(stderr=True), disable=not sys.stderr.isatty()) as drawn:
        task = drawn.add_task(name, total=1.0)
        yield lambda share: drawn.advance(task, share)
