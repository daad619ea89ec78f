"""Recipes as files: YAML in, and the ones that ship with softwarp by name."""

from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from softwarp.names import did_you_mean
from softwarp.recipe.schema import Recipe, parse_recipe


class FlatLoader(yaml.SafeLoader):
    """YAML without aliases: a few lines of them can expand to gigabytes, and recipes need none."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*NAME) are not supported; write the value out")
        return super().compose_node(parent, index)


def read_settings(path: Path) -> dict[str, Any]:
    """Return what a YAML file says, not yet validated."""
    try:
        settings = yaml.load(path.read_text(encoding="utf-8"), FlatLoader)
    except (yaml.YAMLError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(settings, dict):
        raise ValueError(f"{path} is not a recipe: it must have keys such as loss and phases")
    return settings


def read_recipe(path: Path) -> Recipe:
    """Return the recipe in a YAML file."""
    return parse_recipe(read_settings(path), path.name)


def recipe_names() -> list[str]:
    """Return the names of the recipes that ship with softwarp; those of a study start with its name."""
    found = (path.relative_to(_folder()).with_suffix("").as_posix() for path in _folder().rglob("*.yaml"))
    return sorted(name for name in found if not name.startswith("table_"))


def find_recipe(name: str) -> Path:
    """Return the file of a recipe: a path, or the name of one that ships with softwarp.

    >>> find_recipe("glyphs_proxy_nca_pp").name == find_recipe("recipes/glyphs_proxy_nca_pp.yaml").name
    True
    """
    if Path(name).is_file():
        return Path(name)
    parts = Path(name).with_suffix("").parts if Path(name).suffix in (".yaml", ".yml") else Path(name).parts
    endings = ("/".join(parts[place:]) for place in range(len(parts)))  # the longest first
    packaged = next((ending for ending in endings if ending in recipe_names()), None)
    if packaged is None:
        answer = did_you_mean(parts[-1] if parts else "", recipe_names(), "`softwarp recipes` lists them")
        answer = did_you_mean("/".join(parts), recipe_names(), answer)
        what = "file" if Path(name).suffix in (".yaml", ".yml") else "recipe"
        raise ValueError(f"there is no {what} {name}; {answer}")
    return _folder() / f"{packaged}.yaml"


def _folder() -> Path:
    return Path(str(files("softwarp") / "recipes"))
