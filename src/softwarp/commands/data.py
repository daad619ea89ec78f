"""`softwarp data`: fetch data sets and check them."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.progress import Progress

    from softwarp.data.tables import Table

app = typer.Typer(
    help="Fetch data sets, and check that all images can be read.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

To = Annotated[Path, typer.Option("--to", help="Folder that gets the data set's own folder.")]
Address = Annotated[str | None, typer.Option(help="A mirror with the same archive.")]


@app.command()
def cub(to: To, address: Address = None) -> None:
    """Fetch CUB-200-2011 (11,788 images of birds, 1.1 GB) from its authors.

    A run that was stopped goes on where it was when it is repeated.
    """
    _fetch("cub", to, address)


@app.command()
def sop(to: To, address: Address = None) -> None:
    """Fetch Stanford Online Products (120,053 images, 2.9 GB) from its authors.

    A run that was stopped goes on where it was when it is repeated.
    """
    _fetch("sop", to, address)


@app.command()
def cars() -> None:
    """Say how to get Cars196, which has no official address any more."""
    from softwarp.data.downloads import CARS

    typer.echo(CARS)


@app.command()
def check(
    root: Annotated[Path, typer.Argument(help="The data's folder, or a CSV file.")],
    name: Annotated[
        str | None, typer.Option(help="Layout: cub, cars, sop, inshop, folder or csv; else by what ROOT is.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Images decoded at a time; else one for each core.")
    ] = None,
) -> None:
    """Decode every image once; list those that cannot be read and exit with 1 if there are any."""
    from softwarp.data.check import check_images
    from softwarp.data.tables import read_table

    table = read_table(name or ("csv" if root.is_file() else "folder"), root)
    with _progress("{task.completed:,.0f} of {task.total:,.0f}") as progress:
        task = progress.add_task("decoding", total=len(table.paths))
        broken = check_images(table, workers=workers, advance=lambda: progress.advance(task))
    for image in broken:
        typer.echo(f"broken: {image.reason}")
    typer.echo(_counts(table))
    if broken:
        typer.echo(f"{len(broken):,} broken; replace or remove them")
        raise typer.Exit(1)
    typer.echo("all can be read")


def _fetch(name: str, to: Path, address: str | None) -> None:
    from softwarp.data.downloads import download, is_there

    if is_there(name, to):
        typer.echo(f"{name} is in {to} already")
        return
    with _progress("{task.percentage:>3.0f}%") as progress:
        task = progress.add_task("connecting", total=None)
        folder = download(
            name,
            to,
            address=address,
            progress=lambda step, done, total: progress.update(
                task, description=step, completed=done, total=total
            ),
        )
    typer.echo(f"{name}: {folder}")


def _counts(table: "Table") -> str:
    splits = Counter(table.splits or ())
    parts = [f"{len(table.paths):,} images", f"{len(table.names):,} classes"]
    parts += [f"{split} {count:,}" for split, count in splits.items()] or ["no splits"]
    return ", ".join(parts)


def _progress(counter: str) -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn(counter),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
