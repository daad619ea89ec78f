"""Fine-tuning on the halves of the training classes, for as long as it pays.

Both halves train to the next look; then it is decided whether they go on. What was decided is written down.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from softwarp import processes
from softwarp.data.readers import ImageTable
from softwarp.events import Event, OnEvent, Progress, part_of
from softwarp.recipe.schema import Recipe, StartPart
from softwarp.runs.choice import Choice
from softwarp.runs.run import Run
from softwarp.training.budget import Plan, Workload
from softwarp.training.choice import mean_of, read_looks
from softwarp.training.ladder import Ladder, Seen
from softwarp.training.train import training

PATIENCE = 2  # looks without a new best value after which the halves stop
HOUR = 3600.0  # seconds, the budget that is spoken of where a shorter one ended too early
MOST_LOOKS = 256  # so that a recipe has a number of epochs

Histories = list[list[dict[str, Any]]]


@dataclass(frozen=True)
class Tuning:
    """What the halves train by.

    Args:
        halves: recipes of the runs that choose.
        start: how their heads were calibrated; None if they begin at principal directions.
        start_value: MAP@R that the halves say of what they begin with.
        every: epochs between two looks.
        exactly: epochs that were asked for; 0 for as long as it pays.
        budget: seconds for all of it, final models included.
    """

    halves: Sequence[Recipe]
    start: StartPart | None
    start_value: float
    every: int
    exactly: int
    budget: float
    plan: Plan
    work: Workload


def tune_halves(
    tuning: Tuning,
    ladder: Ladder,
    folder: Path,
    *,
    table: ImageTable,
    on_event: OnEvent | None,
) -> tuple[Seen, float]:
    """Return what the halves said at their looks, and the seconds that both took."""
    file = folder / "ladder.json"
    ladder.begin_tuning(tuning.halves[0])
    ladder.granted = max(ladder.granted, tuning.every)
    ladder.save(file)
    epochs = 0
    while epochs < ladder.granted:
        epochs += tuning.every
        for number, half in enumerate(tuning.halves):
            train_to(half, folder / f"fold-{number}", epochs, table=table, on_event=on_event)
        if epochs == ladder.granted and not ladder.stopped:
            seen, spent = _looks(tuning, folder, epochs)
            ladder.stopped = why_stop(tuning, seen, epochs, ladder.seconds, spent)
            ladder.granted += 0 if ladder.stopped else tuning.every
            ladder.save(file)
    seen, spent = _looks(tuning, folder, epochs)
    return seen, sum(spent)


def _looks(tuning: Tuning, folder: Path, epochs: int) -> tuple[Seen, list[float]]:
    return processes.from_main(lambda: looks_of(tuning, folder, epochs))  # the main process writes them


def train_to(
    recipe: Recipe,
    folder: Path,
    epochs: int,
    *,
    table: ImageTable,
    on_event: OnEvent | None,
) -> None:
    """Train a half up to the end of this epoch, if it is not there yet; after its last one it is finished."""
    if processes.from_main(lambda: bool(_rows(folder, epochs))):
        return
    with part_of(on_event) as listener:
        rows = training(recipe, folder, resume=True, table=table, on_event=_endless(listener))
        with closing(rows):
            for row in rows:
                if epochs <= row["epoch"] < recipe.phases[0].epochs:
                    break


def _endless(on_event: OnEvent | None) -> OnEvent | None:
    """Nobody knows how long the halves will train, so bars have no end."""
    if on_event is None:
        return None

    def tell_on(event: Event) -> None:
        on_event(replace(event, total=None) if isinstance(event, Progress) else event)

    return tell_on


def _rows(folder: Path, epochs: int) -> list[dict[str, Any]]:
    """The rows of a half up to this epoch; none if it has not got there."""
    rows = [row for row in Run(folder).history() if row.get("epoch", math.inf) <= epochs]
    return rows if rows and rows[-1]["epoch"] == epochs else []


def looks_of(tuning: Tuning, folder: Path, epochs: int) -> tuple[Seen, list[float]]:
    """Return what the halves said up to this epoch, and the seconds that each look took, both together."""
    histories = [_rows(folder / f"fold-{number}", epochs) for number in range(len(tuning.halves))]
    seen = (
        read_looks(histories, start=tuning.start),
        read_looks(histories, "held_out_images", start=tuning.start),
    )
    ends = range(tuning.every, epochs + 1, tuning.every)
    totals = [0.0, *(sum(rows[end - 1]["seconds"] for rows in histories) for end in ends)]
    return seen, [after - before for before, after in pairwise(totals)]


def curve(seen: Seen) -> Iterator[float]:
    """Yield the best MAP@R of each look, over all shares of the way."""
    deciding = seen[1] or seen[0]
    for epochs in dict.fromkeys(way.epochs for way in deciding):
        yield max(mean_of(each) for way, each in deciding.items() if way.epochs == epochs)


def why_stop(tuning: Tuning, seen: Seen, epochs: int, before: float, spent: Sequence[float]) -> str:
    """Return why the halves stop at this look; empty if they go on.

    Args:
        before: seconds that all other rungs took.
        spent: seconds of each look so far.
    """
    most = tuning.exactly or MOST_LOOKS * tuning.every
    if epochs + tuning.every > most:
        return "asked" if tuning.exactly else "most"
    if tuning.exactly:
        return ""
    values = [tuning.start_value, *curve(seen)]
    if len(values) - 1 - values.index(max(values)) >= PATIENCE:
        return "flat"
    return "" if before + sum(spent) + seconds_to_come(tuning, epochs, spent) <= tuning.budget else "time"


def seconds_to_come(tuning: Tuning, epochs: int, spent: Sequence[float]) -> float:
    """Return how long one more look and the final models take, at the pace of the last look.

    So a plan that was timed on a busy machine is corrected, whether it is slower or faster than thought.
    """
    work, pace = tuning.work, tuning.plan.pace
    slower = spent[-1] / (len(tuning.halves) * work.fold(pace, tuning.every, tuning.every))
    return spent[-1] + slower * work.final(pace, epochs + tuning.every)


def outlook(choice: Choice, final: float) -> str:
    """Return in words what an hour in all would probably bring; empty if the curve does not say.

    Each further look is taken to bring half of what the one before brought.

    Args:
        final: seconds that the final models take.
    """
    curve, took = list(choice.curve().values()), {each.name: each.seconds for each in choice.rungs}
    tuned = took.pop("fine-tuned", 0.0) + final
    more = math.floor((HOUR - sum(took.values())) * len(curve) / tuned) - len(curve) if tuned else 0
    if len(curve) < 2 or more < 1 or curve[-1] <= curve[-2]:
        return ""
    gain = 100 * (curve[-1] - curve[-2])
    return (
        f"the last look brought {gain:+.1f} MAP@R, so an hour in all would bring about "
        f"{gain * (1 - 0.5**more):+.1f} more (a guess: each look half of the one before)"
    )
