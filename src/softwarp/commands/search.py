"""`softwarp search`: the images of an index that are most like a query."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softwarp.commands.columns import print_columns
from softwarp.commands.index_progress import note_damage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from PIL import Image

    from softwarp.index.index import Index
    from softwarp.index.remote import RemoteIndex
    from softwarp.index.results import Neighbour


SAME = "same file as the query"


def search(
    place: Annotated[
        str, typer.Argument(metavar="INDEX", help="The folder of an index, or the URL it was pushed to.")
    ],
    queries: Annotated[list[Path], typer.Argument(metavar="QUERY", help="Images to search with.")],
    k: Annotated[int, typer.Option("-k", min=1, help="Number of images per query.")] = 10,
    box: Annotated[
        str | None, typer.Option(help="Search with this part of the query: x,y,width,height in pixels.")
    ] = None,
    where: Annotated[
        list[str] | None, typer.Option(help="Only images with class=NAME or path=GLOB; may be repeated.")
    ] = None,
    within: Annotated[
        float | None, typer.Option(min=0, help="Only images at most so far away, as distances are printed.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with the images found.")] = None,
) -> None:
    """Show the images of an index that are most like each query.

    \b
    softwarp search photos.index query.jpg
    softwarp search photos.index a.jpg b.jpg -k 5 --where class=wren --html found.html
    softwarp search photos.index street.jpg --box 120,40,200,300
    softwarp search photos.index query.jpg -k 100 --within 0.3
    softwarp search postgresql://user@host/photos query.jpg
    """
    if box is not None and len(queries) > 1:
        raise ValueError(f"--box is a part of one query, but {len(queries)} were given; search one by one")
    from softwarp.data.decode import read_image
    from softwarp.index.index import Index
    from softwarp.index.queries import parse_where
    from softwarp.index.remote import is_remote, open_remote

    # What can be wrong is named before the model is loaded, and torch with it.
    parse_where(where or ())
    index = open_remote(place) if is_remote(place) else Index.open(place)
    pictures = queries if box is None else [_cut(queries[0], box)]
    for query in queries:
        if query.is_dir():
            raise ValueError(f"{query} is a folder; search with images, like {query}/*.jpg")
        read_image(query)
    note_damage(index)
    vectors = index.model().embed(pictures)
    answers = index.search(vectors, k, where=where or (), within=within).queries
    found = [_found(index, query, answer) for query, answer in zip(queries, answers, strict=True)]
    if html is not None:
        _write_page(html, index, queries, pictures, answers, found)
    if as_json:
        _print_json(index, queries, box, within, found)
        return
    for query, vector, results in zip(queries, vectors, found, strict=True):
        _print_table(index, query, results)
        if not results:
            nearest = index.search(vector, 1, where=where or ()).rows
            typer.echo(_nothing(within, nearest[0].distance if nearest else None))
    if html is not None:
        typer.echo(f"look at them: {html}")
    elif any(found):
        typer.echo("see the images: the same command with --html found.html")


def _nothing(within: float | None, nearest: float | None) -> str:
    if within is None or nearest is None:
        return "nothing found"
    return f"nothing within {within:g}: the nearest is {nearest:.4f} away"


def _cut(query: Path, box: str) -> "Image.Image":
    from softwarp.data.crops import crop_box, parse_box
    from softwarp.data.decode import read_image

    part = parse_box(box)
    return crop_box(read_image(query), part)


def _found(index: "Index | RemoteIndex", query: Path, answer: "Sequence[Neighbour]") -> list[dict[str, Any]]:
    from softwarp.data.decode import digest_of, read_content

    digest = digest_of(read_content(query)).hex()
    return [
        {
            "rank": each.rank,
            "id": each.id,
            "path": each.path,
            "file": str(index.file(each)),
            "class": each.label,
            "distance": each.distance,
            "same_file": each.digest == digest,
        }
        for each in answer
    ]


def _print_json(
    index: "Index | RemoteIndex",
    queries: list[Path],
    box: str | None,
    within: float | None,
    found: list[list[dict[str, Any]]],
) -> None:
    import json

    answers = [
        {"query": str(query), "box": box, "results": results}
        for query, results in zip(queries, found, strict=True)
    ]
    content = {"index": index.address, "distance": index.distance, "within": within, "queries": answers}
    typer.echo(json.dumps(content, indent=2, allow_nan=False))


def _print_table(index: "Index | RemoteIndex", query: Path, results: list[dict[str, Any]]) -> None:
    from softwarp.files import printable

    typer.echo(printable(str(query)).replace("\n", "\\n"))
    heads = ["", f"{index.distance} distance", "class", "", "image"]
    rows = [
        [
            str(each["rank"]),
            f"{each['distance']:.4f}",
            each["class"] or "",
            SAME if each["same_file"] else "",
            each["path"],
        ]
        for each in results
    ]
    if not any(each["same_file"] for each in results):
        for row in (heads, *rows):
            del row[3]
    if results:
        print_columns(heads, rows, numbers=2)


def _write_page(
    path: Path,
    index: "Index | RemoteIndex",
    queries: list[Path],
    pictures: "Sequence[Path | Image.Image]",
    answers: "Sequence[Sequence[Neighbour]]",
    found: list[list[dict[str, Any]]],
) -> None:
    from softwarp.data.decode import read_image
    from softwarp.index.thumbnail import thumbnail_of
    from softwarp.report.page import Group, Tile, data_uri, write_gallery

    def tile(jpeg: bytes, name: str, label: str = "", distance: float | None = None) -> Tile:
        return Tile(data_uri(jpeg, "jpeg"), name, label, distance)

    groups = []
    for query, each, answer, results in zip(queries, pictures, answers, found, strict=True):
        head = tile(thumbnail_of(read_image(each) if isinstance(each, Path) else each), query.name)
        tiles = []
        for near, result in zip(answer, results, strict=True):
            words = [near.label, SAME if result["same_file"] else None]
            tiles.append(tile(index.picture(near), near.path, ", ".join(filter(None, words)), near.distance))
        groups.append(Group(head, {"": tiles}))
    note = f"{index.address}: {index.distance} distance"
    write_gallery(path, "Most similar images", groups, note=note)
