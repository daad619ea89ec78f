"""Recipes that differ in a few settings, each trained with several seeds: what many studies train."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from softwarp.events import OnEvent
from softwarp.fair.tasks import Task, open_study, work
from softwarp.files import write_json
from softwarp.losses import build_loss
from softwarp.recipe.files import find_recipe, read_settings
from softwarp.recipe.overrides import check_batches, override, write_out
from softwarp.recipe.schema import Recipe, parse_recipe
from softwarp.report.runs import geometry_of
from softwarp.runs.repeats import summarise
from softwarp.runs.result import Result
from softwarp.runs.run import Run
from softwarp.training.train import BlowUpError, train_recipe

# The demo's warp in plain numbers, which studies vary: near those that "auto" measures on glyphs.
PLAIN = (
    "loss.settings={alpha: 10.0, k1: 0.9, k2: 1.2, scale: 0.7}",
    "phases=[{epochs: 8, learning_rate: 0.004, proxy_learning_rate: 0.03}, "
    "{epochs: 4, learning_rate: 0.0004, proxy_learning_rate: 0.003}]",
)
QUICK = ("data.max_classes=40",)
QUICK_EPOCHS = 2  # epochs of each phase with --quick
QUICK_SEEDS = 2
# What the command of such a study takes.
Words = Annotated[
    list[str] | None,
    typer.Argument(help="A recipe, and changes like data.root=CUB_200_2011. Default: glyphs."),
]
Seeds = Annotated[
    int, typer.Option(min=1, help=f"Trainings of each kind; --quick takes at most {QUICK_SEEDS}.")
]


@dataclass(frozen=True)
class Outcome:
    """A training: result and epochs. After a blow-up, those of the last checkpoint, which was finite."""

    result: Result
    history: list[dict[str, Any]]
    blew_up: str = ""  # the message


def settings_of_words(
    words: Sequence[str] | None,
    *,
    glyphs: Sequence[str] = ("data.max_classes=300",),
    always: Sequence[str] = (),
    quick: bool = False,
) -> dict[str, Any]:
    """Return the settings that the words RECIPE and KEY=VALUE stand for; without a recipe, the demo's.

    Args:
        glyphs: changes to the demo's recipe that keep a study short.
        always: changes to any recipe; KEY=VALUE overrule them.
    """
    words = words or ()
    names, changes = [word for word in words if "=" not in word], [word for word in words if "=" in word]
    if len(names) > 1:
        raise ValueError(f"give one recipe, not {' and '.join(names)}")
    settings = read_settings(find_recipe(names[0] if names else "glyphs_warped_softmax"))
    settings = override(settings, (*(() if names else (*PLAIN, *glyphs)), *always, *(QUICK if quick else ())))
    if quick:
        settings["phases"] = [phase | {"epochs": QUICK_EPOCHS} for phase in settings["phases"]]
    settings = override(settings, changes)
    judged = parse_recipe(settings).evaluation
    if 1 not in judged.ks or not judged.avg_dtp_images or judged.test_classes == "none":
        raise ValueError(
            "a study shows Recall@1 and AvgDTP: leave 1 in evaluation.ks, evaluation.avg_dtp_images above 0, "
            "and classes to judge in evaluation.test_classes"
        )
    return settings


def with_loss_settings(settings: Mapping[str, Any], **changes: float) -> Recipe:
    """Return the recipe with these settings of its loss in every phase."""
    loss = dict(settings["loss"])
    loss["settings"] = loss.get("settings", {}) | changes
    phases = []
    for phase in settings["phases"]:
        kept = {key: value for key, value in phase.get("loss_settings", {}).items() if key not in changes}
        phases.append({**phase, "loss_settings": kept})
    return parse_recipe({**settings, "loss": loss, "phases": phases})


def loss_setting(settings: Mapping[str, Any], name: str) -> float:
    """Return a setting of the recipe's loss; raise a ValueError unless it is a number."""
    value = write_out(parse_recipe(settings))["loss"]["settings"].get(name)
    if not isinstance(value, int | float):
        raise ValueError(
            f"this study changes {name} of {settings['loss']['name']}, which is {value} in the recipe; give "
            f"a number: loss.settings.{name}=VALUE"
        )
    return float(value)


def seeds_of(seeds: int, quick: bool) -> int:
    """Return how many seeds are trained."""
    return min(seeds, QUICK_SEEDS) if quick else seeds


def numbers_of(text: str) -> list[float]:
    """Return the numbers of a list, ascending.

    >>> numbers_of("2, 0.5")
    [0.5, 2.0]
    """
    try:
        numbers = sorted({float(word) for word in text.split(",")})
    except ValueError:
        numbers = []
    if not numbers or not all(map(math.isfinite, numbers)):
        raise ValueError(f"{text!r} is not a list of numbers like 0.5,1,2")
    return numbers


def train_variants(
    variants: Mapping[str, Recipe],
    folder: Path,
    *,
    seeds: int,
    base: Mapping[str, Any],
    extra: Mapping[str, Any] | None = None,
    on_event: OnEvent | None = None,
) -> dict[str, list[Outcome]]:
    """Return the outcomes of every variant, seed by seed; a study in this folder resumes.

    Args:
        variants: by the name of their folder, which says in what a variant differs from the base.
        base: the settings that they have in common; a folder with other ones is refused.
        extra: what else a folder must have been started with, where names do not say it all.
    """
    for recipe in variants.values():  # a wrong setting leaves no folder behind
        check_batches(recipe)
        build_loss(recipe.loss.name, 2, 2, **recipe.loss.settings)
    open_study(folder, {"kind": "variants", "base": write_out(parse_recipe(base)), **(extra or {})})
    places = {name: [f"{name}/seed-{seed}" for seed in range(seeds)] for name in variants}
    tasks = [
        Task(place, partial(_train, recipe=variants[name].model_copy(update={"seed": seed})), "outcome.json")
        for name, each in places.items()
        for seed, place in enumerate(each)
    ]
    work(tasks, folder, on_event=on_event)
    return {name: [_read(folder / place) for place in each] for name, each in places.items()}


def _train(folder: Path, on_event: OnEvent | None, *, recipe: Recipe) -> None:
    """Train; after a blow-up evaluate the last checkpoint instead."""
    blew_up = ""
    try:
        run = train_recipe(recipe, folder, resume=True, on_event=on_event)
    except BlowUpError as error:
        blew_up = str(error).partition(". Loss:")[0]
        run = _last_finite(Run(folder), recipe, on_event)
    for each in (run, Run(folder)):
        each.remove_checkpoints()
    write_json(folder / "outcome.json", {"blew_up": blew_up, "geometry": geometry_of(run)})


def _last_finite(broken: Run, recipe: Recipe, on_event: OnEvent | None) -> Run:
    """The run as it was at its last checkpoint: the recipe with the phases cut there."""
    left = max((row["epoch"] for row in broken.history() if "event" not in row), default=0)
    phases = []
    for phase in recipe.phases:
        epochs = min(phase.epochs, left)
        left -= epochs
        phases.append(phase.model_copy(update={"epochs": epochs}))
    cut = recipe.model_copy(update={"phases": tuple(phases)})
    last = Run(broken.folder / "last_finite")
    if not last.started():
        last.start_from(broken, cut)
    return train_recipe(cut, last.folder, resume=True, on_event=on_event)


def _read(folder: Path) -> Outcome:
    content = json.loads((folder / "outcome.json").read_text())
    run = Run(folder / "last_finite" if content["blew_up"] else folder)
    result = run.result()
    metrics = result.metrics | content["geometry"]
    return Outcome(
        result.model_copy(update={"metrics": metrics}),
        [row for row in run.history() if "event" not in row],
        content["blew_up"],
    )


def summarise_variants(found: Mapping[str, Sequence[Outcome]], metrics: Sequence[str]) -> dict[str, Any]:
    """Return by variant: mean, deviation and value of each seed, AvgDTP by epoch, which seeds blew up."""
    return {name: _summary(outcomes, metrics) for name, outcomes in found.items()}


def _summary(outcomes: Sequence[Outcome], metrics: Sequence[str]) -> dict[str, Any]:
    repeats = summarise([outcome.result for outcome in outcomes])
    kept = [name for name in metrics if name in repeats.mean]
    return {
        "mean": {name: repeats.mean[name] for name in kept},
        "deviation": {name: repeats.deviation[name] for name in kept if name in repeats.deviation},
        "seeds": {name: [run.metrics[name] for run in repeats.runs] for name in kept},
        "blew_up": {str(seed): outcome.blew_up for seed, outcome in enumerate(outcomes) if outcome.blew_up},
        "avg_dtp_by_epoch": _by_epoch([outcome.history for outcome in outcomes]),
        "seconds": statistics.mean(run.seconds for run in repeats.runs),
    }


def _by_epoch(histories: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, float]]:
    """Return AvgDTP by epoch: mean and deviation over the seeds that reached it."""
    rows = []
    for epoch in sorted({row["epoch"] for rows in histories for row in rows}):
        values = [row["avg_dtp"] for rows in histories for row in rows if row["epoch"] == epoch]
        if None not in values:
            deviation = statistics.stdev(values) if len(values) > 1 else 0.0
            rows.append({"epoch": epoch, "mean": statistics.mean(values), "deviation": deviation})
    return rows


def marked(title: str, row: Mapping[str, Any]) -> str:
    """Return the title of a row; it says so if one of its trainings blew up."""
    return title + " (blew up)" * bool(row["blew_up"])


def judged_on(summary: Mapping[str, Any]) -> str:
    """Return in words which classes judged the variants, and how many seeds each has."""
    return f"{summary['classes']['evaluated']} {summary['split']} classes, {summary['seeds']} seeds"


def columns_of(row: Mapping[str, Any], metrics: Sequence[str]) -> dict[str, Any]:
    """Return the means and deviations of a row, and how many of its trainings blew up, as columns of CSV."""
    parts = ("mean", "deviation")
    found = {f"{metric} {part}": row[part].get(metric) for metric in metrics for part in parts}
    return found | {"blew up": len(row["blew_up"])}


def about_trainings(found: Mapping[str, Sequence[Outcome]], base: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a summary says of its trainings: seeds, classes, recipe and data."""
    outcomes = next(iter(found.values()))
    first = outcomes[0].result
    recipe = write_out(parse_recipe(base))
    recipe["data"].pop("root")  # it is a path on this machine
    return {
        "seeds": len(outcomes),
        "split": first.split,
        "classes": first.classes.model_dump(),
        "images": first.images.model_dump(),
        "recipe": recipe,
        "data_sha256": first.data_sha256,
    }
