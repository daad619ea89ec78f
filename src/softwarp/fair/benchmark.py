"""Losses compared fairly: equal search on validation classes, the same seeds, one look at test classes."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from softwarp.evaluation import map_at_r_per_class
from softwarp.events import OnEvent
from softwarp.fair.benchmark_result import METRIC, METRICS, Benchmark, BenchmarkEntry, Frozen
from softwarp.fair.comparisons import compare_all, compare_with
from softwarp.fair.each_loss import find_best, read_outcome, write_outcome
from softwarp.fair.tasks import Task
from softwarp.files import write_json
from softwarp.losses import card_of
from softwarp.recipe.overrides import write_out
from softwarp.recipe.schema import Recipe
from softwarp.runs.provenance import environment
from softwarp.runs.repeats import Repeats, read_repeats, summarise, write_repeats
from softwarp.runs.run import Run
from softwarp.training.train import train_recipe
from softwarp.tuning.space import with_settings

FROZEN = "frozen"  # the folder of the features that every loss has to beat


def benchmark_tasks(
    recipes: Mapping[str, Recipe],
    *,
    trials: int,
    seeds: int,
    storage: str | None = None,
    frozen: Recipe | None = None,
) -> list[Task]:
    """Return all trainings: the frozen features, one search per loss, then one run per seed."""
    tasks = []
    if frozen is not None:
        for seed in _frozen_seeds(frozen, seeds):
            act = partial(_judge_frozen, recipe=frozen.model_copy(update={"seed": seed}))
            tasks.append(Task(f"{FROZEN}/seed-{seed}", act, "outcome.json", trainings=0))
    for name, recipe in recipes.items():
        before = f"{name}/search"
        act = partial(find_best, recipe=recipe, trials=trials, storage=storage)
        tasks.append(Task(before, act, "outcome.json", trainings=trials, shared=True))
        for seed in range(recipe.seed, recipe.seed + seeds):
            act = partial(_train, recipe=recipe.model_copy(update={"seed": seed}))
            tasks.append(Task(f"{name}/seed-{seed}", act, "outcome.json", after=(before,)))
    return tasks


def _frozen_seeds(frozen: Recipe, seeds: int) -> range:
    """The seeds that give other features: only those of an untrained network are drawn."""
    return range(frozen.seed, frozen.seed + (1 if frozen.model.pretrained else seeds))


def _train(folder: Path, on_event: OnEvent | None, *, recipe: Recipe) -> None:
    """Train with what the search found and judge on test classes; write MAP@R of every class."""
    found = read_outcome(folder.parent / "search")

    def act() -> dict[str, Any]:
        return _judge(folder, on_event, recipe=with_settings(recipe, found["settings"]))

    write_outcome(folder, {"blew_up": found["blew_up"]}, act)


def _judge_frozen(folder: Path, on_event: OnEvent | None, *, recipe: Recipe) -> None:
    """Judge the features on test classes; write MAP@R of every class."""
    write_json(folder / "outcome.json", _judge(folder, on_event, recipe=recipe))


def _judge(folder: Path, on_event: OnEvent | None, *, recipe: Recipe) -> dict[str, Any]:
    """Train and evaluate, or resume that; return MAP@R of every class."""
    run = train_recipe(recipe, folder, resume=True, on_event=on_event)
    classes = values_by_class(run)
    run.remove_checkpoints()
    return {"classes": classes}


def values_by_class(run: Run) -> dict[str, tuple[float, int]]:
    """Return the mean MAP@R of every class and how many queries it is of."""
    arrays = run.load_embeddings()
    named = [item.class_name for item in run.items()]
    names = dict(zip(arrays["labels"].tolist(), named, strict=True))
    means = map_at_r_per_class(arrays, names, distance=run.result().distance)
    counts = Counter(named)  # a class has something to find for all of its queries, or for none
    return {name: (mean, counts[name]) for name, mean in means.items()}


def read_benchmark(
    folder: Path,
    recipes: Mapping[str, Recipe],
    *,
    trials: int,
    seeds: int,
    command: str,
    frozen: Recipe | None = None,
) -> Benchmark:
    """Return the outcome of a finished study."""
    entries, classes = [], {}
    for name, recipe in recipes.items():
        places = [folder / name / f"seed-{seed}" for seed in range(recipe.seed, recipe.seed + seeds)]
        outcomes = [read_outcome(place) for place in places]
        repeats = None
        if not any(outcome["blew_up"] for outcome in outcomes):
            repeats = summarise([Run(place).result() for place in places])
            write_repeats(folder / name, repeats)  # `softwarp compare` reads it
            classes[name] = [outcome["classes"] for outcome in outcomes]
        blew_up = next((outcome["blew_up"] for outcome in outcomes if outcome["blew_up"]), "")
        title = card_of(recipe.loss.name).title
        entries.append(_entry(name, title, read_outcome(folder / name / "search"), repeats, blew_up))
    entries.sort(key=lambda entry: -entry.mean.get(METRIC, -1.0))
    ranked = [entry for entry in entries if entry.mean]
    if not ranked:
        raise ValueError(f"no loss could be trained; the last blew up: {entries[-1].blew_up}")
    run = read_repeats(folder / ranked[0].loss).runs[0]
    values = {entry.loss: entry.seeds[METRIC] for entry in ranked}
    return Benchmark(
        command=command,
        trials=trials,
        seeds=seeds,
        classes=run.classes.model_dump(),
        images=run.images.model_dump(),
        closed=run.closed,
        entries=tuple(entries),
        pairs=tuple(compare_all(values, classes)),
        frozen=None if frozen is None else _read_frozen(folder / FROZEN, frozen, values, classes, seeds),
        recipe=write_out(next(iter(recipes.values()))),
        data_sha256=run.data_sha256,
        environment=environment(),
    )


def _read_frozen(
    folder: Path,
    recipe: Recipe,
    values: Mapping[str, Sequence[float]],
    classes: Mapping[str, Sequence[Any]],
    seeds: int,
) -> Frozen:
    """The features beside the values of the losses; those that no seed changes stand beside every seed."""
    places = [folder / f"seed-{seed}" for seed in _frozen_seeds(recipe, seeds)]
    repeats = summarise([Run(place).result() for place in places])
    write_repeats(folder, repeats)
    beside = seeds // len(places)
    own = {metric: tuple(run.metrics[metric] for run in repeats.runs) * beside for metric in METRICS}
    found = [read_outcome(place)["classes"] for place in places] * beside
    return Frozen(
        title=repeats.runs[0].title,
        backbone=recipe.model.backbone,
        mean={key: repeats.mean[key] for key in METRICS},
        deviation={key: value for key, value in repeats.deviation.items() if key in METRICS},
        seeds=own,
        against=tuple(compare_with(FROZEN, {**values, FROZEN: own[METRIC]}, {**classes, FROZEN: found})),
    )


def _entry(
    name: str, title: str, found: Mapping[str, Any], repeats: Repeats | None, blew_up: str
) -> BenchmarkEntry:
    runs = () if repeats is None else repeats.runs
    return BenchmarkEntry(
        loss=name,
        title=title,
        settings=found["settings"],
        on_bounds=found["on_bounds"],
        validation=found["value"],
        course=found.get("course", ()),
        mean={} if repeats is None else {key: repeats.mean[key] for key in METRICS},
        deviation={} if repeats is None else {k: v for k, v in repeats.deviation.items() if k in METRICS},
        seeds={key: tuple(run.metrics[key] for run in runs) for key in METRICS} if runs else {},
        seconds=statistics.mean(run.seconds for run in runs) if runs else 0.0,
        blew_up=blew_up,
    )
