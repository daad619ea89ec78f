"""`softwarp data`: downloads data sets and checks them."""

import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softwarp.commands.options import Depth
from softwarp.commands.progress import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.progress import Progress

    from softwarp.data.check import Prospect
    from softwarp.data.duplicates import Looks
    from softwarp.data.readers import ImageTable

COPIES = 20  # pairs that are named of each kind
LARGEST, SMALLEST = 12, 6  # classes that are shown, if there are many

app = typer.Typer(
    help="Download data sets, and check what training will do with your images.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

To = Annotated[Path, typer.Option("--to", help="Folder in which the data set's folder is created.")]
Address = Annotated[str | None, typer.Option(help="A mirror with the same archive.")]


@app.command()
def cub(to: To, address: Address = None) -> None:
    """Download CUB-200-2011 (11,788 images of birds, 1.1 GB) from its authors.

    The same command resumes a transfer that was stopped.
    """
    _fetch("cub", to, address)


@app.command()
def sop(to: To, address: Address = None) -> None:
    """Download Stanford Online Products (120,053 images, 2.9 GB) from its authors.

    The same command resumes a transfer that was stopped.
    """
    _fetch("sop", to, address)


@app.command()
def cars() -> None:
    """Explain how to get Cars196, which no longer has an official address."""
    from softwarp.data.downloads import CARS

    typer.echo(CARS)


@app.command()
def check(
    root: Annotated[Path, typer.Argument(help="The data's folder, or a CSV file.")],
    name: Annotated[
        str | None,
        typer.Option(
            help="Layout: cub, cars, sop, inshop, folder, csv, records or shards. Default: the last four by "
            "what is there."
        ),
    ] = None,
    depth: Depth = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also find images that look the same, such as resized ones.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Images decoded at a time. Default: one per core.")
    ] = None,
) -> None:
    """Show what training will do with these images, and decode each of them once.

    Lists classes, splits, which classes or images are held out, what is left out, which images cannot be
    read, and which are copies of others under two labels or in two splits. The exit code is 1 if training
    would refuse or an image is broken; copies do not change it.
    """
    from softwarp.data.check import check_images, foresee
    from softwarp.data.duplicates import Looks
    from softwarp.data.tables import TABLES, layout_of, read_table

    layout = name or layout_of(root)
    try:
        table = read_table(layout, root, depth=depth)
    except (ValueError, OSError) as error:
        if layout not in TABLES or not root.exists():
            raise
        say(f"training would refuse: {error}")
        raise typer.Exit(1) from None
    with _progress("{task.completed:,.0f} of {task.total:,.0f}") as progress:
        task = progress.add_task("decoding", total=len(table.paths))
        looks = Looks(len(table.paths), deep=deep)
        broken = check_images(table, workers=workers, advance=lambda: progress.advance(task), looks=looks)
    test, validation = (foresee(table, broken, split) for split in ("test", "validation"))
    _show(table, test)
    for note in table.notes:
        say(note)
    if test.note:
        say(test.note)
    for image in broken:
        say(f"broken: {image.reason}")
    if broken:
        say(f"broken images: {len(broken):,}; training skips them, so replace or remove them")
    _show_copies(table, looks, deep)
    for prospect in (test, validation):
        say(f"--protocol {prospect.split}: {_what_training_does(prospect)}")
    if test.refusal or broken:
        raise typer.Exit(1)
    say("every image that is taken can be read; ready for training")
    say(f"next: {_next(layout, root, depth)}")


def _next(layout: str, root: Path, depth: int | None) -> str:
    """The command that trains on these images, with every option that it needs."""
    from softwarp.data.csv_file import find_csv
    from softwarp.data.tables import layout_of

    if layout == "csv":
        root = find_csv(root)
    if layout != layout_of(root):
        return f"a recipe for {layout} (softwarp recipes), with data.root={shlex.quote(str(root))}"
    words = ["softwarp", "train", "--data", str(root), *(["--depth", str(depth)] if depth else [])]
    return shlex.join(words)


def _fetch(name: str, to: Path, address: str | None) -> None:
    from softwarp.data.downloads import download, is_there

    if is_there(name, to):
        typer.echo(f"{name} is already in {to}")
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


def _show(table: "ImageTable", test: "Prospect") -> None:
    """Print the counts and a table of classes; if there are many, the largest and the smallest."""
    from rich.console import Console

    from softwarp.data.check import roles, sizes
    from softwarp.tables import Cell, counted
    from softwarp.tables import Table as Rows

    counts, what = sizes(table), roles(table, test)
    order = sorted(counts, key=lambda name: (-counts[name], name))
    rows = [(name, f"{counts[name]:,}", what[name]) for name in order]
    if len(rows) > LARGEST + SMALLEST + 1:
        between = rows[LARGEST:-SMALLEST]
        rows[LARGEST:-SMALLEST] = [(f"... {len(between):,} more classes", "", "")]
    cells = tuple(tuple(Cell(text) for text in row) for row in rows)
    Console().print(Rows(("class", "images", "for"), cells).terminal())
    splits = Counter(table.splits or ())
    parts = [counted(len(table.paths), "image"), counted(len(table.names), "class", "classes")]
    parts += [f"{split} {count:,}" for split, count in splits.items()] or ["no splits"]
    say(", ".join(parts))
    single = [name for name in order if counts[name] == 1]
    if single:
        say(f"classes with a single image, so nothing to find: {len(single):,} ({_some(single)})")


def _show_copies(table: "ImageTable", looks: "Looks", deep: bool) -> None:
    """Name images that are copies of others where that spoils training or what it reports."""
    from softwarp.data.duplicates import alike, identical

    found = {"identical": identical(table, looks)}
    plain = 0
    if deep:
        found["nearly identical"], plain = alike(table, looks)
    for how, copies in found.items():
        for pairs, where, cure in (
            (copies.labels, "under two labels", "keep each under the right one"),
            (copies.splits, "in two splits", "keep each in one, or what is judged was trained on"),
        ):
            for one, other in pairs[:COPIES]:
                say(f"{how} {where}: {one} and {other}")
            if len(pairs) > COPIES:
                say(f"... and {len(pairs) - COPIES:,} more")
            if pairs:
                look = "look at them, and " if how != "identical" else ""
                say(f"{how} images {where}: {len(pairs):,}; {look}{cure}")
        if copies.others:
            say(f"{how} images of one class: {copies.others:,}; they find each other, which flatters")
    if plain:
        say(f"images of nearly one tone, not compared: {plain:,}")


def _what_training_does(prospect: "Prospect") -> str:
    trained, judged = prospect.trained, prospect.judged
    if prospect.refusal or trained is None or judged is None:
        return f"training would refuse: {prospect.refusal}"
    if prospect.closed:
        return prospect.protocol
    return (
        f"trains on {len(trained.classes):,} classes ({trained.images:,} images), open set: is judged on "
        f"{len(judged.classes):,} held-out classes ({judged.images:,} images): {_some(judged.classes)}"
    )


def _some(names: "Sequence[str]") -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


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
