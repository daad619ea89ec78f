"""`softwarp compare`: finished runs side by side."""

from pathlib import Path
from typing import Annotated

import typer

from softwarp.commands.progress import note

METRICS = ("recall@1", "map@r", "knn@5", "nmi", "avg_dtp")  # more would not fit on a line


def compare(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, including those of --seeds.")],
) -> None:
    """Print finished runs side by side, in percent, with mean and deviation for several seeds.

    \b
    softwarp train loss.name=arcface --seeds 3 --output runs/arcface
    softwarp train loss.name=hist --seeds 3 --output runs/hist
    softwarp compare runs/arcface runs/hist
    """
    from rich.console import Console

    from softwarp.report.runs import read_entries, table_of

    entries = read_entries(folders)
    Console().print(table_of(entries, METRICS).terminal())
    if len({entry.judged_on() for entry in entries}) > 1:
        note("these runs were evaluated on different classes, so their figures cannot be compared")
