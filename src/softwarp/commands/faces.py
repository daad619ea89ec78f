"""`softwarp faces`: packs faces for training, and draws pairs of people that training holds out."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softwarp.commands.progress import note, say

if TYPE_CHECKING:
    from softwarp.data.readers import ImageTable

app = typer.Typer(
    help="Pack faces into shards for training, and draw pairs to verify.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Source = Annotated[
    Path,
    typer.Argument(metavar="FOLDER", help="FOLDER/PERSON/IMAGE, a CSV file, or a folder with train.rec."),
]
COLUMNS = ("fold", "first", "second", "same")
Depth = Annotated[int | None, typer.Option(min=1, help="Depth of the people's folders, like data.depth.")]


@app.command()
def pack(
    source: Source,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the shards.")],
    shard_mb: Annotated[int, typer.Option(min=1, help="Size of a shard in MB.")] = 256,
    depth: Depth = None,
) -> None:
    """Pack a folder of faces into tar shards (webdataset) that training reads as a stream.

    Files are kept as they are; those that cannot be decoded are left out and named. Train with
    data.name=shards data.root=OUTPUT. A quarter of the people is held out, the same that training on the
    folder would hold out.
    """
    from softwarp.data.packing import pack_faces
    from softwarp.events import bars
    from softwarp.tables import counted

    table = _table(source, depth)
    with bars() as progress:
        check = progress.add_task("checking", total=len(table.paths))
        write = progress.add_task("packing", total=len(table.paths))
        written, broken = pack_faces(
            table,
            output,
            shard_size=shard_mb << 20,
            checked=lambda: progress.advance(check),
            advance=lambda: progress.advance(write),
        )
        progress.update(write, total=written["images"])
    for image in broken:
        say(f"left out: {image.reason}")
    images, shards, size = written["images"], written["shards"], written["bytes"] / 1e6
    held = f"{images:,} images of {len(table.names):,} people"
    say(f"{held}, {size:,.1f} MB, {counted(shards, 'shard')}: {output}")


@app.command()
def pairs(
    source: Source,
    output: Annotated[Path, typer.Option("--output", "-o", help="The list of pairs, a .tsv file.")],
    count: Annotated[int, typer.Option(min=4, help="Number of pairs, half of them of one person.")] = 6000,
    folds: Annotated[int, typer.Option(min=2, help="Number of folds; no person is in two.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Seed by which pairs are drawn.")] = 0,
    depth: Depth = None,
) -> None:
    """Draw pairs to verify, of the people that training with --protocol test holds out from this folder."""
    from softwarp.data.packing import draw_pairs
    from softwarp.files import write_csv

    table = _table(source, depth)
    if table.pack is not None:
        raise ValueError(f"{source} holds no image files; draw pairs from the folder that it was packed from")
    rows = draw_pairs(table, count=count, folds=folds, seed=seed)
    write_csv(output, [COLUMNS, *rows], delimiter="\t")
    drawn = f"{len(rows):,} pairs" + (f" of {count:,} asked for" if len(rows) < count else "")
    say(f"{drawn} in {folds} folds: {output}; verify with --pairs {output} --images {table.root}")


def _table(source: Path, depth: int | None) -> "ImageTable":
    from softwarp.data.tables import layout_of, read_table

    table = read_table(layout_of(source), source, depth=depth)
    for line in table.notes:
        note(line)
    return table
