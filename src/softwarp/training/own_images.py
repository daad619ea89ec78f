"""From your own images to a model: what fits into the time, and whether training helps at all."""

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

from softwarp import processes
from softwarp.data.readers import ImageTable
from softwarp.data.sources import Source, load_source
from softwarp.events import OnEvent, part_of, tell
from softwarp.files import write_json
from softwarp.models.preparation import check_side, sizes_of
from softwarp.recipe.overrides import check_batches, difference_of, write_out
from softwarp.recipe.schema import DataPart, Recipe
from softwarp.runs.choice import Choice
from softwarp.runs.run import Run
from softwarp.tables import counted
from softwarp.training.budget import (
    Pace,
    Plan,
    Workload,
    crops_below,
    fit,
    fit_rest,
    measure_pace,
    whole_looks,
)
from softwarp.training.choice import choose_candidate, fold_recipes, read_looks, trained_as, why_frozen
from softwarp.training.job import build_batches, prepare, start_accelerator
from softwarp.training.own_recipe import resize_for
from softwarp.training.step_batches import in_words
from softwarp.training.train import train_recipe

# What plan and choice decide, so that it may differ from what an earlier budget left.
SETTLED = ("data.crop", "data.resize", "phases.0.epochs", "optimizer.wise_ft")
OF_FROZEN = ("model.head", "model.head_init", "model.embedding_size", "model.adapter")
OF_FOLDS = ("evaluation", "batches")


class Settled(NamedTuple):
    """The recipe of the final model, and a line on how it was chosen."""

    recipe: Recipe
    said: str


def plan_and_choose(
    recipe: Recipe,
    table: ImageTable,
    folder: Path,
    *,
    given: Collection[str] = (),
    budget: float | None = None,
    seeds: int = 1,
    fresh: bool = False,
    on_event: OnEvent | None = None,
) -> Settled:
    """Return the recipe of the final model: what fits into the budget, chosen on held-out classes.

    Args:
        table: of the images.
        given: keys that were set on purpose; a crop or a number of epochs given so is kept.
        budget: seconds for all of it.
        fresh: measures and chooses again, whatever was found before.
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
        check_earlier(recipe, folder, source.sha256, _asked(recipe, given, budget), seeds=seeds)
    else:
        prepare(recipe, Run(folder), accelerator, source)  # a recipe that is refused removes nothing
        # If this is stopped, the next attempt must not take earlier runs for its own.
        places = (folder, *folder.glob("seed-*"), *folder.glob("choice/fold-*"))
        processes.from_main(lambda: _clear(*places))
    if reason := why_frozen(source.labels, choosing=choosing):
        return Settled(trained_as(recipe, 0, 0.0), f"chosen: the frozen features, because {reason}")
    work = _work_on(source, recipe, choosing, seeds)
    file, device = folder / "choice" / "plan.json", accelerator.device
    plan = processes.from_main(lambda: _plan(recipe, source, work, file, device, given, budget, fresh))
    asked, recipe = recipe.phases[0].epochs, _planned(recipe, plan)
    tell(on_event, f"expected time: {_minutes(plan.seconds)} ({_what(plan, work, asked)})")
    if not plan.epochs:
        return Settled(trained_as(recipe, 0, 0.0), f"chosen: the frozen features, because {_idle(asked)}")
    halves = fold_recipes(recipe, len(source.names)) if choosing else []
    on_halves = f", {in_words(halves[0].batches)} on the halves" if halves else ""
    tell(on_event, f"batches: {in_words(recipe.batches)}{on_halves}")
    if not choosing:
        return Settled(recipe, f"not checked against the frozen features, because {unchecked}")
    limit = None if "phases.0.epochs" in given else budget
    choice = _choose(halves, plan, work, table, folder / "choice", limit, fresh, on_event)
    return Settled(trained_as(recipe, choice.chosen.epochs, choice.chosen.share), _said(choice, plan, asked))


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


def _choose(
    halves: Sequence[Recipe],
    plan: Plan,
    work: Workload,
    table: ImageTable,
    folder: Path,
    limit: float | None,
    fresh: bool,
    on_event: OnEvent | None,
) -> Choice:
    """Train on each half of the training classes, judge on the other; write choice.json."""
    histories, spent, epochs = list[list[dict[str, Any]]](), list[float](), plan.epochs
    for number, each in enumerate(halves):
        run, half = Run(folder / f"fold-{number}"), trained_as(each, epochs, 1.0)
        but = ", but for held-out images" * work.closed
        tell(
            on_event,
            f"choosing: half {number + 1} of the training classes is held out, the other half trains{but}",
        )
        replace_other(run.folder, half, on_event)
        with part_of(on_event) as listener:
            train_recipe(half, run.folder, resume=not fresh, table=table, on_event=listener)
        histories.append(run.history())
        spent.append(run.result().seconds)  # kept: resumed, the same is decided
        if limit is not None:
            before = epochs
            epochs, seconds = fit_rest(plan, work, epochs=before, spent=spent, budget=limit)
            if epochs < before or seconds > limit:
                tell(
                    on_event,
                    f"slower than planned: up to {epochs} epochs from here, expected time now: "
                    f"{_minutes(seconds)}{' (over the budget)' if seconds > limit else ''}",
                )
    classes, images = (
        {key: each for key, each in read_looks(histories, rows).items() if key[0] <= epochs}
        for rows in ("interpolations", "held_out_images")
    )
    choice = choose_candidate(classes, images if work.closed else None)
    if processes.is_main():
        write_json(folder / "choice.json", choice.model_dump(mode="json", by_alias=True))
    return choice


def _said(choice: Choice, plan: Plan, asked: int) -> str:
    said = choice.sentence()
    if choice.still_rising():
        epochs = choice.chosen.epochs
        more = "a longer budget" if epochs < asked else f"more epochs (phases.0.epochs={2 * epochs})"
        said += f"\nthe curve was still rising after {epochs} epochs; {more} may give more"
    return said


def _clear(*places: Path) -> None:
    """Remove the runs in these folders."""
    for place in places:
        if place.is_dir():
            with Run(place).locked():
                Run(place).clear()


def check_earlier(
    recipe: Recipe, folder: Path, sha256: str, asked: dict[str, Any], *, seeds: int = 1
) -> None:
    """Raise a ValueError if the folder's runs are others than a budget could have left: before any training.

    Args:
        sha256: of the images as they are now.
        asked: what the plan answers; a folder whose plan answered other crops or epochs is refused.
    """
    file = folder / "choice" / "plan.json"
    if file.is_file():
        there, what = _read_plan(file).get("asked", {}), {"epochs": "phases.0.epochs", "crops": "data.crop"}
        for key, name in what.items():
            if there.get(key, asked[key]) != asked[key]:
                was, now = (_either(each[key]) for each in (there, asked))
                raise ValueError(
                    f"{folder} holds a run of another recipe: {name} was {was} there and is {now} here; "
                    "choose another folder, or start afresh (--fresh, fresh=True)"
                )
    finals = [folder / f"seed-{seed}" for seed in range(recipe.seed, recipe.seed + seeds)]
    for place in finals if seeds > 1 else [folder]:
        seed = int(place.name.removeprefix("seed-")) if seeds > 1 else recipe.seed
        _check_run(place, recipe.model_copy(update={"seed": seed}), sha256, but=())
    for place in sorted(folder.glob("choice/fold-*")):
        _check_run(place, recipe, sha256, but=OF_FOLDS)


def _either(value: int | list[int]) -> str:
    return " or ".join(map(str, value)) if isinstance(value, list) else str(value)


def _check_run(place: Path, recipe: Recipe, sha256: str, but: Sequence[str]) -> None:
    run = Run(place)
    if not run.started():
        return
    frozen = not run.recipe().phases[0].epochs
    run.check_recipe(recipe, but=(*SETTLED, *but, *(OF_FROZEN if frozen else ())))
    if run.finished():
        run.check_data(run.result().data_sha256, sha256)


def replace_other(place: Path, recipe: Recipe, on_event: OnEvent | None) -> None:
    """Remove a run that differs from the recipe, which another budget has left here; say so in a line."""
    processes.from_main(lambda: _replace_other(place, recipe, on_event))  # others might look too late


def _replace_other(place: Path, recipe: Recipe, on_event: OnEvent | None) -> None:
    if not Run(place).started():
        return
    there = Run(place).recipe()
    if difference_of(write_out(there), write_out(recipe)):
        epochs = there.phases[0].epochs
        left = f"{counted(epochs, 'epoch')} at {there.data.crop} px" if epochs else "frozen features"
        tell(on_event, f"{place}: replaces what another budget left there ({left})")
        _clear(place)


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
        found = _read_plan(file)
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


def _read_plan(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text())
    return found


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


def _what(plan: Plan, work: Workload, asked: int) -> str:
    if not plan.epochs:
        return f"{plan.crop} px, no training: {_idle(asked)}"
    where = " on each half of the training classes to choose, then on all of them" if work.choosing else ""
    return f"{plan.crop} px, up to {plan.epochs} epochs{where}"
