"""How the next trial is drawn: TPE, a Gaussian process or chance, with pinned settings; and grids."""

import itertools
import random
from collections.abc import Mapping
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial

from softwarp.tuning.space import Parameter, Value

SAMPLERS = ("tpe", "gp", "random", "grid")
STARTUP = 10  # random trials before a model of the objective is used, or a third of the budget


def build_sampler(name: str, seed: int, startup: int = STARTUP) -> BaseSampler:
    """Return optuna's sampler of that name. Settings are written out: optuna 5 changed its defaults."""
    if name == "tpe":
        return TPESampler(
            n_startup_trials=startup,
            n_ei_candidates=24,
            multivariate=True,
            group=False,
            constant_liar=True,
            seed=seed,
        )
    if name == "gp":
        return GPSampler(n_startup_trials=startup, deterministic_objective=False, seed=seed)
    return RandomSampler(seed=seed)


class Sampler(BaseSampler):
    """Draws the k-th trial of a study with seed + k.

    Workers that start together draw different trials, and a search that was killed and resumed draws what it
    would have drawn anyway: the successor of a dead worker's trial has the same k.
    """

    def __init__(self, name: str, seed: int, startup: int) -> None:
        self.name, self.seed, self.startup = name, seed, startup
        self.inner = build_sampler(name, seed, startup)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        others = study.get_trials(deepcopy=False)[: origin(trial)]
        rank = sum(origin(other) == other.number for other in others)
        self.inner = build_sampler(self.name, self.seed * 1_000_003 % 2**31 + rank, self.startup)
        self.inner.before_trial(study, trial)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> Any:
        return self.inner.infer_relative_search_space(study, trial)

    def sample_relative(self, study: optuna.Study, trial: FrozenTrial, search_space: Any) -> Any:
        return self.inner.sample_relative(study, trial, search_space)

    def sample_independent(self, study: Any, trial: Any, param_name: Any, param_distribution: Any) -> Any:
        return self.inner.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(self, study: optuna.Study, trial: FrozenTrial, state: Any, values: Any) -> None:
        self.inner.after_trial(study, trial, state, values)


def origin(trial: FrozenTrial) -> int:
    """Return the number that a trial had before its workers died."""
    return int(trial.system_attrs.get("failed_trial", trial.number))


def suggest(trial: optuna.Trial, space: Mapping[str, Parameter]) -> dict[str, Value]:
    """Return a value for every key, as a recipe writes it."""
    return {key: each.in_recipe(_suggest(trial, key, each)) for key, each in space.items()}


def _suggest(trial: optuna.Trial, key: str, parameter: Parameter) -> Any:
    if parameter.kind == "choice":
        return trial.suggest_categorical(key, parameter.choices)
    if parameter.kind == "int":
        return trial.suggest_int(key, int(parameter.low), int(parameter.high))
    return trial.suggest_float(key, parameter.low, parameter.high, log=parameter.logarithmic)


def distribution(parameter: Parameter) -> BaseDistribution:
    """Return a parameter as optuna knows it."""
    if parameter.kind == "choice":
        return CategoricalDistribution(parameter.choices)
    if parameter.kind == "int":
        return IntDistribution(int(parameter.low), int(parameter.high))
    return FloatDistribution(parameter.low, parameter.high, log=parameter.logarithmic)


def grid(space: Mapping[str, Parameter], cells: int, seed: int) -> list[dict[str, Any]]:
    """Return at most `cells` points of a grid, shuffled: all choices, and of ranges as many values as fit.

    >>> points = grid({"a": Parameter("log", 1, 100), "b": Parameter("choice", choices=(1, 2))}, 7, seed=0)
    >>> sorted({point["a"] for point in points}), len(points)
    ([1.0, 10.0, 100.0], 6)
    """
    count = 2
    while _size(space, count + 1) <= cells and _size(space, count + 1) > _size(space, count):
        count += 1
    axes = [_axis(parameter, count) for parameter in space.values()]
    points = [dict(zip(space, point, strict=True)) for point in itertools.product(*axes)]
    random.Random(seed).shuffle(points)
    return points[:cells]


def _axis(parameter: Parameter, count: int) -> list[Any]:
    if parameter.kind == "choice":
        return list(parameter.choices)
    low, high = parameter.low, parameter.high
    if parameter.kind == "int":
        return sorted({round(low + (high - low) * step / (count - 1)) for step in range(count)})
    shares = [step / (count - 1) for step in range(count)]
    if parameter.logarithmic:
        return [float(f"{low * (high / low) ** share:.12g}") for share in shares]
    return [float(f"{low + (high - low) * share:.12g}") for share in shares]


def _size(space: Mapping[str, Parameter], count: int) -> int:
    size = 1
    for parameter in space.values():
        size *= len(_axis(parameter, count))
    return size
