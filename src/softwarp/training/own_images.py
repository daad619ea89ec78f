"""From your own images to a model: the ladder of what may be better than the frozen features, in the time.

Frozen, calibrated, head alone, fine-tuned: each rung is judged by the same held-out training classes, and the
best so far is handed out before the next one begins.
"""

import json
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from softwarp import processes
from softwarp.data.readers import ImageTable
from softwarp.data.sources import Source, load_source
from softwarp.events import OnEvent, tell
from softwarp.files import write_json
from softwarp.models.preparation import check_side, sizes_of
from softwarp.models.whitening import ClassScatter
from softwarp.recipe.overrides import check_batches
from softwarp.recipe.schema import DataPart, Recipe, StartPart
from softwarp.runs.choice import Choice
from softwarp.runs.run import Run
from softwarp.training.budget import (
    BUDGET,
    Pace,
    Plan,
    Workload,
    crops_below,
    fit,
    measure_pace,
    whole_looks,
)
from softwarp.training.choice import FROZEN, Way, fold_recipes, made_as, why_frozen
from softwarp.training.earlier import check_earlier, clear, places_of, replace_other
from softwarp.training.features import TrainingFeatures
from softwarp.training.job import build_batches, prepare, start_accelerator
from softwarp.training.ladder import Ladder, Seen
from softwarp.training.own_recipe import resize_for
from softwarp.training.rungs import RATES, SHRINKAGES, Half, calibrated, frozen, head_alone
from softwarp.training.step_batches import in_words
from softwarp.training.tuned import MOST_LOOKS, Tuning, tune_halves

ENOUGH = 0.5  # share of the budget after which no further loss is tried on the head alone

HandOut = Callable[[Recipe], None]


class Settled(NamedTuple):
    """The recipe of the final model, a line on how it was chosen, and the choice if there was one."""

    recipe: Recipe
    said: str
    choice: Choice | None = None


@dataclass(frozen=True)
class Climb:
    """What all rungs need.

    Args:
        recipe: as it was planned.
        size: of the embedding of calibrated features; None for as many as there are features.
        budget: seconds for all of it, or a target if none was given.
        every: epochs between two looks.
        exactly: epochs that were asked for; 0 for as long as it pays.
        calibrates: whether calibrated features are candidates.
    """

    recipe: Recipe
    source: Source
    table: ImageTable
    folder: Path  # of what is chosen by
    plan: Plan
    work: Workload
    size: int | None
    budget: float
    every: int
    exactly: int
    calibrates: bool
    device: torch.device
    on_event: OnEvent | None

    @property
    def file(self) -> Path:
        """Where the ladder is written down."""
        return self.folder / "ladder.json"

    @cached_property
    def features(self) -> TrainingFeatures:
        """Features of the training images."""
        return TrainingFeatures(self.recipe, self.source, self.device, self.on_event)

    @cached_property
    def halves(self) -> list[Half]:
        """Features of the halves."""
        features, rows = self.features.found
        folds = fold_recipes(self.recipe, len(self.source.names), every=1, epochs=1)
        sources = [
            load_source(each.data.uncached(), each.evaluation.plan(), table=self.table) for each in folds
        ]
        return [Half.of(each, rows, features) for each in sources]

    @cached_property
    def scatters(self) -> list[ClassScatter]:
        """Mean and scatter of what each half trains on."""
        return [ClassScatter.of(half.trained, half.labels) for half in self.halves]

    @property
    def embedding_size(self) -> int:
        """Of calibrated features."""
        return self.size or self.halves[0].trained.shape[1]


def plan_and_choose(
    recipe: Recipe,
    table: ImageTable,
    folder: Path,
    *,
    given: Collection[str] = (),
    budget: float | None = None,
    seeds: int = 1,
    fresh: bool = False,
    hand_out: HandOut = lambda recipe: None,
    on_event: OnEvent | None = None,
) -> Settled:
    """Return the recipe of the final model: the best rung that fits into the budget.

    Args:
        table: of the images.
        given: keys that were set on purpose; a crop, a head or a number of epochs given so is kept.
        budget: seconds for all of it.
        fresh: measures and chooses again, whatever was found before.
        hand_out: called with the recipe of the best model so far, before fine-tuning, which takes long.
    """
    unchecked = _check(recipe)
    choosing, given = not unchecked, set(given)
    if "data.crop" in given and "data.resize" not in given:
        recipe = recipe.model_copy(update={"data": _cropped(recipe, recipe.data.crop)})
    accelerator = start_accelerator(recipe, folder)
    source = load_source(recipe.data.uncached(), recipe.evaluation.plan(), table=table)
    tell(on_event, source.protocol)
    build_batches(recipe.batches, source.labels, recipe.seed)  # refused now, not after the choice
    if given & {"phases", "phases.0"}:
        given.add("phases.0.epochs")
    if not fresh:
        asked = _asked(recipe, given, budget)
        check_earlier(recipe, folder, source.sha256, asked, choosing=choosing, seeds=seeds)
    else:
        prepare(recipe, Run(folder), accelerator, source)  # a recipe that is refused removes nothing
        # If this is stopped, the next attempt must not take earlier runs for its own.
        processes.from_main(lambda: _forget(folder))
    if reason := why_frozen(source.labels, choosing=choosing):
        return Settled(made_as(recipe, FROZEN), f"chosen: the frozen features, because {reason}")
    work = _work_on(source, recipe, choosing, seeds)
    file, device = folder / "choice" / "plan.json", accelerator.device
    plan = processes.from_main(lambda: _plan(recipe, source, work, file, device, given, budget, fresh))
    asked_epochs, recipe = recipe.phases[0].epochs, _planned(recipe, plan)
    exactly = asked_epochs if "phases.0.epochs" in given else 0
    if not choosing:
        tell(
            on_event, f"expected time: {_minutes(plan.seconds)} ({_what(plan, work, asked_epochs, exactly)})"
        )
        tell(on_event, f"batches: {in_words(recipe.batches)}")
        return Settled(recipe, f"not checked against the frozen features, because {unchecked}")
    has_time = budget is None or work.features(plan.pace) <= budget
    if not plan.epochs and not has_time:
        return Settled(made_as(recipe, FROZEN), f"chosen: the frozen features, because {_idle(asked_epochs)}")
    limit = BUDGET if budget is None else budget
    seconds = plan.seconds if exactly or not plan.epochs else max(limit, plan.seconds)
    up_to = "" if exactly or not plan.epochs else "up to "
    what = _what(plan, work, asked_epochs, exactly)
    tell(on_event, f"expected time: {up_to}{_minutes(seconds)} ({what})")
    climb = Climb(
        recipe=recipe,
        source=source,
        table=table,
        folder=folder / "choice",
        plan=plan,
        work=work,
        size=recipe.model.embedding_size if "model.embedding_size" in given else None,
        budget=limit,
        every=whole_looks(asked_epochs)[0],
        exactly=exactly,
        calibrates=_calibrates(recipe, given),
        device=device,
        on_event=on_event,
    )
    ladder = Ladder.open(climb.file, _question(recipe, source), budget=limit, fresh=fresh)
    ladder.save(climb.file)
    climb_on_features(climb, ladder)
    if not plan.epochs:
        return _settled(climb, ladder.choice(), f"it is not fine-tuned, because {_idle(asked_epochs)}")
    hand_out(made_as(climb.recipe, ladder.choice().chosen, size=climb.size))
    return fine_tune(climb, ladder)


def climb_on_features(climb: Climb, ladder: Ladder) -> None:
    """Climb as far as the features of the frozen network carry: frozen, calibrated, head alone."""
    tell(climb.on_event, "judging the features of the frozen network by halves of the training classes")
    ladder.climb(climb.file, "frozen", "frozen", lambda: frozen(climb.halves))
    if not climb.calibrates:
        return
    ladder.climb(
        climb.file,
        "calibrated",
        "calibrated",
        lambda: calibrated(climb.halves, climb.scatters, climb.embedding_size),
    )
    for loss in RATES:
        if ladder.seconds < ENOUGH * climb.budget:
            ladder.climb(climb.file, "head", loss, partial(_try, climb, ladder, loss))


def _try(climb: Climb, ladder: Ladder, loss: str) -> Seen:
    """Train the head alone from the best calibration."""
    first = [each for each in ladder.choice().candidates if each.rung == "calibrated"]
    best = max(first, key=lambda each: each.deciding.map_at_r)
    assert best.start is not None
    return head_alone(
        climb.halves,
        climb.scatters,
        climb.embedding_size,
        loss=loss,
        shrinkage=best.start.shrinkage,
        start_value=best.deciding.map_at_r,
        seed=climb.recipe.seed,
    )


def fine_tune(climb: Climb, ladder: Ladder) -> Settled:
    """Fine-tune the halves from the best rung so far, for as long as it pays, and choose among all rungs."""
    best = ladder.choice().chosen
    begun = climb.recipe
    if best.start is not None:
        begun = made_as(climb.recipe, Way(1, 1.0, best.start), size=climb.size)
    halves = fold_recipes(
        begun,
        len(climb.source.names),
        every=climb.every,
        epochs=climb.exactly or MOST_LOOKS * climb.every,
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
        exactly=climb.exactly,
        budget=climb.budget,
        plan=climb.plan,
        work=climb.work,
    )
    seen, seconds = tune_halves(tuning, ladder, climb.folder, table=climb.table, on_event=climb.on_event)
    choice = ladder.choice(seen, seconds)
    return _settled(climb, choice, _rising(choice, ladder.stopped))


def _settled(climb: Climb, choice: Choice, more: str) -> Settled:
    """Write the choice down, and say it."""
    if processes.is_main():
        write_json(climb.folder / "choice.json", choice.model_dump(mode="json", by_alias=True))
    said = [choice.sentence(), *_at_bound(choice.chosen.start), *([more] if more else [])]
    return Settled(made_as(climb.recipe, choice.chosen, size=climb.size), "\n".join(said), choice)


def _at_bound(start: StartPart | None) -> list[str]:
    """A line if the shrinkage is the least that was tried; the most is a bound by itself."""
    if start is None or start.shrinkage != SHRINKAGES[0]:
        return []
    return [f"shrinkage {start.shrinkage:g} is the least that is tried; a smaller one may be better still"]


def _rising(choice: Choice, stopped: str) -> str:
    """A line if fine-tuning was still improving when it had to end."""
    if not choice.still_rising() or stopped == "flat":
        return ""
    epochs = choice.chosen.epochs
    more = "a longer budget" if stopped == "time" else f"more epochs (phases.0.epochs={2 * epochs})"
    return f"the curve was still rising after {epochs} epochs; {more} may give more"


def _calibrates(recipe: Recipe, given: Collection[str]) -> bool:
    """Whether the head may be calibrated: not if another one was asked for."""
    other = {"model", "model.head", "model.head_init", "model.norm", "model.unit_length"}
    return recipe.model.norm == "before" and not other & set(given)


def _forget(folder: Path) -> None:
    """Remove all runs of the folder, and what was chosen by them."""
    clear(*places_of(folder))
    for name in ("ladder.json", "choice.json"):
        (folder / "choice" / name).unlink(missing_ok=True)


def _question(recipe: Recipe, source: Source) -> dict[str, Any]:
    """What a ladder is the answer to: the images as they are seen, the network and the seed."""
    evaluation = recipe.evaluation.model_dump(mode="json", include={"split", "test_classes"})
    return {
        "data_sha256": source.sha256,
        "crop": [recipe.data.crop, recipe.data.resize],
        "model": recipe.model.model_dump(mode="json"),
        "evaluation": evaluation,
        "seed": recipe.seed,
    }


def _check(recipe: Recipe) -> str:
    """Refuse what cannot be chosen; return why nothing is chosen at all, empty if it is."""
    check_batches(recipe)
    check_side(recipe.model.backbone, recipe.data.crop)
    if len(recipe.phases) > 1:
        raise ValueError(
            f"own images train in one phase, but phases has {len(recipe.phases)}; put them into a recipe"
        )
    if recipe.evaluation.test_classes == "none":
        return "no classes are held out (evaluation.test_classes=none)"
    if recipe.evaluation.fold is not None:
        return "evaluation.fold was given"
    if (schedule := recipe.phases[0].schedule) != "constant":
        raise ValueError(
            f"phases.0.schedule={schedule}: the number of epochs is chosen, so rates stay constant; "
            "for a schedule: softwarp show --data FOLDER > recipe.yaml, and train that recipe"
        )
    return ""


def _work_on(source: Source, recipe: Recipe, choosing: bool, seeds: int) -> Workload:
    judged = len(source.query_labels) + (0 if source.gallery_labels is None else len(source.gallery_labels))
    observed = min(len(source.labels), recipe.evaluation.avg_dtp_images)
    return Workload(len(source.labels), judged, choosing, seeds, observed, source.closed)


def _plan(
    recipe: Recipe,
    source: Source,
    work: Workload,
    file: Path,
    device: torch.device,
    given: set[str],
    budget: float | None,
    fresh: bool,
) -> Plan:
    """The plan, read from `file` if it answers the same question: no two measurements agree exactly."""
    asked = _asked(recipe, given, budget)
    timed = {"model": recipe.model.model_dump(mode="json"), "images": work.trained}
    if file.is_file() and not fresh:
        found = json.loads(file.read_text())
        same = found.get("asked") == asked and found.get("timed", timed) == timed
        if same and "pace" in found["plan"]:  # a plan of version 0.1 has none
            pace = Pace(**found["plan"]["pace"])
            seconds = work.seconds(pace, found["plan"]["epochs"])  # perhaps for more seeds
            return Plan(**found["plan"] | {"pace": pace, "seconds": seconds})
    file.parent.mkdir(parents=True, exist_ok=True)
    plan = fit(lambda side: measure_pace(recipe.model, source, side, device, file.parent), work, **asked)
    write_json(file, {"asked": asked, "timed": timed, "plan": asdict(plan)})
    return plan


def _asked(recipe: Recipe, given: set[str], budget: float | None) -> dict[str, Any]:
    """The question that a plan answers."""
    crop, epochs = recipe.data.crop, recipe.phases[0].epochs
    return {
        "crops": [crop]
        if given & {"data.crop", "data.resize"}
        else crops_below(crop, sizes_of(recipe.model.backbone).step),
        "epochs": epochs,
        "fewest": epochs if "phases.0.epochs" in given else whole_looks(epochs)[0],
        "budget": budget,
    }


def _planned(recipe: Recipe, plan: Plan) -> Recipe:
    data = recipe.data if plan.crop == recipe.data.crop else _cropped(recipe, plan.crop)
    phase = recipe.phases[0].model_copy(update={"epochs": plan.epochs})
    return recipe.model_copy(update={"data": data, "phases": (phase,)})


def _cropped(recipe: Recipe, crop: int) -> DataPart:
    return recipe.data.model_copy(update={"crop": crop, "resize": resize_for(crop, recipe.model.backbone)})


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 90 else f"{seconds / 60:.0f} minutes"


def _idle(asked: int) -> str:
    """Why nothing is trained, by the number of epochs that was asked for."""
    return "there is no time to train; give a longer budget" if asked else "phases.0.epochs is 0"


def _what(plan: Plan, work: Workload, asked: int, exactly: int) -> str:
    if not plan.epochs:
        return f"{plan.crop} px, no fine-tuning: {_idle(asked)}"
    where = " on each half of the training classes to choose, then on all of them" if work.choosing else ""
    epochs = (
        f"up to {plan.epochs} epochs" if exactly or not work.choosing else "epochs for as long as it pays"
    )
    return f"{plan.crop} px, {epochs}{where}"
