"""The authors' way to search: first without the warp, then the warp, then the second phase.

The README of their code recommends it. The ranges hold what they found for CUB, Cars and SOP, both phases.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from softwarp.recipe.schema import Recipe
from softwarp.tuning.search import Study, search
from softwarp.tuning.space import FIXED, Parameter, Value, number_of, space_of, with_settings

WARP = ("alpha", "k1", "k2", "delta")
OFF = {"loss.settings.k1": 1.0, "loss.settings.k2": 1.0, "loss.settings.delta": 0.0}
STAGES = ("without the warp", "warp", "second phase")
DELTA = Parameter("float", 1.0, 5.5)  # as in the paper's Fig. 8; the authors chose 1.3 to 1.5 for both phases
NUMBERS = 10.0  # alpha and scale that the recipe gives as numbers: from a tenth to ten times these
# Below the first phase's rates, where those of the second begin; the authors' proxies have 1/225,000.
LOWER = {"learning_rate": 100.0, "proxy_learning_rate": 1e6, "proxy_travel": 1e6}
LESS = 10.0  # alpha and scale from a tenth
SLOPE = 0.6  # how far k1 and k2 may move from the first phase's


def search_like_the_paper(
    recipe: Recipe,
    folder: Path,
    *,
    trials: int,
    changes: Mapping[str, str] | None = None,
    **options: Any,
) -> dict[str, Study]:
    """Return the three searches by stage, each with a third of the trials; the last has the best recipe.

    All other parameters are searched with the warp switched off, then the warp at the best of these, then
    the second phase, from the checkpoint of the best first phase, in tighter bounds and with a lower alpha.

    Args:
        changes: as in `space_of`; keys of phases.1 belong to the second phase.
        options: as in `search`.
    """
    if recipe.loss.name != "warped_softmax" or len(recipe.phases) != 2:
        raise ValueError(
            "the paper's strategy searches a warped_softmax of two phases, this recipe has "
            f"{recipe.loss.name} and {len(recipe.phases)}; add a phase, or omit the strategy"
        )
    given = dict(changes or {})
    later = {key: given.pop(key) for key in list(given) if key.startswith("phases.1.")}
    space = first_space(recipe, given)
    warp = {key: each for key, each in space.items() if key.removeprefix("loss.settings.") in WARP}
    rest = {key: each for key, each in space.items() if key not in warp}
    first = recipe.model_copy(update={"phases": recipe.phases[:1]})
    shares = [max(1, (trials + 2 - number) // 3) for number in range(3)]
    plain = search(
        with_settings(first, OFF), folder / "1-without-warp", space=rest, trials=shares[0], **options
    )
    warped = search(
        with_settings(first, plain.best.settings), folder / "2-warp", space=warp, trials=shares[1], **options
    )
    found = warped.best_recipe()
    both = found.model_copy(update={"phases": (found.phases[0], recipe.phases[1])})
    second = search(
        both,
        folder / "3-second-phase",
        space=space_of(both, dict.fromkeys(space_of(both), "fixed") | _text(second_space(both)) | later),
        start=warped.best.folder,
        trials=shares[2],
        **options,
    )
    return dict(zip(STAGES, (plain, warped, second), strict=True))


def first_space(recipe: Recipe, changes: Mapping[str, str]) -> dict[str, Parameter]:
    """Return the ranges of the first phase: the usual ones, Delta, and numbers around the recipe's own."""
    own = {"loss.settings.delta": DELTA} | {
        f"loss.settings.{name}": Parameter("log", value / NUMBERS, value * NUMBERS)
        for name in ("alpha", "scale")
        if isinstance(value := recipe.loss.settings.get(name), int | float) and value > 0
    }
    fixed = [key for key in own if changes.get(key) == FIXED]
    rest = {key: text for key, text in changes.items() if key not in fixed}
    return {key: each for key, each in space_of(recipe, _text(own) | rest).items() if key not in fixed}


def second_space(recipe: Recipe) -> dict[str, Parameter]:
    """Return the ranges of the second phase, around the first phase's values: lower rates and alpha."""
    phase, settings = recipe.phases[0], recipe.loss.settings
    space = {
        f"phases.1.{rate}": Parameter("log", value / lower, value)
        for rate, lower in LOWER.items()
        if (value := getattr(phase, rate)) and getattr(recipe.phases[1], rate)
    }
    for name in ("alpha", "scale"):
        if name in settings:
            space[f"phases.1.loss_settings.{name}"] = _less(settings[name])  # type: ignore[arg-type]
    for name, low, high in (("k1", 0.01, 1.0), ("k2", 1.0, 10.0)):
        if name in settings:
            value = number_of(settings[name])  # type: ignore[arg-type]
            bounds = max(low, value - SLOPE), min(high, value + SLOPE)
            space[f"phases.1.loss_settings.{name}"] = Parameter("float", *bounds)
    return space


def _less(value: Value) -> Parameter:
    most = 1.0 if value == "auto" else number_of(value)
    return Parameter("auto" if isinstance(value, str) else "log", most / LESS, most)


def _text(space: Mapping[str, Parameter]) -> dict[str, str]:
    return {key: str(parameter) for key, parameter in space.items()}
