"""What a search may change: recipe keys, each with its range, and how a value is put into a recipe."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from softwarp.losses import build_loss, card_of, find_loss
from softwarp.losses.contract import WRAPPED, settings_of
from softwarp.names import did_you_mean
from softwarp.recipe.overrides import assign, check_batches, parse_value, write_out
from softwarp.recipe.schema import Recipe, parse_recipe

Value = float | int | bool | str
Kind = Literal["float", "log", "int", "auto", "choice"]
KINDS: tuple[Kind, ...] = ("float", "log", "int", "auto", "choice")
RATES = {  # the first phase's
    "learning_rate": (1e-4, 3e-2),
    "proxy_learning_rate": (1e-3, 1.0),
    "proxy_travel": (0.01, 100.0),
}
AROUND = 30.0  # a rate that is not well inside its range is searched from 1/30 of it to 30 times it
FIXED = "fixed"
NEVER = ("evaluation", "paper", "seed", "trackers", "checkpoint_minutes")  # they judge or describe
NEAR = 0.02  # share of a range: a best value this close to an end is on its bound
CLASSES = 32  # a loss is built for so many, to see whether it takes a value


@dataclass(frozen=True)
class Parameter:
    """The values that a search may give to a recipe key.

    Args:
        kind: float and int are drawn evenly, log evenly in the logarithm. auto is a factor of what the loss
            measures itself, drawn like log: 2 is written "auto:2".
    """

    kind: Kind
    low: float = 0.0
    high: float = 0.0
    choices: tuple[Value, ...] = ()

    def __str__(self) -> str:
        """Return it as `parse_parameter` reads it."""
        if self.kind == "choice":
            return "choice:" + ",".join(map(str, self.choices))
        return f"{self.kind}:{self.low:.12g}:{self.high:.12g}"

    @property
    def logarithmic(self) -> bool:
        return self.kind in ("log", "auto")

    def in_recipe(self, drawn: Value) -> Value:
        """Return a drawn value as a recipe writes it.

        >>> Parameter("auto", 0.1, 10).in_recipe(0.5)
        'auto:0.5'
        """
        return f"auto:{drawn:.4g}" if self.kind == "auto" else drawn

    def ends(self) -> tuple[Value, ...]:
        """Return its lowest and highest value, or all choices, as a recipe writes them."""
        if self.kind == "choice":
            return self.choices
        ends = (self.low, self.high)
        return tuple(int(end) if self.kind == "int" else self.in_recipe(end) for end in ends)

    def nearest(self, value: Any) -> Value:
        """Return what a search would draw that is nearest to a recipe's value; its middle for no number.

        >>> Parameter("log", 1, 100).nearest(None), Parameter("auto", 0.1, 9).nearest(25.0)
        (10.0, 1.0)
        """
        if self.kind == "choice":
            return value if value in self.choices else self.choices[0]
        if self.kind == "auto":
            value = number_of(value) if str(value).startswith("auto:") else 1.0
        elif isinstance(value, bool) or not isinstance(value, int | float):
            value = math.sqrt(self.low * self.high) if self.logarithmic else (self.low + self.high) / 2
        value = min(max(value, self.low), self.high)
        return round(value) if self.kind == "int" else float(value)

    def place(self, value: Value) -> float:
        """Return where a value lies, 0 at the low end and 1 at the high end; a choice by its position.

        >>> Parameter("log", 1, 100).place(10.0), Parameter("auto", 0.1, 10).place("auto:10")
        (0.5, 1.0)
        """
        if self.kind == "choice":
            return self.choices.index(value) / max(1, len(self.choices) - 1)
        number, low, high = number_of(value), self.low, self.high
        if self.logarithmic:
            number, low, high = math.log(number), math.log(low), math.log(high)
        return (number - low) / (high - low)


def number_of(value: Value) -> float:
    """Return a value of a range as a number: that of "auto:2" is 2."""
    return float(str(value).removeprefix("auto:"))


def parse_parameter(text: str) -> Parameter:
    """Return the range or the choices that a text names.

    >>> parse_parameter("log:1:40")
    Parameter(kind='log', low=1.0, high=40.0, choices=())
    >>> parse_parameter("choice:adam,sgd").choices
    ('adam', 'sgd')
    """
    kind, _, rest = text.partition(":")
    if kind not in KINDS:
        answer = did_you_mean(kind, KINDS, "write KIND:LOW:HIGH, like log:1:40")
        raise ValueError(f"{text!r} begins with none of {', '.join(KINDS)}; {answer}")
    if kind == "choice":
        choices = tuple(parse_value(each) for each in rest.split(",") if each)
        if len(choices) < 2 or len(set(choices)) < len(choices):
            raise ValueError(f"{text!r} needs at least two different values, like choice:1,5,10")
        return Parameter(kind="choice", choices=choices)
    try:
        low, high = map(float, rest.split(":"))
    except ValueError:
        raise ValueError(f"{text!r} is not {kind}:LOW:HIGH with two numbers, like {kind}:1:40") from None
    if not low < high:
        raise ValueError(
            f"{text!r}: low must be below high; write {kind}:{min(low, high):g}:{max(low, high):g}"
        )
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"{text!r}: both ends must be finite")
    if kind in ("log", "auto") and low <= 0:
        raise ValueError(f"{text!r}: a logarithmic range begins above 0; raise {low:g}, or use float")
    if kind == "int" and not (low.is_integer() and high.is_integer()):
        raise ValueError(f"{text!r}: int takes whole numbers; use float")
    return Parameter(kind, low, high)


def space_of(recipe: Recipe, changes: Mapping[str, str] | None = None) -> dict[str, Parameter]:
    """Return the search space: the rates that the recipe gives, then the settings on the loss's card.

    Args:
        changes: ranges by recipe key, as `parse_parameter` reads them, in place of the usual ones or in
            addition to them; "fixed" removes a key.
    """
    given = recipe.phases[0].model_dump()
    space = {f"phases.0.{rate}": _around(given[rate], *usual) for rate, usual in RATES.items() if given[rate]}
    for name, (kind, low, high) in card_of(recipe.loss.name).search_space.items():
        space[f"loss.settings.{name}"] = Parameter(kind, low, high)  # type: ignore[arg-type]
    for key, text in (changes or {}).items():
        if text == FIXED:
            _remove(space, key)
        else:
            try:
                space[key] = parse_parameter(text)
            except ValueError as error:
                raise ValueError(f"space {key}={text}: {error}") from None
    if not space:
        raise ValueError("nothing is left to search; fix fewer keys, or give a range")
    check_space(recipe, space)
    return space


def check_space(recipe: Recipe, space: Mapping[str, Parameter]) -> None:
    """Raise a ValueError for a key that the recipe or its loss does not know, or a value it does not take."""
    known = settings_of(find_loss(recipe.loss.name))
    for key, parameter in space.items():
        part, _, name = key.rpartition(".")
        if key.partition(".")[0] in NEVER:
            raise ValueError(f"space {key}: a search must not change how models are judged; remove it")
        if part == "loss.settings" and name not in known and WRAPPED not in known.values():
            answer = did_you_mean(name, known, f"it has {', '.join(known) or 'none'}")
            raise ValueError(f"space {key}: {recipe.loss.name} has no setting {name!r}; {answer}")
        for value in parameter.ends():
            try:
                changed = with_settings(recipe, {key: value})
                if part == "batches":
                    check_batches(changed)
                if part == "loss.settings":
                    settings = changed.loss.settings
                    build_loss(recipe.loss.name, CLASSES, recipe.model.embedding_size, **settings)
            except ValueError as error:
                raise ValueError(f"space {key}={parameter}: {error}") from None


def with_settings(recipe: Recipe, settings: Mapping[str, Any]) -> Recipe:
    """Return the recipe with these values; rates of later phases, and of heads, keep their ratio.

    >>> phases = [{"epochs": 1, "learning_rate": r, "proxy_learning_rate": r} for r in (1.0, 0.5)]
    >>> recipe = parse_recipe({"loss": {"name": "euclidean_softmax"}, "phases": phases})
    >>> new = with_settings(recipe, {"phases.0.learning_rate": 0.2, "loss.settings.scale": 3.0})
    >>> [phase.learning_rate for phase in new.phases], new.loss.settings
    ([0.2, 0.1], {'scale': 3.0})
    """
    new = recipe.model_dump(mode="json")
    for key, value in settings.items():
        assign(new, key, value)
    for rate in RATES:
        before = getattr(recipe.phases[0], rate)
        if before and f"phases.0.{rate}" in settings:
            together = (rate, "head_learning_rate") if rate == "learning_rate" else (rate,)
            factor = settings[f"phases.0.{rate}"] / before
            for number, phase in enumerate(new["phases"]):
                for name in together:
                    if phase[name] and f"phases.{number}.{name}" not in settings:
                        phase[name] *= factor
    return parse_recipe(new)


def own_point(recipe: Recipe, space: Mapping[str, Parameter]) -> dict[str, Value]:
    """Return the recipe's own values as a search draws them: where it begins.

    A setting that the recipe leaves out has the loss's default. What can be measured and is given as a plain
    number begins at 1 times what is measured. A value beyond its range begins at the nearer end.

    >>> phases = [{"epochs": 1, "learning_rate": 0.1, "proxy_learning_rate": 1.0}]
    >>> recipe = parse_recipe({"loss": {"name": "warped_softmax", "settings": {"k1": 0.5}}, "phases": phases})
    >>> space = {"phases.0.learning_rate": Parameter("log", 1e-4, 1e-2)}
    >>> space |= {f"loss.settings.{each}": Parameter("float", 0, 2) for each in ("k1", "k2")}
    >>> space["loss.settings.alpha"] = Parameter("auto", 0.1, 9)
    >>> list(own_point(recipe, space).values())
    [0.01, 0.5, 1.2, 1.0]
    """
    known = _flat(write_out(recipe))
    at_start = {key: f"loss.settings.{key.rpartition('.')[2]}" for key in space if ".loss_settings." in key}
    return {
        key: parameter.nearest(known.get(key, known.get(at_start.get(key, key))))
        for key, parameter in space.items()
    }


def _flat(settings: Any, name: str = "") -> dict[str, Any]:
    """Recipe keys and their values."""
    if not isinstance(settings, dict | list):
        return {name: settings}
    items = settings.items() if isinstance(settings, dict) else enumerate(settings)
    parts = [_flat(value, f"{name}.{key}" if name else str(key)) for key, value in items]
    return {key: value for part in parts for key, value in part.items()}


def on_bounds(space: Mapping[str, Parameter], settings: Mapping[str, Value]) -> dict[str, str]:
    """Return the keys whose value is on a bound of its range, and which bound that is.

    >>> on_bounds({"phases.0.epochs": Parameter("int", 1, 8)}, {"phases.0.epochs": 8})
    {'phases.0.epochs': 'upper'}
    """
    places = {key: each.place(settings[key]) for key, each in space.items() if each.kind != "choice"}
    ends = {key: "lower" if place < 0.5 else "upper" for key, place in places.items()}
    return {key: ends[key] for key, place in places.items() if min(place, 1 - place) < NEAR}


def _around(rate: float, low: float, high: float) -> Parameter:
    """The usual range, if the recipe's own rate is well inside it; else one around that rate."""
    usual = 3 * low <= rate <= high / 3
    return Parameter("log", low, high) if usual else Parameter("log", rate / AROUND, rate * AROUND)


def _remove(space: dict[str, Parameter], key: str) -> None:
    if key not in space:
        answer = did_you_mean(key, space, f"searched are {', '.join(space)}")
        raise ValueError(f"space {key}={FIXED}: {key} is not searched anyway; {answer}")
    del space[key]
