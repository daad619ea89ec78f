"""The demo: three losses, the same network, batches and budget, judged on characters never seen."""

from importlib.resources import files
from pathlib import Path

from softwarp.recipe import Recipe, read_recipe

LOSSES = ("warped_softmax", "euclidean_softmax", "proxy_nca_pp")


def demo_recipes() -> dict[str, Recipe]:
    """Return the recipe of each loss; apart from the loss and its learning rates they are the same."""
    return {name: read_recipe(_recipe_path(name)) for name in LOSSES}


def _recipe_path(loss: str) -> Path:
    return Path(str(files("softwarp.recipes"))) / f"glyphs_{loss}.yaml"
