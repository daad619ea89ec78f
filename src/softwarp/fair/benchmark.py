"""Losses compared fairly: equal search on validation classes, the same seeds, one look at test classes."""

import json
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from softwarp.events import OnEvent
from softwarp.fair.benchmark_result import METRIC, METRICS, Benchmark, BenchmarkEntry, Frozen
from softwarp.fair.comparisons import compare_all, compare_with
from softwarp.fair.tasks import Task, check_study, open_study
from softwarp.files import write_json
from softwarp.losses import LOSSES, build_loss, card_of
from softwarp.losses.contract import class_vectors_of
from softwarp.losses.own_file import loss_label
from softwarp.metrics import retrieval_per_query
from softwarp.recipe.overrides import change_loss, with_code, write_out
from softwarp.recipe.schema import Recipe, parse_recipe
from softwarp.runs.provenance import environment
from softwarp.runs.repeats import Repeats, read_repeats, summarise, write_repeats
from softwarp.runs.run import Run
from softwarp.training.choice import trained_as
from softwarp.training.step_batches import Room, fit_batches
from softwarp.training.train import BlowUpError, train_recipe
from softwarp.tuning.search import search, with_settings
from softwarp.tuning.space import on_bounds

FROZEN = "frozen"  # the folder of the features that every loss has to beat


def parse_losses(text: str, *, fewest: int = 2) -> list[str]:
    """Return the losses that a list names, each once; a ValueError names an unknown one.

    One's own are named FILE.py:CLASS.

    >>> parse_losses("arcface, hist"), len(parse_losses("all")) == len(LOSSES)
    (['arcface', 'hist'], True)
    """
    names = list(LOSSES) if text.strip() == "all" else [name.strip() for name in text.split(",")]
    for name in names:
        card_of(name)
    if len(set(names)) < fewest:
        raise ValueError(f"--losses {text}: a comparison needs two losses, like arcface,hist; or all")
    if len({loss_label(name) for name in set(names)}) < len(set(names)):
        raise ValueError(f"--losses {text}: two are called the same; rename a file or a class")
    return list(dict.fromkeys(names))


def recipe_for_each(recipe: Recipe, losses: Sequence[str]) -> dict[str, Recipe]:
    """Return the recipe with each loss, by its label; same data, model, optimizer, epochs, batches.

    Batches get as many samples per class as the most demanding loss needs. Where the recipe starts proxies
    at class means, every loss with one vector per class does.
    """
    settings = recipe.model_dump(mode="json")
    settings["batches"] = _batches_for_all(recipe, losses)
    found = {}
    for name in losses:
        other = next(each for each in LOSSES if each != name)  # from another, so that all get their defaults
        changed = change_loss({**settings, "loss": {"name": other}}, name)
        if recipe.loss.proxy_init and _one_vector_per_class(name):
            changed["loss"]["proxy_init"] = recipe.loss.proxy_init
        found[loss_label(name)] = with_code(parse_recipe(changed))
    return found


def judged_once(recipe: Recipe) -> Recipe:
    """Return the recipe judged on the test classes at its end, and nowhere on the way."""
    recipe.evaluation.check_judged()
    settings = recipe.model_dump(mode="json")
    settings["evaluation"] |= {"split": "test", "patience": None, "every": 0}
    return parse_recipe(settings)


def frozen_recipe(recipe: Recipe, room: Room | None = None) -> Recipe:
    """Return the recipe of the backbone's features as they are, judged as the losses are."""
    return fit_batches(trained_as(recipe, 0, 0.0), room)


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


def study_content(recipes: Mapping[str, Recipe], **numbers: Any) -> dict[str, Any]:
    """Return what a study is, by which its folder is known; the losses are not part of it.

    Args:
        numbers: what else it is known by.
    """
    recipe = write_out(next(iter(recipes.values()))) | {"loss": None}
    for phase in recipe["phases"]:
        phase |= {"proxy_learning_rate": None, "proxy_travel": None}  # these follow from the loss
    return {**numbers, "recipe": recipe}


def check_codes(folder: Path, recipes: Mapping[str, Recipe]) -> None:
    """Raise a ValueError if a loss of one's own was searched in this study with another file."""
    for name, recipe in recipes.items():
        path = folder / name / "search" / "study.json"
        there = json.loads(path.read_text())["recipe"]["loss"].get("code") if path.is_file() else None
        if there not in (None, recipe.loss.code):
            raise ValueError(
                f"{folder} holds {name} as its file was before it changed; restore the file, choose another "
                f"--output, or delete {folder / name}"
            )


def open_benchmark(
    folder: Path, recipes: Mapping[str, Recipe], *, trials: int, data: str | None = None, write: bool = True
) -> None:
    """Refuse a folder that holds another benchmark; more losses and more seeds may be added to one.

    Args:
        data: the hash of the images; a study must not go on with others.
        write: whether the folder becomes this benchmark's; otherwise it is only checked.
    """
    check_codes(folder, recipes)
    content = study_content(recipes, kind="benchmark", trials=trials, data=data)
    (open_study if write else check_study)(folder, content)


def find_best(folder: Path, on_event: OnEvent | None, *, recipe: Recipe, trials: int, **how: Any) -> None:
    """Search on validation classes, or folds; write the best settings.

    Args:
        how: as `search` takes it.
    """
    try:
        study = search(recipe, folder, trials=trials, objective=METRIC, on_event=on_event, **how)
        best, bounds = study.best, on_bounds(study.space, study.best.settings)
        content = {"settings": best.settings, "on_bounds": bounds, "value": best.value, "blew_up": ""}
        content["course"] = study.course()
    except BlowUpError as error:
        content = {"settings": {}, "on_bounds": {}, "value": None, "blew_up": str(error)}
    write_json(folder / "outcome.json", content)


def _train(folder: Path, on_event: OnEvent | None, *, recipe: Recipe) -> None:
    """Train with what the search found and judge on test classes; write MAP@R of every class."""
    found = read_outcome(folder.parent / "search")
    content: dict[str, Any] = {"blew_up": found["blew_up"]}
    if not found["blew_up"]:
        try:
            run = train_recipe(
                with_settings(recipe, found["settings"]), folder, resume=True, on_event=on_event
            )
            content["classes"] = values_by_class(run)
            run.remove_checkpoints()
        except BlowUpError as error:
            content["blew_up"] = str(error)
    write_json(folder / "outcome.json", content)


def _judge_frozen(folder: Path, on_event: OnEvent | None, *, recipe: Recipe) -> None:
    """Judge the features on test classes; write MAP@R of every class."""
    run = train_recipe(recipe, folder, resume=True, on_event=on_event)
    content = {"classes": values_by_class(run)}
    run.remove_checkpoints()
    write_json(folder / "outcome.json", content)


def read_outcome(folder: Path) -> dict[str, Any]:
    """Return what a task wrote."""
    content: dict[str, Any] = json.loads((folder / "outcome.json").read_text())
    return content


def values_by_class(run: Run) -> dict[str, tuple[float, int]]:
    """Return the mean MAP@R of every class and how many queries it is of."""
    arrays, distance = run.load_embeddings(), run.result().distance
    labels = arrays["labels"]
    values = retrieval_per_query(
        arrays["embeddings"],
        labels,
        gallery=arrays.get("gallery"),
        gallery_labels=arrays.get("gallery_labels"),
        ks=(1,),
        distance=distance,
    )[METRIC]
    names = dict(zip(labels.tolist(), (item.class_name for item in run.items()), strict=True))
    asked = labels[~values.isnan()]
    return {
        names[label]: (float(values[labels == label].nanmean()), int((asked == label).sum()))
        for label in asked.unique().tolist()
    }


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
            write_repeats(folder / name, repeats)  # for `softwarp compare`
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


def _batches_for_all(recipe: Recipe, losses: Sequence[str]) -> dict[str, Any]:
    """The recipe's batches, raised to what the most demanding loss needs."""
    cards, batches = [card_of(name) for name in losses], recipe.batches
    samples, classes = max(card.min_samples for card in cards), max(card.min_classes for card in cards)
    if batches.size is not None and samples == classes == 1:
        return batches.model_dump()
    if batches.classes is None or batches.samples is None:  # a random batch may hold too few
        samples = max(4, samples)
        classes = max(classes * batches.accumulate, (batches.size or 0) // samples)
        classes += -classes % batches.accumulate
    else:
        samples = max(batches.samples, samples)
        classes = max(batches.classes, classes * batches.accumulate)
    return batches.model_dump() | {"size": None, "classes": classes, "samples": samples}


def _one_vector_per_class(name: str) -> bool:
    vectors = class_vectors_of(build_loss(name, 8, 4))
    return vectors is not None and tuple(vectors.shape) == (8, 4)
