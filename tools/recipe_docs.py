"""Writes docs/recipe_keys.md: every key of a recipe, its default and a line, from the schema. make docs"""

import json
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from softwarp.files import write_text
from softwarp.recipe.part import Part
from softwarp.recipe.schema import PARTS

PAGE = Path("docs/recipe_keys.md")
HEAD = """# Recipe keys

```
softwarp show cub_lite                                         # a recipe in full, with every default
softwarp train cub_lite data.root=CUB_200_2011 data.crop=96    # change a key by its full name
softwarp train my_recipe.yaml phases.0.epochs=5                # phases.0 is the first phase
```

A recipe is a YAML file with these keys. A key that softwarp does not know is an error that names the nearest
one it does. `make docs` writes this page from [recipe/schema.py](../src/softwarp/recipe/schema.py);
[Recipes](recipes.md) explains the keys that need more than a line.
"""


def main() -> None:
    """Write the page."""
    write_text(PAGE, page())


def page() -> str:
    """Return the page: a table of keys per part of a recipe."""
    return HEAD + "".join(section(place, part) for place, part in PARTS.items())


def section(place: str, part: type[Part]) -> str:
    """Return the table of a part's keys."""
    title = {"": "The whole run", "phases.0": "phases"}.get(place, place)
    about = " ".join((part.__doc__ or "").split())
    rows = [row(name, field, started(part)) for name, field in part.model_fields.items() if is_key(name)]
    return f"\n## {title}\n\n{about}\n\n| key | default | what it does |\n|---|---|---|\n{''.join(rows)}"


def is_key(name: str) -> bool:
    """Return whether a name is a key, and not a part that has a table of its own."""
    return name not in {place.partition(".")[0] for place in PARTS}


def row(name: str, field: FieldInfo, defaults: dict[str, Any]) -> str:
    """Return the row of a key; a ValueError if the schema does not describe it."""
    if not field.description:
        raise ValueError(f"{name} has no description in recipe/schema.py; write a line")
    default = "required" if field.is_required() else f"`{written(defaults.get(name, field.default))}`"
    values = choices(field)
    return f"| `{name}` | {default} | {field.description}{f' ({values})' if values else ''} |\n"


def started(part: type[Part]) -> dict[str, Any]:
    """Return the defaults that a part has once it is built, if it can be built from nothing."""
    needed = any(field.is_required() for field in part.model_fields.values())
    return {} if needed else part().model_dump(mode="json")


def choices(field: FieldInfo) -> str:
    """Return the values that a key may have, if they can be listed.

    >>> from softwarp.recipe.schema import Recipe
    >>> choices(Recipe.model_fields["precision"])
    '`fp32`, `bf16`, `fp16`'
    """
    kinds = [field.annotation, *get_args(field.annotation)]
    listed = next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())
    return ", ".join(f"`{value}`" for value in listed)


def written(value: Any) -> str:
    """Return a default as it is written in YAML.

    >>> written(None), written((0.08, 1.0)), written("adam"), written(False)
    ('null', '[0.08, 1.0]', 'adam', 'false')
    """
    return value if isinstance(value, str) else json.dumps(value)


if __name__ == "__main__":
    main()
