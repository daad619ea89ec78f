"""Options that several commands share."""

import math
from pathlib import Path
from typing import Annotated

import typer

Budget = Annotated[
    str | None,
    typer.Option(
        help="Trials and epochs that fit into this time for one worker, like 10m or 2h: fewer trials first, "
        "down to 5 unless you give their number, then fewer epochs.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")]
Storage = Annotated[
    str | None,
    typer.Option(help="Database in which machines share a search, like postgresql://USER@HOST/NAME."),
]
Depth = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="How many folders name the class of your own images, at most. Default: all, so the innermost.",
    ),
]
Backbone = Annotated[
    str | None,
    typer.Option(
        help="In place of RUN: a network by its name, or auto: the one here that suits the classes best."
    ),
]
IndexFolder = Annotated[Path, typer.Argument(metavar="INDEX", help="The folder of an index.")]


def model_and_images(model: str, images: list[Path], backbone: str | None) -> tuple[str, list[Path]]:
    """Return the model and the images; with --backbone the first word, too, is of the images."""
    if backbone is None:
        if not images:
            raise ValueError(f"which images? softwarp ... {model} FOLDER, or --backbone NAME {model}")
        return model, images
    images = [Path(model), *images]
    if (images[0] / "recipe.yaml").exists():
        raise ValueError(f"{model} is a run, and --backbone names another model; omit one")
    return backbone, images


def finite(value: float | None) -> float | None:
    """Return the number; refuse nan and inf, which pass every comparison with a bound, or none."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a number to work with; give a finite one.")
    return value
