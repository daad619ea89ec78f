"""`softwarp compare`: finished runs side by side."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

METRICS = ("recall@1", "map@r", "nmi", "avg_dtp")  # more would not fit beside each other


def compare(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, also those of --seeds.")],
) -> None:
    """Print finished runs side by side, in percent; those of several seeds with mean and deviation.

    \b
    softwarp train loss.name=arcface --seeds 3 --output runs/arcface
    softwarp train loss.name=hist --seeds 3 --output runs/hist
    softwarp compare runs/arcface runs/hist
    """
    from rich.console import Console

    rows = {str(folder): read(folder) for folder in folders}
    Console().print(table(rows))
    judged = {(run["data_sha256"], run["split"], run["classes"]["evaluated"]) for run in _runs(rows)}
    if len(judged) > 1:
        text = "these runs were not all evaluated on the same classes: their figures cannot be compared"
        typer.secho(text, fg="yellow", err=True)


def read(folder: Path) -> dict[str, Any]:
    """Return mean, deviation (empty for one seed) and results of a run or a set of seeds."""
    if (folder / "seeds.json").exists():
        summary: dict[str, Any] = json.loads((folder / "seeds.json").read_text())
        return summary
    if not (folder / "result.json").exists():
        raise ValueError(
            f"{folder} holds no finished run: it has neither result.json nor seeds.json; the command that "
            "started it goes on with it"
        )
    result = json.loads((folder / "result.json").read_text())
    if "metrics" not in result:
        raise ValueError(f"{folder} is no run, but holds some: name them one by one")
    return {"mean": result["metrics"], "deviation": {}, "runs": [result]}


def table(rows: dict[str, dict[str, Any]]) -> "Table":
    """Return one row a run; the best mean of each column is bold, AvgDTP apart."""
    from rich.table import Column, Table

    metrics = [name for name in METRICS if all(row["mean"].get(name) is not None for row in rows.values())]
    columns = [Column("run", overflow="fold"), Column("loss", overflow="fold")]
    columns += [Column(head, justify="right", no_wrap=True) for head in ("seeds", *metrics)]
    shown = Table(*columns)
    best = {name: max(row["mean"][name] for row in rows.values()) for name in metrics if name != "avg_dtp"}
    for folder, row in rows.items():
        cells = [_cell(row, name, bold=row["mean"][name] == best.get(name)) for name in metrics]
        shown.add_row(folder, row["runs"][0]["name"], str(len(row["runs"])), *cells)
    return shown


def _cell(row: dict[str, Any], name: str, *, bold: bool) -> str:
    factor, digits = (1, 2) if name == "avg_dtp" else (100, 1)
    text = f"{factor * row['mean'][name]:.{digits}f}"
    if row["deviation"]:
        text += f" ± {factor * row['deviation'][name]:.{digits}f}"
    return f"[bold]{text}[/bold]" if bold else text


def _runs(rows: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [run for row in rows.values() for run in row["runs"]]
