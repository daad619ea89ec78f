"""docs/recipe_keys.md: every key of a recipe has a row, and the page is made from the schema."""

from pathlib import Path

import pytest
from pydantic import Field
from recipe_docs import page, row

from softwarp.recipe.files import find_recipe, read_recipe
from softwarp.recipe.part import Part
from softwarp.recipe.schema import PARTS

PAGE = (Path(__file__).parents[2] / "docs" / "recipe_keys.md").read_text()


def test_the_page_is_made_from_the_schema():
    assert page() == PAGE, "run make docs"


def test_every_key_has_a_row_and_a_line():
    """The keys of a recipe as it is written in full, so that no part of it is left out."""
    recipe = read_recipe(find_recipe("cub_lite")).model_dump(mode="json")
    keys = {
        "The whole run": {key for key, value in recipe.items() if key not in PARTS and key != "phases"},
        **{
            name: set(recipe[name])
            for name in ("data", "model", "loss", "batches", "optimizer", "evaluation")
        },
        "phases": set(recipe["phases"][0]),
    }
    keys["loss"] |= {"code"}  # written only with a loss of one's own
    assert sum(map(len, keys.values())) > 70
    for title, names in keys.items():
        section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| `")]
        assert {cells[0].strip("| `") for cells in rows} == names, title
        assert all(len(cells[2].split()) > 1 for cells in rows), title


def test_a_key_without_a_line_is_an_error():
    class Strange(Part):
        twist: int = 1
        turn: int = Field(1, description="how often it turns")

    fields = Strange.model_fields
    assert row("turn", fields["turn"], {}) == "| `turn` | `1` | how often it turns |\n"
    with pytest.raises(ValueError, match="twist"):
        row("twist", fields["twist"], {})
