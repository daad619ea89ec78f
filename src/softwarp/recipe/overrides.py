"""Changes a recipe (KEY=VALUE, another loss), compares two, and checks one against the needs of its loss."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import yaml

from softwarp.losses import card_of, find_loss
from softwarp.losses.contract import defaults_of
from softwarp.losses.own_file import check_code, code_of, is_own, whole_name
from softwarp.recipe.schema import Recipe, parse_recipe

# What may differ when a run is resumed: it does not change the outcome.
FREE = ("checkpoint_minutes", "trackers", "paper", "data.root", "data.workers")


def override(settings: dict[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """Return the settings with assignments like `phases.0.epochs=5` applied.

    >>> override({"phases": [{"epochs": 1}]}, ["phases.0.epochs=5", "loss.name=arcface"])
    {'phases': [{'epochs': 5}], 'loss': {'name': 'arcface'}}
    """
    new = deepcopy(settings)
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not (key and equals):
            raise ValueError(f"{assignment!r} is not a change; write KEY=VALUE, like phases.0.epochs=5")
        _assign(new, key.split("."), parse_value(text), assignment)
    return new


def change_loss(settings: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the settings with another loss: its own defaults replace the old one's settings.

    Learning rates of the loss's parameters follow from those of the model by the ratio on the loss's card,
    or are the travel on it in the first phase that gives travel, in the same ratio from phase to phase. A
    batch gets as many samples per class as the loss needs.
    """
    name = whole_name(name)
    card, new = card_of(name), deepcopy(settings)
    old = parse_recipe(new).batches
    if whole_name(new["loss"]["name"]) == name:
        return new
    new["loss"] = {"name": name}
    batches = new["batches"] = dict(new.get("batches") or {})
    if old.samples is not None:
        batches["samples"] = max(old.samples, card.min_samples)
    elif max(card.min_classes, card.min_samples) > 1:  # a random batch may hold too few
        samples = max(4, card.min_samples)
        batches |= {"classes": max(batches.pop("size") // samples, card.min_classes), "samples": samples}
    travels = [float(phase["proxy_travel"]) for phase in new["phases"] if phase.get("proxy_travel")]
    for phase in new["phases"]:
        phase.pop("loss_settings", None)
        phase.pop("network_learning_rate", None)
        head = float(phase.get("head_learning_rate") or phase["learning_rate"])
        if phase.get("proxy_travel") is not None and find_loss(name).class_vectors is not None:  # type: ignore[attr-defined]
            phase["proxy_travel"] = card.proxy_travel * float(phase["proxy_travel"]) / travels[0]
        else:
            phase |= {"proxy_learning_rate": head * card.proxy_rate_ratio, "proxy_travel": None}
    return new


def write_out(recipe: Recipe) -> dict[str, Any]:
    """Return all settings of the recipe, with every default, including the loss's.

    A loss of one's own gets the hash of its file. With a hash, all is written out already: reading runs and
    reporting on them runs no code.
    """
    settings, name = recipe.model_dump(mode="json"), recipe.loss.name
    if recipe.loss.code is None:
        own = {"name": whole_name(name), "code": code_of(name)} if is_own(name) else {}
        settings["loss"] |= own
        settings["loss"]["settings"] = defaults_of(find_loss(name)) | settings["loss"]["settings"]
    return settings


def with_code(recipe: Recipe) -> Recipe:
    """Return the recipe; one with a loss of one's own is held to the file as it is now."""
    return parse_recipe(write_out(recipe)) if is_own(recipe.loss.name) else recipe


def dump_recipe(recipe: Recipe) -> str:
    """Return the recipe as YAML, with every default."""
    return yaml.safe_dump(write_out(recipe), sort_keys=False, allow_unicode=True)


def deciding_settings(settings: Any) -> dict[str, Any]:
    """Return what decides the outcome of a run, with dotted keys like phases.0.epochs.

    A study has the settings of its runs below `recipe` or `base`.

    >>> deciding_settings({"seed": 0, "recipe": {"data": {"name": "cub", "root": "/data"}}})
    {'seed': 0, 'recipe.data.name': 'cub'}
    """
    found = {}
    for key, value in _flat(settings).items():
        inner = key.removeprefix("recipe.").removeprefix("base.")
        if inner not in FREE and inner.split(".")[0] not in FREE:
            found[key] = value
    return found


def difference_of(there: Any, asked: Any, *, but: Sequence[str] = ()) -> str:
    """Return in words how two sets of settings differ; empty if the outcome would be the same.

    Args:
        but: keys, or parts of a recipe, that may differ.

    >>> difference_of({"seed": 1, "trackers": []}, {"seed": 2, "trackers": ["wandb"]})
    'seed is 1 there and 2 here'
    """
    there, asked = deciding_settings(there), deciding_settings(asked)
    free = tuple(f"{key}." for key in but)
    changed = [
        key
        for key in there | asked
        if there.get(key) != asked.get(key) and not f"{key}.".startswith(free or ("\0",))
    ]
    if not changed:
        return ""
    key, more = changed[0], f" (and {len(changed) - 1} more differ)" * (len(changed) > 1)
    return f"{key} is {there.get(key, 'absent')} there and {asked.get(key, 'absent')} here{more}"


def _flat(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested settings with dotted keys, like phases.0.epochs."""
    if isinstance(settings, list) and settings and isinstance(settings[0], dict):
        settings = {str(place): part for place, part in enumerate(settings)}
    if not isinstance(settings, dict) or not settings:
        return {prefix: settings}
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= _flat(value, f"{prefix}.{key}".lstrip("."))
    return flat


def check_batches(recipe: Recipe) -> None:
    """Raise a ValueError unless the recipe's batches, or their pieces, hold what its loss needs.

    The file of a loss of one's own must be the one that the recipe was written with.
    """
    check_code(recipe.loss.name, recipe.loss.code)
    card, batches = card_of(recipe.loss.name), recipe.batches
    needs = f"{recipe.loss.name} needs {card.needs()} in a batch"
    if batches.classes is None or batches.samples is None:
        if max(card.min_classes, card.min_samples) > 1:
            raise ValueError(
                f"{needs}, but batches.size draws at random; set batches.size=null, batches.classes and "
                "batches.samples"
            )
        return
    if batches.samples < card.min_samples:
        raise ValueError(f"{needs}, but batches.samples is {batches.samples}; raise it")
    if batches.classes // batches.accumulate < card.min_classes:
        pieces = f", processed in {batches.accumulate} pieces (batches.accumulate)"
        raise ValueError(
            f"{needs}, but batches.classes is {batches.classes}{pieces * (batches.accumulate > 1)}; raise it"
        )


def assign(settings: dict[str, Any], key: str, value: Any) -> None:
    """Put a value at a dotted key, like phases.0.epochs."""
    _assign(settings, key.split("."), value, f"{key}={value}")


def parse_value(text: str) -> Any:
    """Return what a text stands for, as YAML reads it.

    >>> parse_value("1e-4"), parse_value("true"), parse_value("adam")
    (0.0001, True, 'adam')
    """
    try:
        return float(text) if not text.lstrip("+-").isdigit() else int(text)  # YAML reads 1e-4 as text
    except ValueError:
        pass
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ValueError(f"{text!r} is not a YAML value; quote it if it is text") from None


def _assign(node: Any, keys: list[str], value: Any, assignment: str) -> None:
    for place, key in enumerate(keys):
        last = place == len(keys) - 1
        if isinstance(node, list):
            if not key.isdigit() or int(key) >= len(node):
                raise ValueError(
                    f"{assignment}: {'.'.join(keys[:place])} has {len(node)} entries, no {key!r}"
                )
            key = int(key)  # type: ignore[assignment]
        elif not isinstance(node, dict):
            raise ValueError(f"{assignment}: {'.'.join(keys[:place])} has no keys of its own")
        elif not last:
            node.setdefault(key, {})
        if last:
            node[key] = value
        node = node[key]
