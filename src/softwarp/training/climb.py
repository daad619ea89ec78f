"""Climbs the ladder, rung by rung, within the time."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import torch

from softwarp import processes
from softwarp.data.readers import ImageTable
from softwarp.data.sources import Source
from softwarp.events import OnEvent, tell
from softwarp.recipe.schema import Recipe
from softwarp.runs.choice import Candidate, Choice
from softwarp.runs.networks import TriedNetwork
from softwarp.training.budget import FOLDS, Pace, Plan, Workload, measure_pace, whole_looks
from softwarp.training.choice import Way, fold_recipes, made_as
from softwarp.training.earlier import replace_other
from softwarp.training.frozen_halves import FrozenHalves
from softwarp.training.ladder import Ladder, Seen
from softwarp.training.own_plan import minutes
from softwarp.training.rungs import RATES, Half, calibrated, frozen, head_alone
from softwarp.training.step_batches import in_words
from softwarp.training.tuned import MOST_LOOKS, Tuning, tune_halves

ENOUGH = 0.5  # share of the budget after which no further loss is tried on the head alone
HOPE = 8.0  # a machine is hardly ever so much faster than when it was timed


@dataclass(frozen=True)
class Climb:
    """What all rungs need.

    Args:
        recipe: as it was planned.
        size: of the embedding of calibrated features; None for as many as there are features.
        budget: seconds for all of it, or a target if none was given.
        asked: epochs of the recipe.
        exactly: whether the halves train so many; otherwise for as long as it pays.
        calibrates: whether calibrated features are candidates.
        networks: those that were compared.
    """

    recipe: Recipe
    source: Source
    table: ImageTable
    folder: Path  # of what is chosen by
    plan: Plan
    work: Workload
    size: int | None
    budget: float
    asked: int
    exactly: bool
    calibrates: bool
    device: torch.device
    networks: tuple[TriedNetwork, ...]
    on_event: OnEvent | None

    @property
    def file(self) -> Path:
        """Where the ladder is written down."""
        return self.folder / "ladder.json"

    @property
    def every(self) -> int:
        """Epochs between two looks."""
        return whole_looks(self.asked)[0]

    def time(self) -> str:
        """Return in words how long it will take."""
        if self.exactly or not self.plan.epochs:
            return minutes(self.plan.seconds)
        return f"up to {minutes(max(self.budget, self.plan.seconds))}"

    @cached_property
    def frozen(self) -> FrozenHalves:
        """The halves before anything is trained."""
        return FrozenHalves(self.recipe, self.source, self.table, self.device, self.on_event)

    @property
    def embedding_size(self) -> int:
        """Of calibrated features."""
        return self.size or self.frozen.dimensions


def planned_again(climb: Climb, ladder: Ladder) -> Climb:
    """Time the network again if that may leave room to fine-tune: the machine may have been busy before."""
    left = climb.budget - ladder.seconds
    work = replace(climb.work, shipped=0)  # so that a model that is shipped later is made in the same way

    def needed(pace: Pace) -> float:
        return FOLDS * work.fold(pace, climb.every, climb.every) + work.final(pace, climb.every)

    if climb.plan.epochs or not climb.asked or needed(climb.plan.pace) > HOPE * left:
        return climb
    if ladder.pace is None:
        recipe, crop, folder = climb.recipe, climb.plan.crop, climb.folder
        pace = processes.from_main(
            lambda: measure_pace(recipe.model, climb.source, crop, climb.device, folder)
        )
        ladder.pace = asdict(pace)
        ladder.save(climb.file)
    pace = Pace(**ladder.pace)
    if needed(pace) > left:
        return climb
    tell(climb.on_event, "faster than planned: there is time to fine-tune after all")
    return replace(climb, plan=replace(climb.plan, epochs=climb.every, pace=pace))


def climb_on_features(climb: Climb, ladder: Ladder) -> None:
    """Climb as far as the features of the frozen network carry: frozen, calibrated, head alone."""

    def on_halves(judge: Callable[[Sequence[Half]], Seen]) -> Callable[[], Seen]:
        def look() -> Seen:
            halves = climb.frozen.halves  # all processes share the work on the features
            return processes.from_main(lambda: judge(halves))

        return look

    def whitened(halves: Sequence[Half]) -> Seen:
        return calibrated(halves, climb.frozen.scatters, climb.embedding_size)

    tell(climb.on_event, "judging the features of the frozen network by halves of the training classes")
    ladder.climb(climb.file, "frozen", "frozen", on_halves(frozen))
    if not climb.calibrates:
        return
    ladder.climb(climb.file, "calibrated", "calibrated", on_halves(whitened))
    start = max(
        (each for each in ladder.choice().candidates if each.rung == "calibrated"),
        key=lambda each: each.deciding.map_at_r,
    )
    for loss in RATES:
        if ladder.seconds < ENOUGH * climb.budget:
            ladder.climb(climb.file, "head", loss, on_halves(partial(_try, climb, start, loss)))


def _try(climb: Climb, calibrated: Candidate, loss: str, halves: Sequence[Half]) -> Seen:
    """Train the head alone from the best calibration."""
    assert calibrated.start is not None
    return head_alone(
        halves,
        climb.frozen.scatters,
        climb.embedding_size,
        loss=loss,
        shrinkage=calibrated.start.shrinkage,
        start_value=calibrated.deciding.map_at_r,
        seed=climb.recipe.seed,
    )


def fine_tune(climb: Climb, ladder: Ladder) -> Choice:
    """Fine-tune the halves from the best rung so far, for as long as it pays; choose among all rungs."""
    best = ladder.choice().chosen
    begun = climb.recipe
    if best.start is not None:
        begun = made_as(climb.recipe, Way(1, 1.0, best.start), size=climb.size)
    halves = fold_recipes(
        begun,
        len(climb.source.names),
        every=climb.every,
        epochs=climb.asked if climb.exactly else MOST_LOOKS * climb.every,
    )
    tell(
        climb.on_event,
        f"batches: {in_words(begun.batches)}, {in_words(halves[0].batches)} on the halves",
    )
    tell(
        climb.on_event,
        f"fine-tuning from the {best.rung} features: each half of the training classes trains and the other "
        f"judges{', but for held-out images' * climb.work.closed}",
    )
    for number, half in enumerate(halves):
        replace_other(climb.folder / f"fold-{number}", half, climb.on_event)
    tuning = Tuning(
        halves=halves,
        start=best.start,
        start_value=best.deciding.map_at_r,
        every=climb.every,
        exactly=climb.asked if climb.exactly else 0,
        budget=climb.budget,
        plan=climb.plan,
        work=climb.work,
    )
    seen, seconds = tune_halves(tuning, ladder, climb.folder, table=climb.table, on_event=climb.on_event)
    return ladder.choice(seen, seconds)
