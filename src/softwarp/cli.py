"""Command words -> typed functions: parsing, printing, exit codes, nothing else.

Heavy imports stand inside the commands, so that `softwarp --help` answers at once.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table

app = typer.Typer(
    name="softwarp",
    help="Deep metric learning with Realigned Softmax Warping.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line; what the user can mend is one line and exit code 2, never a traceback."""
    try:
        app()
    except (ValueError, OSError) as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        sys.exit(2)


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Show the version and stop.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"softwarp {installed('softwarp')}")
        raise typer.Exit


@app.command()
def demo(
    output: Annotated[
        Path, typer.Option(help="Folder for the three runs, result.json and report.html.")
    ] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(min=0, help="Decides initial weights, batches and clustering.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few classes and epochs: half a minute, poor figures.")
    ] = False,
) -> None:
    """Train three losses on glyphs and compare them on characters that none of them saw.

    Warped softmax, Euclidean softmax and ProxyNCA++ get the same network, batches and budget. Needs no
    download and takes about three minutes on two cores.
    """
    from rich.console import Console

    from softwarp.studies.demo import run_demo

    with _progress() as progress:
        result = run_demo(output, seed=seed, quick=quick, progress=progress)
    Console().print(_table(result))
    typer.echo(f"report: {output / 'report.html'}")


def _table(result: dict[str, Any]) -> "Table":
    from rich.table import Table

    table = Table(title=result["title"], caption=result["caption"])
    table.add_column("loss")
    for name in result["columns"].values():
        table.add_column(name, justify="right")
    for row in result["rows"]:
        table.add_row(row["loss"], *row["cells"])
    return table


def _progress() -> "Progress":
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
