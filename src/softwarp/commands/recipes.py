"""`softwarp recipes` lists the recipes, `softwarp show` prints one in full."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softwarp.commands.options import Depth
from softwarp.commands.progress import note

if TYPE_CHECKING:
    from softwarp.data.readers import ImageTable as ImageTable
    from softwarp.recipe.schema import Recipe

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RECIPE KEY=VALUE",
        help="A recipe, by name or file, and changes like phases.0.epochs=5 loss.name=arcface "
        "or loss.name=my_loss.py:MyLoss, loss.settings.NAME=VALUE (listed by `softwarp losses LOSS`).",
    ),
]

HEADS = ("recipe", "data", "backbone", "loss", "epochs", "R@1")
CAPTION = "R@1: Recall@1 as published, in percent"


def recipes(
    table: Annotated[
        int | None,
        typer.Option(help="Show a table of the paper, 1, 2 or 5, with its figures and recipes."),
    ] = None,
) -> None:
    """List the recipes that ship with softwarp."""
    if table is not None:
        from softwarp.commands.paper_table import show_table

        show_table(table)
        return
    from rich.console import Console
    from rich.table import Column, Table

    from softwarp.recipe.files import find_recipe, read_recipe, recipe_names

    heads = [Column(head, no_wrap=head in ("recipe", "loss"), overflow="fold") for head in HEADS]
    # All names fit 80 columns.
    listed = Table(*heads, box=None, pad_edge=False, padding=(0, 1, 0, 0), caption=CAPTION)
    for name in recipe_names():
        recipe = read_recipe(find_recipe(name))
        epochs = "+".join(str(phase.epochs) for phase in recipe.phases)
        known = str(recipe.paper.get("published", {}).get("recall@1", ""))
        listed.add_row(
            name, recipe.data.name, recipe.model.backbone.partition(".")[0], recipe.loss.name, epochs, known
        )
    Console().print(listed)


def show(
    words: Words = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Your images: print the recipe that train --data begins with."),
    ] = None,
    depth: Depth = None,
) -> None:
    """Print a recipe in full, with every default and with changes like phases.0.epochs=5."""
    from softwarp.recipe.overrides import dump_recipe

    recipe = recipe_of_words(words or [], data, None, depth)[1]
    if data is not None and not any(word.startswith("model.") for word in words or []):
        from softwarp.training.networks import networks_at_hand

        if others := [name for name in networks_at_hand() if name != recipe.model.backbone]:
            note(
                f"the recipe with {recipe.model.backbone}; train --data takes the best of this network and "
                f"{', '.join(others)}"
            )
    typer.echo(dump_recipe(recipe), nl=False)


def recipe_of_words(
    words: list[str],
    data: Path | None,
    protocol: str | None,
    depth: int | None = None,
    table: "ImageTable | None" = None,
) -> "tuple[str, Recipe]":
    """Return a name for the run, and its recipe, from the words and options on the command line."""
    from softwarp.recipe.files import read_settings
    from softwarp.recipe.load import DEFAULT, changed, find_named, run_name

    if depth is not None:
        words = [*words, f"data.depth={depth}"]
    names, changes = [word for word in words if "=" not in word], [word for word in words if "=" in word]
    if len(names) + (data is not None) > 1:
        raise ValueError(
            f"give one recipe, or --data, at a time; got {' and '.join(map(str, [*names, data]))}"
        )
    if data is not None:
        from softwarp.training.own_recipe import recipe_for

        recipe = recipe_for(data, changes, split=protocol, table=table, tell=note)
        return run_name(Path(data.resolve().name.removesuffix(".csv")), changes), recipe
    path = find_named(names[0] if names else DEFAULT)
    recipe = changed(read_settings(path), changes, source=path.name, split=protocol, tell=note)
    return run_name(path, changes), recipe
