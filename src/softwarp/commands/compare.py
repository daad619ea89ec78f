"""`softwarp compare`: finished runs side by side."""

from collections.abc import Iterable
from os.path import commonpath
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from softwarp.repeats import Repeats
    from softwarp.tables import Table

METRICS = ("recall@1", "map@r", "nmi", "avg_dtp")  # more would not fit on a line


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

    from softwarp.repeats import read_repeats

    rows = {folder: read_repeats(folder) for folder in dict.fromkeys(folders)}
    Console().print(table(rows).terminal())
    runs = [run for row in rows.values() for run in row.runs]
    if len({(run.data_sha256, run.split, run.classes.evaluated) for run in runs}) > 1:
        text = "these runs were evaluated on different classes, so their figures cannot be compared"
        typer.secho(text, fg="yellow", err=True)


def table(rows: "dict[Path, Repeats]") -> "Table":
    """Return a row per run or set of seeds, and a row per untrained model they are compared with."""
    from softwarp.tables import Row, metric_table

    shared = _shared_folder(rows)
    metrics = [name for name in METRICS if all(name in row.mean for row in rows.values())]
    shown = []
    for folder, row in rows.items():
        name = folder.absolute().relative_to(shared).as_posix() if shared else str(folder)
        words = (name, row.runs[0].name, str(len(row.runs)))
        shown.append(Row(words, row.mean, row.deviation))
    baselines = [row.baseline for row in rows.values() if row.baseline]
    for place, baseline in enumerate(baselines):
        if baseline not in baselines[:place]:
            shown.append(Row(("before training", "", ""), baseline, ranked=False))
    return metric_table(shown, metrics, ("run", "loss", "seeds"))


def _shared_folder(folders: Iterable[Path]) -> Path | None:
    """The folder that holds them all: without it names are short enough to fit next to the figures."""
    try:
        return Path(commonpath([folder.absolute().parent for folder in folders]))
    except ValueError:  # on several drives
        return None
