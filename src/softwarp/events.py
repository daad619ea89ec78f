"""What long work tells while it runs: notes and progress, handed to a function that shows or logs them.

The library prints nothing by itself. Functions that take long have `on_event`, a function that is called with
each event, perhaps from another thread. Commands and notebooks draw bars with `shown`; a service logs.
"""

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID


@dataclass(frozen=True)
class Note:
    """A sentence for the user."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Progress:
    """How far a piece of work has got.

    Args:
        work: its name, the same in all its events.
        total: how much there is to do; None if nobody knows.
        text: what it says of itself now, such as the loss of the last epoch.
        ended: whether no more events of it follow.
    """

    work: str
    done: float
    total: float | None
    text: str = ""
    ended: bool = False

    def __str__(self) -> str:
        count = f"{self.done:,.0f}" + (f" of {self.total:,.0f}" if self.total is not None else "")
        return f"{self.text or self.work}: {count}"


@dataclass(frozen=True)
class Stopping:
    """Ctrl-C or a termination signal has arrived: training stops after this batch, at the second at once."""

    signals: int

    def __str__(self) -> str:
        if self.signals > 1:
            return "stopped at once; the last checkpoint is kept"
        return "stopping after this batch or evaluation; Ctrl-C again stops at once"


Event = Note | Progress | Stopping
OnEvent = Callable[[Event], None]


def tell(on_event: OnEvent | None, text: str) -> None:
    """Hand on a note; without a listener it is a warning."""
    if on_event is None:
        warnings.warn(text, stacklevel=2)
    else:
        on_event(Note(text))


class Work:
    """A piece of work that tells how far it has got.

    >>> work = Work(print, "packing", total=2)
    packing: 0 of 2
    >>> work.advance()
    packing: 1 of 2
    """

    def __init__(
        self, on_event: OnEvent | None, name: str, *, total: float | None = None, done: float = 0
    ) -> None:
        self.on_event, self.name, self.total, self.done, self.text = on_event, name, total, done, ""
        self._send()

    def advance(self, amount: float = 1) -> None:
        """Tell that so much more is done."""
        self.reach(self.done + amount)

    def reach(self, done: float) -> None:
        """Tell that so much is done in all."""
        self.done = done
        self._send()

    def say(self, text: str) -> None:
        """Tell what the work is at."""
        self.text = text
        self._send()

    def end(self) -> None:
        """Tell that no more follows."""
        self._send(ended=True)

    def _send(self, *, ended: bool = False) -> None:
        if self.on_event is not None:
            self.on_event(Progress(self.name, self.done, self.total, self.text, ended))


@contextmanager
def part_of(on_event: OnEvent | None) -> Iterator[OnEvent | None]:
    """Yield what a part of larger work tells its events to; all that it began ends with it."""
    if on_event is None:
        yield None
        return
    begun: dict[str, Progress] = {}

    def tell_on(event: Event) -> None:
        if isinstance(event, Progress):
            begun[event.work] = event
        on_event(event)

    try:
        yield tell_on
    finally:
        for last in begun.values():
            if not last.ended:
                on_event(Progress(last.work, last.done, last.total, last.text, ended=True))


@contextmanager
def shown(on_event: OnEvent | None = None) -> Iterator[OnEvent]:
    """Yield a listener: the one given, else bars on a terminal or in a notebook, else Python's logging."""
    if on_event is not None:
        yield on_event
    elif sys.stderr.isatty() or "ipykernel" in sys.modules:
        with bars() as drawn:
            yield Drawn(drawn)
    else:
        yield _log


def _log(event: Event) -> None:
    if not isinstance(event, Progress) or (event.text and not event.ended):
        logging.getLogger("softwarp").info("%s", event)


class Drawn:
    """A listener that draws events as rich's bars; a piece of work that ends takes its bar away."""

    def __init__(self, bars: "Bars") -> None:
        self.bars = bars
        self._tasks: dict[str, TaskID] = {}
        self._said: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        if not isinstance(event, Progress):
            self.bars.console.print(str(event), style="yellow", soft_wrap=True, markup=False, highlight=False)
        elif event.ended:
            self._said.pop(event.work, None)
            if event.work in self._tasks:
                self.bars.remove_task(self._tasks.pop(event.work))
        else:
            self._draw(event)

    def _draw(self, event: Progress) -> None:
        if event.work not in self._tasks:
            # A resumed work begins where it stopped, so that its speed is that of this process.
            self._tasks[event.work] = self.bars.add_task(
                event.work, total=event.total, completed=int(event.done)
            )
        self.bars.update(
            self._tasks[event.work],
            completed=event.done,
            total=event.total,
            description=event.text or event.work,
        )
        if event.text != self._said.get(event.work, "") and not self.bars.console.is_terminal:
            self.bars.console.print(event.text, markup=False, highlight=False)
        self._said[event.work] = event.text


def bars() -> "Bars":
    """Return bars on stderr that count images and show images per second and the time left.

    In a narrow terminal the bar gets shorter, and the figures stay whole; a finished one shows the time.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bars
    from rich.table import Column
    from rich.text import Text

    class Speed(ProgressColumn):
        """Images per second."""

        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:,.0f}/s" if task.speed else "")

    whole = Column(no_wrap=True)
    return Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(table_column=whole),
        Speed(table_column=whole),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True, table_column=whole),
        console=Console(stderr=True),
    )
