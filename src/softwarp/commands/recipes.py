"""`softwarp recipes` lists the recipes, `softwarp show` prints one in full."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from softwarp.data.splits import Judged
    from softwarp.recipe.schema import Recipe

Words = Annotated[
    list[str] | None,
    typer.Argument(
        help="A recipe, by name or file, and changes like phases.0.epochs=5 loss.name=arcface "
        "loss.settings.NAME=VALUE (`softwarp losses LOSS` lists the settings)."
    ),
]


Depth = Annotated[
    int | None,
    typer.Option(
        min=1, help="With --data: how many folders name the class, at most. Default: all, so the innermost."
    ),
]
HEADS = ("recipe", "data", "backbone", "loss", "epochs", "R@1")
CAPTION = "R@1: Recall@1 as published, in percent"


def recipes(
    table: Annotated[
        int | None,
        typer.Option(help="Show a table of the paper, 1 or 5, with its figures and recipes."),
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
    listed = Table(
        *heads, box=None, pad_edge=False, padding=(0, 1, 0, 0), caption=CAPTION
    )  # all names fit 80 columns
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
        Path | None, typer.Option(help="Your images: the recipe that softwarp train --data begins with.")
    ] = None,
    depth: Depth = None,
) -> None:
    """Print a recipe in full, with every default and with changes like phases.0.epochs=5."""
    from softwarp.recipe.overrides import dump_recipe

    typer.echo(dump_recipe(choose(words or [], data, None, depth)[1]), nl=False)


def choose(
    words: list[str], data: Path | None, protocol: str | None, depth: int | None = None
) -> "tuple[str, Recipe]":
    """Return a name for the run, and its recipe, from the words and options on the command line."""
    from softwarp.losses import LOSSES
    from softwarp.recipe.files import find_recipe, read_settings
    from softwarp.recipe.overrides import change_loss, override
    from softwarp.recipe.schema import parse_recipe

    if depth is not None:
        words = [*words, f"data.depth={depth}"]
    names, changes = [word for word in words if "=" not in word], [word for word in words if "=" in word]
    if len(names) + (data is not None) > 1:
        raise ValueError(
            f"give one recipe, or --data, at a time; got {' and '.join(map(str, [*names, data]))}"
        )
    if protocol not in (None, "validation", "test"):
        raise ValueError(f"--protocol is validation or test, got {protocol!r}")
    if names and names[0] in LOSSES and not Path(names[0]).is_file():
        raise ValueError(f"{names[0]} is a loss, not a recipe; use loss.name={names[0]}")
    if data is not None:
        from softwarp.training.own_images import settings_for

        name, source = data.resolve().name.removesuffix(".csv"), f"recipe for {data}"
        judged: Judged = "validation" if protocol == "validation" else "test"
        settings = settings_for(data, protocol=judged, depth=_depth(changes))
    else:
        path = find_recipe(names[0] if names else "glyphs_warped_softmax")
        stem = path.stem if path.stem != "best" else path.absolute().parent.name  # written by a study
        name, source, settings = stem, path.name, read_settings(path)
    for change in changes:
        if change.startswith("loss.name="):
            from softwarp.commands.loss_change import explain_change
            from softwarp.commands.progress import note

            loss = change.partition("=")[2]
            for line in explain_change(settings, loss):
                note(line)
            settings = change_loss(settings, loss)
            name += f"-{settings['loss']['name']}"
    settings = override(settings, changes)
    if protocol:
        settings["evaluation"] = (settings.get("evaluation") or {}) | {"split": protocol}
    return name, parse_recipe(settings, source, changes)


def protocol_of(recipe: "Recipe") -> str:
    """Return in a line which classes and images the recipe trains on, and which are judged."""
    from softwarp.data.sources import load_source

    return load_source(recipe.data.uncached(), recipe.evaluation.plan()).protocol


def _depth(changes: list[str]) -> int | None:
    """data.depth from the command line, needed to read a folder before there is a recipe."""
    from softwarp.recipe.overrides import override

    settings = override({"data": {}}, [change for change in changes if change.startswith("data.depth=")])
    depth = settings["data"].get("depth")
    if depth is not None and (not isinstance(depth, int) or depth < 1):
        raise ValueError(f"data.depth must be a whole number, at least 1; got {depth!r}")
    return depth
