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
IndexFolder = Annotated[Path, typer.Argument(metavar="INDEX", help="The folder of an index.")]


def finite(value: float | None) -> float | None:
    """Return the number; refuse nan and inf, which pass every comparison with a bound, or none."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a number to work with; give a finite one.")
    return value
