"""`softwarp index duplicates`, `outliers`, `classify`, `clusters`: a table, a CSV file and a page each."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softwarp.commands.columns import print_columns
from softwarp.commands.index_progress import opened
from softwarp.commands.options import IndexFolder, finite
from softwarp.commands.progress import note
from softwarp.files import write_csv

if TYPE_CHECKING:
    from softwarp.index.classify import Calibration
    from softwarp.index.index import Index
    from softwarp.index.results import Groups, ImageGroup
    from softwarp.report.page import Group as Section
    from softwarp.report.page import Tile

Listing = tuple[Sequence[str], Sequence[Sequence[str]]]  # heads and rows

SHOWN = 20  # rows of a table
SECTIONS = 200  # sections of a page
TILES = 48  # pictures of a section

CsvFile = Annotated[Path | None, typer.Option("--csv", help="Write all rows to this file.")]
Html = Annotated[Path | None, typer.Option("--html", help="Write a page with the images.")]
NeighbourCount = Annotated[int, typer.Option("-k", min=1, help="Number of neighbours that count.")]


def duplicates(
    folder: IndexFolder,
    threshold: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Distance up to which two images are a pair. "
            "Default: half the upper quartile of distances to the nearest image.",
        ),
    ] = None,
    csv: CsvFile = None,
    html: Html = None,
) -> None:
    """List groups of images that are nearly the same."""
    with opened(folder, "nothing is written") as (index, on_event):
        found = index.duplicates(threshold, on_event=on_event)
    copies = sum(len(group.ids) - 1 for group in found.groups)
    summary = (
        f"{len(found.groups):,} groups of near-duplicates, {copies:,} of {len(index):,} images more than one "
        f"per group; {index.distance} distance up to {found.threshold:.4g}"
    )
    heads, rows = _members(found)
    _print(heads, rows, numbers=2)
    _write_csv(csv, heads, rows)
    _show_groups(index, found.groups, summary, "Near-duplicates", html)
    _close(summary, csv, html)


def clusters(
    folder: IndexFolder,
    k: NeighbourCount = 10,
    fineness: Annotated[
        float, typer.Option(min=0.01, callback=finite, help="Larger: more groups, and smaller ones.")
    ] = 4.0,
    csv: CsvFile = None,
    html: Html = None,
) -> None:
    """Sort images into groups that look alike, whatever their labels."""
    with opened(folder, "nothing is written") as (index, on_event):
        found = index.clusters(k=k, fineness=fineness, on_event=on_event)
    groups = found.groups
    summary = f"{len(groups):,} groups of {len(index):,} images"
    agreement = _agreement(index, groups)
    if agreement is not None:
        summary += f"; NMI with the labels {agreement:.3f}"
    _print(*_sizes(index, groups), numbers=2)
    _write_csv(csv, *_members(found))
    _show_groups(index, groups, summary, "Groups of similar images", html)
    _close(summary, csv, html)


def outliers(folder: IndexFolder, k: NeighbourCount = 10, csv: CsvFile = None, html: Html = None) -> None:
    """List images that are likely mislabelled: their neighbours have another label."""
    with opened(folder, "nothing is written") as (index, on_event):
        found = index.outliers(k, on_event=on_event)
    heads = ("rank", "score", "class", "suggested", "id", "image")
    rows = [
        (str(rank), f"{each.score:.3f}", each.label, each.suggested, str(each.id), each.path)
        for rank, each in enumerate(found, start=1)
    ]
    _print(heads, rows, numbers=2)
    _write_csv(csv, heads, rows)
    summary = (
        f"neighbours disagree with the label of {len(found):,} of {len(index):,} images, the surest first: "
        "a score near 1 suggests a wrong label, one near 0 classes that look alike"
    )
    if html is not None:
        sections = [
            _section(
                index, each.id, f"{each.label}: rather {each.suggested}?", *_neighbours(index, each.id, k)
            )
            for each in found.rows[:SECTIONS]
        ]
        _page(html, index, "Likely mislabelled images", sections, summary, len(found))
    _close(summary, csv, html)


def classify(
    folder: IndexFolder,
    queries: Annotated[list[Path], typer.Argument(metavar="QUERY", help="Images to name the class of.")],
    k: NeighbourCount = 10,
    false_rejection: Annotated[
        float,
        typer.Option(
            min=0, max=1, callback=finite, help="Share of images of known classes that may be given none."
        ),
    ] = 0.05,
    false_acceptance: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            callback=finite,
            help="Instead: share of images of unknown classes that may be given a class.",
        ),
    ] = None,
    csv: CsvFile = None,
    html: Html = None,
) -> None:
    """Name the class of images by their neighbours, or say that it is none of the index's classes.

    The best guess comes with its confidence: how often a guess like it is right, if half of the images are
    of classes that the index does not have. An image that is less sure than 95% of the index's own is none
    of these.
    """
    from softwarp.data.decode import digest_of, read_content, read_image
    from softwarp.index.index import Index

    index = Index.open(folder)
    for query in queries:
        read_image(query)  # a broken one is named before anything is computed
    if index.calibrated:
        note(
            "the features are calibrated on the images of this index, so these are more alike than new ones, "
            "of which more than told may be turned away; an index built with --frozen tells it right"
        )
    calibration = index.calibrate(k, false_rejection=false_rejection, false_acceptance=false_acceptance)
    answers = index.classify(queries, k, calibration=calibration)
    heads = ("confidence", "votes", "distance", "best guess", "class", "image")
    rows = [
        (
            f"{each.confidence:.2f}" if calibration.images else "unknown",
            f"{each.share:.3f}",
            f"{each.distance:.4f}",
            each.guess,
            each.label or "none of these",
            each.query,
        )
        for each in answers
    ]
    _print(heads, rows, numbers=3)
    _write_csv(csv, heads, rows)
    summary = _errors(calibration)
    digests = {digest_of(read_content(query)) for query in queries}
    if inside := len(digests & {*index.store.digests().values()}):
        summary += f"; {inside:,} of {len(queries):,} are in the index and do not vote for themselves"
    if html is not None:
        sections = [
            _answered(index, query, f"{row[4]} ({row[3]}: confidence {row[0]})", each.ids, each.distances)
            for query, row, each in zip(queries, rows, answers, strict=True)
        ]
        _page(html, index, "Classes of images", sections[:SECTIONS], summary, len(sections))
    _close(summary, csv, html)


def _errors(calibration: "Calibration") -> str:
    """What the answers are worth, in words."""
    if not calibration.images:
        return "no class has two images, so it is not known how often a guess is right, and none is refused"
    accepted = f"{calibration.false_acceptance:.1%} of unknown classes accepted"
    if calibration.false_acceptance != calibration.false_acceptance:
        accepted = "there is no other class to be taken for this one"
    return (
        f"of {calibration.images:,} images of the index, each half judged by the threshold of the other: "
        f"{calibration.false_rejection:.1%} of known ones rejected, {accepted}, "
        f"{calibration.wrong:.1%} of the accepted given another class"
    )


def _members(found: "Groups") -> Listing:
    """A row per image."""
    rows = [
        (str(each.group), f"{each.distance:.4f}", each.label or "", str(each.id), each.path) for each in found
    ]
    return ("group", "distance", "class", "id", "image"), rows


def _sizes(index: "Index", groups: Sequence["ImageGroup"]) -> Listing:
    """A row per group: its size, its most frequent label and its most typical image."""
    items = {item.id: item for item in index.items}
    rows = []
    for number, group in enumerate(groups):
        labels = Counter(items[each].label for each in group.ids)
        label, count = labels.most_common(1)[0]
        mostly = "" if label is None else f"{label} ({count / len(group.ids):.0%})"
        rows.append((str(number + 1), str(len(group.ids)), mostly, items[group.ids[0]].path))
    return ("group", "images", "mostly", "typical image"), rows


def _show_groups(
    index: "Index", groups: Sequence["ImageGroup"], summary: str, title: str, html: Path | None
) -> None:
    if html is not None:
        sections = [
            _section(index, group.ids[0], f"{len(group.ids):,} images", group.ids[1:], group.distances[1:])
            for group in groups[:SECTIONS]
        ]
        _page(html, index, title, sections, summary, len(groups))


def _agreement(index: "Index", groups: Sequence["ImageGroup"]) -> float | None:
    """NMI (arithmetic) of groups and labels; None unless there are at least two classes."""
    from sklearn.metrics import normalized_mutual_info_score

    labels = {item.id: item.label for item in index.items if item.label is not None}
    found = {number: place for place, group in enumerate(groups) for number in group.ids}
    if len(set(labels.values())) < 2:
        return None
    return float(normalized_mutual_info_score(list(labels.values()), [found[number] for number in labels]))


def _print(heads: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: int) -> None:
    """Print the first rows; the first columns are numbers."""
    if rows:
        print_columns(heads, rows[:SHOWN], numbers=numbers)
    if len(rows) > SHOWN:
        typer.echo(f"... and {len(rows) - SHOWN:,} rows more: --csv FILE writes them all")


def _write_csv(path: Path | None, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if path is not None:
        write_csv(path, [heads, *rows])


def _neighbours(index: "Index", number: int, k: int) -> tuple[list[int], list[float]]:
    row = int(index.store.rows_of([number])[0])
    ids, distances = index.nearest(index.store.vectors[row], k + 1)
    pairs = [pair for pair in zip(ids[0].tolist(), distances[0].tolist(), strict=True) if pair[0] != number]
    return [pair[0] for pair in pairs[:k]], [pair[1] for pair in pairs[:k]]


def _section(
    index: "Index", head: int, title: str, ids: Sequence[int], distances: Sequence[float]
) -> "Section":
    from softwarp.report.page import Group as Section

    (first,) = _tiles(index, [head], [None])
    return Section(first, {"": _tiles(index, ids, distances)}, title)


def _answered(
    index: "Index", query: Path, title: str, ids: Sequence[int], distances: Sequence[float]
) -> "Section":
    from softwarp.data.decode import read_image
    from softwarp.index.thumbnail import thumbnail_of
    from softwarp.report.page import Group as Section
    from softwarp.report.page import Tile, data_uri

    head = Tile(data_uri(thumbnail_of(read_image(query)), "jpeg"), query.name)
    return Section(head, {"": _tiles(index, ids, distances)}, title)


def _tiles(index: "Index", ids: Sequence[int], distances: Sequence[float | None]) -> "list[Tile]":
    from softwarp.report.page import Tile, data_uri

    shown = ids[:TILES]
    items, jpegs = index.store.items(shown), index.store.thumbnails(shown)
    return [
        Tile(
            data_uri(jpegs.get(item.id) or index.thumbnail(item.id), "jpeg"),
            item.path,
            item.label or "",
            distance,
        )
        for item, distance in zip(items, distances, strict=False)
    ]


def _page(
    path: Path, index: "Index", title: str, sections: "Sequence[Section]", summary: str, total: int
) -> None:
    from softwarp.report.page import write_gallery

    shown = f"; the first {len(sections):,} of {total:,}" if len(sections) < total else ""
    write_gallery(path, title, sections, note=f"{index.folder}: {summary}{shown}")


def _close(summary: str, csv: Path | None, html: Path | None) -> None:
    typer.echo(summary)
    for path in filter(None, (csv, html)):
        typer.echo(f"written: {path}")
    if html is None:
        typer.echo("see the images: the same command with --html page.html")
