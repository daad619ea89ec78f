"""What training shows while it runs."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING

from softwarp import processes
from softwarp.job import Job
from softwarp.models.backbones import BACKBONES
from softwarp.models.hub import address_to_fetch
from softwarp.recipe import Recipe
from softwarp.schedule import stretches

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def show_download(recipe: Recipe, progress: "Progress | None") -> None:
    """Print where weights are fetched from, if they are."""
    name = recipe.model.backbone
    if progress is None or not processes.is_main():
        return
    if recipe.model.pretrained is True and name not in BACKBONES and (address := address_to_fetch(name)):
        progress.console.print(f"fetching the weights of {name} from {address}", soft_wrap=True)


def show_note(text: str, progress: "Progress | None") -> None:
    """Print a note for the user above the bars; without bars, issue a warning."""
    if progress is None:
        warnings.warn(text, stacklevel=2)
    elif processes.is_main():
        progress.console.print(text, style="yellow", soft_wrap=True, markup=False, highlight=False)


@contextmanager
def decoding_bar(progress: "Progress | None") -> Iterator[Callable[[], None] | None]:
    """Yield a function to call after each image decoded into the cache, or None if nothing is shown."""
    if progress is None:
        yield None
        return
    task = progress.add_task("decoding images into the cache", total=None)
    yield lambda: progress.advance(task)
    progress.remove_task(task)


def show_bars(job: Job, progress: "Progress | None") -> Callable[[], None]:
    """Return a function to call after each step; bars count images.

    Steps with a frozen backbone are several times faster, and the time left is estimated from the speed so
    far: a run that has both kinds gets one bar per stretch.
    """
    if progress is None or not processes.is_main():
        return lambda: None
    state, size, steps = job.state, job.batch_size, len(job.batches)
    mixed = len({phase.freeze_backbone for phase in job.recipe.phases}) > 1
    bars = []  # the last step plus one, the bar, what it is of
    for frozen, same in groupby(stretches(job.recipe.phases, steps), lambda each: each[1].freeze_backbone):
        stretch = list(same)
        first, last = stretch[0][2], stretch[-1][3]
        kind = ("head: " if frozen else "all: ") if mixed else ""
        begins = first <= state.step < last
        task = progress.add_task(
            kind + job.recipe.loss.name,
            start=begins,
            visible=begins,
            total=(last - first) * size,
            completed=max(0, state.step - first) * size,
        )
        bars.append((last, task, kind))
    if state.step:
        epoch, step = divmod(state.step, steps)
        progress.console.print(f"resuming after {epoch} epochs and {step} batches")

    def present() -> "tuple[TaskID, str]":
        return next((task, kind) for last, task, kind in bars if state.step <= last)

    def advance() -> None:
        task, _ = present()
        progress.start_task(task)
        progress.update(task, visible=True)
        progress.advance(task, size)

    def tell(text: str) -> None:
        task, kind = present()
        progress.update(task, description=kind + text)
        if not progress.console.is_terminal:
            progress.console.print(text)

    job.tell = tell
    return advance
