"""The protocol of Musgrave et al. (2020), as appendix D of the paper extends it.

Half of the classes are for test. The others are cut into folds; a setting is judged by the mean over models
that each hold out one fold. The best is reproduced several times, each time in three categories:

aggregate: the mean over the fold models on the test classes
ensemble:  the fold models' embeddings, each of length one, side by side
complete:  one wide model on all training classes, for as many epochs as the fold models took
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from softwarp.data.sources import load_source
from softwarp.evaluation import measure
from softwarp.events import OnEvent
from softwarp.fair.each_loss import find_best, judged_once, read_outcome, write_outcome
from softwarp.fair.tasks import Task
from softwarp.losses import card_of, find_loss
from softwarp.losses.contract import phase_settings_of
from softwarp.recipe.schema import Recipe
from softwarp.runs.result import Counts
from softwarp.runs.run import Run
from softwarp.training.job import prepare, start_accelerator
from softwarp.training.judge import evaluate_job
from softwarp.training.step_batches import fit_batches
from softwarp.training.train import train_recipe
from softwarp.tuning.search import fold_runs
from softwarp.tuning.space import Parameter, space_of, with_settings

ROUNDED_TO = 5  # epochs of the complete model


def check_protocol(recipe: Recipe) -> None:
    """Raise a ValueError for a recipe that does not say how the protocol is to be followed."""
    evaluation = recipe.evaluation
    if evaluation.patience is None or not evaluation.every or evaluation.metric != "map@r":
        raise ValueError(
            "a reality check trains each phase to its plateau: set evaluation.every, evaluation.patience and "
            "evaluation.metric=map@r"
        )
    if evaluation.test_classes != "second_half" or evaluation.fold is not None:
        raise ValueError(
            "a reality check tests on the second half of the classes and cuts folds itself: set "
            "evaluation.test_classes=second_half and omit evaluation.fold"
        )
    if len(recipe.phases) < 2:
        raise ValueError("a reality check has two phases; add a second one to the recipe")


def space_with_follow_up(recipe: Recipe) -> dict[str, Parameter]:
    """Return the search space: rates, the loss's settings, and those settings again for the last phase.

    Rates of the last phase keep their ratio to those of the first.
    """
    known = phase_settings_of(find_loss(recipe.loss.name))
    last = len(recipe.phases) - 1
    ranges = {
        f"phases.{last}.loss_settings.{name}": ":".join(map(str, bounds))
        for name, bounds in card_of(recipe.loss.name).search_space.items()
        if name in known
    }
    return space_of(recipe, ranges)


def reality_tasks(
    recipes: Mapping[str, Recipe],
    *,
    trials: int,
    reproductions: int,
    size: int,
    storage: str | None = None,
) -> list[Task]:
    """Return all trainings: per loss one search, the fold models, their ensembles, the complete models.

    Args:
        size: of the complete model's embeddings.
    """
    tasks = []
    for name, recipe in recipes.items():
        folds, before = recipe.evaluation.folds, f"{name}/search"
        space = space_with_follow_up(recipe)
        act = partial(
            find_best, recipe=recipe, trials=trials, folds=folds, space=space, prune=False, storage=storage
        )
        tasks.append(Task(before, act, "outcome.json", trainings=folds * trials, shared=True))
        numbers = range(reproductions)
        seeded = [recipe.model_copy(update={"seed": recipe.seed + number}) for number in numbers]
        parts = [[f"{name}/{number}/fold-{fold}" for fold in range(folds)] for number in numbers]
        for own, mine in zip(seeded, parts, strict=True):
            tasks += [Task(key, partial(_fold, recipe=own), "outcome.json", (before,)) for key in mine]
        for number, own, mine in zip(numbers, seeded, parts, strict=True):
            key, together = f"{name}/{number}", tuple(mine)
            tasks.append(Task(f"{key}/ensemble", _ensemble, "outcome.json", together, trainings=0))
            act = partial(_complete, recipe=own, size=size)
            tasks.append(Task(f"{key}/complete", act, "outcome.json", tuple(chain(*parts))))
    return tasks


def _fold(folder: Path, on_event: OnEvent | None, *, recipe: Recipe) -> None:
    """Train one fold model with what the search found, and judge it on the test classes."""
    found = read_outcome(folder.parents[1] / "search")

    def act() -> dict[str, Any]:
        best = with_settings(recipe, found["settings"])
        (own,) = [
            each for each, place in fold_runs(best, folder.parent, best.evaluation.folds) if place == folder
        ]
        run = train_recipe(fit_batches(own), folder, resume=True, on_event=on_event)
        metrics = judge_on_test(run, folder / "test")
        epochs = epochs_to_best(run.history(), best.evaluation.metric, len(best.phases))
        run.remove_checkpoints()
        return {"metrics": metrics, "epochs": epochs}

    write_outcome(folder, {"blew_up": found["blew_up"]}, act)


def judge_on_test(run: Run, folder: Path) -> dict[str, float]:
    """Return how well the model of a finished run retrieves test classes; write embeddings to `folder`."""
    recipe = judged_once(run.recipe())
    recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"pretrained": False})})
    source = load_source(recipe.data, recipe.evaluation.plan())
    job = prepare(recipe, Run(folder), start_accelerator(recipe, folder), source)
    job.model.load_state_dict(run.load_model())
    judgement = evaluate_job(job, job.model, distance=run.result().distance)
    tested = Run.create(folder, recipe)
    tested.save_embeddings(judgement.arrays, judgement.items)
    changed = {
        "split": "test",
        "metrics": judgement.metrics,
        "classes": Counts(train=len(source.names), evaluated=len(source.query_labels.unique())),
        "images": Counts(train=len(source.labels), evaluated=len(source.query_labels)),
    }
    tested.write_result(run.result().model_copy(update=changed))
    return judgement.metrics


def _ensemble(folder: Path, on_event: OnEvent | None) -> None:
    """Judge the fold models of one reproduction as one."""
    places = sorted(folder.parent.glob("fold-*"), key=lambda place: int(place.name.removeprefix("fold-")))
    blew_up = next((text for place in places if (text := read_outcome(place)["blew_up"])), "")

    def act() -> dict[str, Any]:
        parts = [Run(place / "test").load_embeddings() for place in places]
        side = {
            name: concatenated([part[name] for part in parts]) for name in parts[0] if "labels" not in name
        }
        found = measure(
            side["embeddings"],
            parts[0]["labels"],
            gallery=side.get("gallery"),
            gallery_labels=parts[0].get("gallery_labels"),
            ks=(1,),
            distance="cosine",
        )
        return {"metrics": found["metrics"]}

    write_outcome(folder, {"blew_up": blew_up}, act)


def concatenated(parts: Sequence[Tensor]) -> Tensor:
    """Return embeddings [N, D1 + D2 + ...]: each part has length one, so each counts the same.

    >>> concatenated([torch.tensor([[2.0]]), torch.tensor([[3.0, 4.0]])])
    tensor([[1.0000, 0.6000, 0.8000]])
    """
    return torch.cat([normalize(part) for part in parts], dim=1)


def _complete(folder: Path, on_event: OnEvent | None, *, recipe: Recipe, size: int) -> None:
    """Train one wide model on all training classes, and judge it on the test classes."""
    found = read_outcome(folder.parents[1] / "search")
    outcomes = [
        json.loads(path.read_text()) for path in sorted(folder.parents[1].glob("*/fold-*/outcome.json"))
    ]
    blew_up = next((each["blew_up"] for each in outcomes if each["blew_up"]), "")

    def act() -> dict[str, Any]:
        epochs = complete_epochs([each["epochs"] for each in outcomes])
        best = complete_recipe(with_settings(recipe, found["settings"]), epochs, size)
        run = train_recipe(fit_batches(best), folder, resume=True, on_event=on_event)
        run.remove_checkpoints()
        return {"metrics": run.result().metrics, "epochs": epochs}

    write_outcome(folder, {"blew_up": blew_up}, act)


def complete_recipe(recipe: Recipe, epochs: Sequence[int], size: int) -> Recipe:
    """Return the recipe of the complete model: all training classes, so many epochs per phase."""
    once = judged_once(recipe)
    phases = tuple(
        phase.model_copy(update={"epochs": count}) for phase, count in zip(once.phases, epochs, strict=True)
    )
    model = once.model.model_copy(update={"embedding_size": size})
    return once.model_copy(update={"phases": phases, "model": model})


def epochs_to_best(history: Sequence[Mapping[str, Any]], metric: str, phases: int) -> list[int]:
    """Return how many epochs of each phase the kept model took: up to the first validation that was best.

    >>> rows = [(0, 0.2), (0, 0.1), (1, 0.3), (1, 0.3)]
    >>> history = [{"phase": phase, "validation": {"map@r": value}} for phase, value in rows]
    >>> epochs_to_best(history, "map@r", 2)
    [2, 1]
    """
    judged = [place for place, row in enumerate(history) if "validation" in row]
    best = max(judged, key=lambda place: (history[place]["validation"][metric], -place))
    taken = [row["phase"] for row in history[: best + 1]]
    return [taken.count(phase) for phase in range(phases)]


def complete_epochs(runs: Sequence[Sequence[int]]) -> list[int]:
    """Return the mean epochs of each phase over the fold models, rounded up to the next multiple of five.

    >>> complete_epochs([(12, 5), (11, 6), (14, 4), (13, 5)])
    [15, 5]
    """
    return [-(-sum(phase) // (ROUNDED_TO * len(runs))) * ROUNDED_TO for phase in zip(*runs, strict=True)]
