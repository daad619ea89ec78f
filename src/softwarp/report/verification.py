"""A model's verification of face pairs -> table, ROC and the worst mistakes on one self-contained page."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape
from PIL import Image

from softwarp.embed_files import thumbnail_of
from softwarp.files import printable, write_json, write_text
from softwarp.metrics import roc_points
from softwarp.report.figures import roc
from softwarp.report.gallery import Tile
from softwarp.tables import Cell, Table, figure
from softwarp.verify import FARS, Verified, worst

SHOWN = 12  # mistakes of each kind
METRICS = ("accuracy", *(f"tar@far={far:g}" for far in FARS), "auc")


def pairs_table(results: Sequence[Verified], *, title: str = "") -> Table:
    """Return a row per set of pairs: accuracy with its deviation over folds, TAR at three FARs, AUC."""
    heads = ("set", "pairs", "accuracy", *(name.upper() for name in METRICS[1:]))
    return Table(heads, tuple(_table_row(each) for each in results), title=title)


def _table_row(result: Verified) -> tuple[Cell, ...]:
    metrics, deviation = result.metrics, {"accuracy": result.metrics["accuracy_std"]}
    figures = (figure(name, metrics[name], deviation.get(name)) for name in METRICS)
    return (Cell(result.pairs.name), Cell(f"{len(result.pairs.same):,}"), *map(Cell, figures))


def write_verification(
    folder: Path, results: Sequence[Verified], templates: Mapping[str, float], about: Mapping[str, Any]
) -> Path:
    """Write verification.json, roc.csv, roc.svg, pairs.csv and verification.html; return the page.

    Args:
        about: what was verified, how and by which command.
    """
    write_json(folder / "verification.json", as_json(results, templates, about))
    if results:
        curves = {each.pairs.name: roc_points(each.distances, each.pairs.same) for each in results}
        drawing = roc({name: (far.tolist(), tar.tolist()) for name, (far, tar, _) in curves.items()})
        write_text(folder / "roc.svg", str(drawing))
        points = ((name, *point) for name, curve in curves.items() for point in zip(*curve, strict=True))
        write_text(folder / "roc.csv", _csv(("set", "far", "tar", "distance"), points))
        write_text(
            folder / "pairs.csv", _csv(("set", "fold", "first", "second", "same", "distance"), _rows(results))
        )
    page = Environment(loader=PackageLoader("softwarp.report"), autoescape=select_autoescape(["jinja"]))
    page.filters["printable"] = printable
    html = page.get_template("verification.html.jinja").render(
        table=pairs_table(results) if results else None,
        figure=drawing if results else None,
        mistakes=[_mistakes(each) for each in results],
        templates=templates,
        about=about,
    )
    write_text(folder / "verification.html", html)
    return folder / "verification.html"


def as_json(
    results: Sequence[Verified], templates: Mapping[str, float], about: Mapping[str, Any]
) -> dict[str, Any]:
    """Return everything that was measured."""
    sets = {
        each.pairs.name: {
            "pairs": len(each.pairs.same),
            "same": int(each.pairs.same.sum()),
            "left_out": list(each.left_out),
            "metrics": each.metrics,
        }
        for each in results
    }
    return {**about, "sets": sets, "templates": dict(templates)}


def _rows(results: Sequence[Verified]) -> list[tuple[Any, ...]]:
    found = []
    for each in results:
        pairs, name = each.pairs, each.pairs.images.name
        assert pairs.folds is not None
        columns = (pairs.folds.tolist(), pairs.first.tolist(), pairs.second.tolist(), pairs.same.tolist())
        for fold, first, second, same, distance in zip(*columns, each.distances.tolist(), strict=True):
            found.append((pairs.name, fold, name(first), name(second), int(same), distance))
    return found


def _csv(head: Sequence[str], rows: Any) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return text.getvalue()


def _mistakes(result: Verified) -> dict[str, Any]:
    missed, taken = worst(result, SHOWN)
    kinds = {"one person taken for two": missed, "two people taken for one": taken}
    shown = {kind: [_pair(result, pair) for pair in pairs] for kind, pairs in kinds.items()}
    return {"name": result.pairs.name, "threshold": result.metrics["best_threshold"], "kinds": shown}


def _pair(result: Verified, pair: int) -> dict[str, Any]:
    places = (int(result.pairs.first[pair]), int(result.pairs.second[pair]))
    return {"tiles": [_tile(result, place) for place in places], "distance": float(result.distances[pair])}


def _tile(result: Verified, place: int) -> Tile:
    image = result.pairs.images.read(place)
    assert isinstance(image, Image.Image)
    return Tile(thumbnail_of(image), result.pairs.images.name(place))
