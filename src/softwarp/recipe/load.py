"""A recipe by name or file, with KEY=VALUE changes."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from softwarp.losses import LOSSES
from softwarp.losses.own_file import is_own, loss_label
from softwarp.recipe.files import find_recipe, read_settings
from softwarp.recipe.loss_change import explain_change
from softwarp.recipe.overrides import change_loss, override, with_code
from softwarp.recipe.schema import Recipe, parse_recipe

DEFAULT = "glyphs_warped_softmax"


def load_recipe(name: str | Path = DEFAULT, *changes: str) -> Recipe:
    """Return a recipe that ships with softwarp, by its name, or one in a YAML file.

    Args:
        changes: KEY=VALUE, as on the command line. With `loss.name=arcface` come that loss's own settings.

    >>> load_recipe("cub_lite", "data.root=CUB_200_2011", "phases.0.epochs=2").phases[0].epochs
    2
    """
    path = find_named(str(name))
    return changed(read_settings(path), changes, source=path.name)


def find_named(name: str) -> Path:
    """Return the file of a recipe; a loss's name is told from a recipe's."""
    if is_own(name) or (name in LOSSES and not Path(name).is_file()):
        raise ValueError(f"{name} is a loss, not a recipe; use loss.name={name}")
    return find_recipe(name)


def changed(
    settings: dict[str, Any],
    changes: Sequence[str],
    *,
    source: str,
    split: str | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Recipe:
    """Return the recipe of these settings and KEY=VALUE changes.

    Args:
        source: what errors call the recipe.
        split: whether validation or test classes are judged; None as the settings say.
        tell: called with a line on what another loss keeps of the recipe, and what it brings.
    """
    if split not in (None, "validation", "test"):
        raise ValueError(f"the protocol is validation or test, not {split!r}")
    for change in changes:
        if change.startswith("loss.name="):
            loss = change.partition("=")[2]
            for line in explain_change(settings, loss):
                tell(line)
            settings = change_loss(settings, loss)
    settings = override(settings, changes)
    if split:
        settings["evaluation"] = (settings.get("evaluation") or {}) | {"split": split}
    return with_code(parse_recipe(settings, source, changes))


def run_name(path: Path, changes: Sequence[str]) -> str:
    """Return what to call a run of the recipe in this file: with the loss, if another one was asked for.

    >>> run_name(Path("cub_lite.yaml"), ["loss.name=hist"])
    'cub_lite-hist'
    """
    # best.yaml takes the name of its study.
    stem = path.stem if path.stem != "best" else path.absolute().parent.name
    losses = [each.partition("=")[2] for each in changes if each.startswith("loss.name=")]
    return "-".join([stem, *map(loss_label, losses)])
