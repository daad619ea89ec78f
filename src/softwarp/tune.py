"""Hyper-parameter search around `train`, on validation classes; test classes are never used."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from rich.progress import Progress

from softwarp.losses import card_of
from softwarp.recipe import Recipe, parse_recipe
from softwarp.train import BlowUpError, train

LEARNING_RATES = {
    "learning_rate": ("log", 3e-4, 3e-2),
    "proxy_learning_rate": ("log", 1e-3, 1.0),
    "proxy_travel": ("log", 0.1, 30.0),
}


def search(
    recipe: Recipe, folder: Path, *, trials: int, metric: str = "map@r", progress: Progress | None = None
) -> list[dict[str, Any]]:
    """Return all trials, best first: {"settings", "value"}, by TPE over the loss's own search space.

    Trials are saved in `folder` as they finish, so an interrupted search resumes where it stopped.
    """
    if recipe.evaluation.split != "validation":
        raise ValueError("a search needs validation classes; set evaluation.split to validation")
    folder.mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = JournalStorage(JournalFileBackend(str(folder / f"{recipe.loss.name}.journal")))
    study = optuna.create_study(
        study_name=recipe.loss.name, storage=storage, direction="maximize", load_if_exists=True
    )
    study.sampler = optuna.samplers.TPESampler(
        seed=recipe.seed + len(study.trials),  # a resumed search must not draw the same again
        n_startup_trials=max(1, trials // 3),
    )

    def objective(trial: optuna.Trial) -> float:
        settings = {name: _suggest(trial, name, bounds) for name, bounds in space(recipe).items()}
        try:
            run = train(apply(recipe, settings), folder / recipe.loss.name, progress=progress)
        except BlowUpError as error:  # the worst outcome, not the end of the search
            trial.set_user_attr("error", str(error))
            return 0.0
        return run.result().metrics[metric]

    done = sum(trial.state == TrialState.COMPLETE for trial in study.trials)
    study.optimize(objective, n_trials=max(0, trials - done))
    rows = [{"settings": trial.params, "value": trial.value, **trial.user_attrs} for trial in study.trials]
    finished = [row for row in rows if row["value"] is not None]
    if finished and all("error" in row for row in finished):
        raise ValueError(f"all {len(finished)} trials failed, the last with: {finished[-1]['error']}")
    return sorted(finished, key=lambda row: -row["value"])


def space(recipe: Recipe) -> dict[str, tuple[str, float, float]]:
    """Return the search space: both learning rates as the recipe gives them, and the space on the card."""
    given = recipe.phases[0].model_dump()
    rates = {rate: bounds for rate, bounds in LEARNING_RATES.items() if given[rate] is not None}
    return rates | card_of(recipe.loss.name).search_space


def apply(recipe: Recipe, settings: Mapping[str, float]) -> Recipe:
    """Return the recipe with these settings; learning rates of later phases keep their ratio to the first.

    >>> phases = [{"epochs": 1, "learning_rate": r, "proxy_learning_rate": r} for r in (1.0, 0.5)]
    >>> recipe = parse_recipe({"loss": {"name": "euclidean_softmax"}, "phases": phases})
    >>> [phase.learning_rate for phase in apply(recipe, {"learning_rate": 0.2, "scale": 3.0}).phases]
    [0.2, 0.1]
    """
    new = recipe.model_dump()
    for rate in (rate for rate in LEARNING_RATES if new["phases"][0][rate] is not None):
        factor = settings.get(rate, new["phases"][0][rate]) / new["phases"][0][rate]
        for phase in new["phases"]:
            phase[rate] *= factor
            if rate == "learning_rate" and phase["head_learning_rate"]:
                phase["head_learning_rate"] *= factor
    kinds = card_of(recipe.loss.name).search_space
    for name, value in settings.items():
        if name not in LEARNING_RATES:
            new["loss"]["settings"][name] = f"auto:{value:.4g}" if kinds[name][0] == "auto" else value
    return parse_recipe(new)


def _suggest(trial: optuna.Trial, name: str, bounds: tuple[str, float, float]) -> float:
    kind, low, high = bounds
    if kind == "int":
        return trial.suggest_int(name, int(low), int(high))
    return trial.suggest_float(name, low, high, log=kind in ("log", "auto"))
