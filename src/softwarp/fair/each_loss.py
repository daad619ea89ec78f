"""What benchmark and reality check share: a recipe for each loss, its search, and a folder of their own."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from softwarp.events import OnEvent
from softwarp.fair.benchmark_result import METRIC
from softwarp.fair.tasks import open_study
from softwarp.files import check_writable, write_json
from softwarp.losses import LOSSES, build_loss, card_of
from softwarp.losses.contract import class_vectors_of
from softwarp.losses.own_file import loss_label
from softwarp.recipe.overrides import change_loss, with_code, write_out
from softwarp.recipe.schema import Recipe, parse_recipe
from softwarp.training.train import BlowUpError
from softwarp.tuning.plan import Asked, Recipes, StudyPlan, Trainings, fit_study
from softwarp.tuning.search import search
from softwarp.tuning.space import on_bounds


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
        raise ValueError(f"{text}: a comparison needs two losses, like arcface,hist; or all")
    if len({loss_label(name) for name in set(names)}) < len(set(names)):
        raise ValueError(f"{text}: two losses are called the same; rename a file or a class")
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
        other = next(
            each for each in LOSSES if each != name
        )  # changed from another loss, each gets its defaults
        changed = change_loss({**settings, "loss": {"name": other}}, name)
        if recipe.loss.proxy_init and _one_vector_per_class(name):
            changed["loss"]["proxy_init"] = recipe.loss.proxy_init
        found[loss_label(name)] = with_code(parse_recipe(changed))
    return found


def judged_once(recipe: Recipe) -> Recipe:
    """Return the recipe judged on the test classes at its end, and nowhere on the way."""
    recipe.evaluation.check_judged()
    settings = recipe.model_dump(mode="json")
    settings["evaluation"] |= {"split": "test", "patience": None, "every": 0, "whole_gallery": False}
    return parse_recipe(settings)


def check_codes(folder: Path, recipes: Mapping[str, Recipe]) -> None:
    """Raise a ValueError if a loss of one's own was searched in this study with another file."""
    for name, recipe in recipes.items():
        path = folder / name / "search" / "study.json"
        there = json.loads(path.read_text())["recipe"]["loss"].get("code") if path.is_file() else None
        if there not in (None, recipe.loss.code):
            raise ValueError(
                f"{folder} holds {name} as its file was before it changed; restore the file, choose another "
                f"folder, or delete {folder / name}"
            )


def open_for_losses(folder: Path, recipes: Recipes, *, write: bool = True, **known: Any) -> None:
    """Refuse a folder that holds another study; more losses, and more seeds of a benchmark, may be added.

    Args:
        write: whether the folder becomes this study's; otherwise it is only checked.
        known: what the study is known by besides its recipe: `kind`, numbers, and `data`, the hash of its
            images.
    """
    check_codes(folder, recipes)
    recipe = write_out(next(iter(recipes.values()))) | {"loss": None}
    for phase in recipe["phases"]:
        phase |= {"proxy_learning_rate": None, "proxy_travel": None}  # these follow from the loss
    open_study(folder, {**known, "recipe": recipe}, write=write)


def plan_for_losses(
    recipes: Recipes,
    trainings: Trainings,
    folder: Path,
    known: Mapping[str, Any],
    asked: Asked,
) -> StudyPlan:
    """Return what fits into the budget; the folder then belongs to this study, unless it is a dry run.

    Args:
        known: as in `open_for_losses`.
    """
    if not asked.dry_run:
        check_writable(folder)
        if asked.budget is None:  # otherwise epochs follow from what is timed
            open_for_losses(folder, recipes, write=False, **known, trials=asked.trials or asked.usual)
    plan = fit_study(recipes, trainings, folder, asked)
    if not asked.dry_run:
        plan.keep(folder)  # first: a study without a plan would be taken for one without a budget
        open_for_losses(folder, plan.recipes, **known, trials=plan.trials)
    return plan


def find_best(folder: Path, on_event: OnEvent | None, *, recipe: Recipe, trials: int, **how: Any) -> None:
    """Search on validation classes, or folds; write the best settings.

    Args:
        how: as `search` takes it.
    """

    def act() -> dict[str, Any]:
        study = search(recipe, folder, trials=trials, objective=METRIC, on_event=on_event, **how)
        best, bounds = study.best, on_bounds(study.space, study.best.settings)
        found = {"settings": best.settings, "on_bounds": bounds, "value": best.value}
        return found | {"course": study.course()}

    write_outcome(folder, {"settings": {}, "on_bounds": {}, "value": None, "blew_up": ""}, act)


def write_outcome(folder: Path, content: dict[str, Any], act: Callable[[], dict[str, Any]]) -> None:
    """Write what a task found; if a training blew up, in it or before it, only the message.

    Args:
        content: what is written besides; `blew_up` is the message of a task before this one.
        act: returns what it found.
    """
    if not content["blew_up"]:
        try:
            content |= act()
        except BlowUpError as error:
            content["blew_up"] = str(error)
    write_json(folder / "outcome.json", content)


def read_outcome(folder: Path) -> dict[str, Any]:
    """Return what a task wrote."""
    content: dict[str, Any] = json.loads((folder / "outcome.json").read_text())
    return content


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
