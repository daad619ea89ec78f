"""A model's verification of face pairs -> table, ROC and the worst mistakes on one self-contained page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from softwarp.faces.verify import FARS, Verified, worst
from softwarp.figures import as_csv
from softwarp.files import write_json, write_text
from softwarp.metrics import roc_points
from softwarp.report.figures import roc
from softwarp.report.page import Group, Section, Tile, write_page
from softwarp.report.pictures import thumbnail
from softwarp.tables import Cell, Table, figure

SHOWN = 12  # mistakes of each kind
SIDE = 112  # pixels


def pairs_table(results: Sequence[Verified], *, title: str = "") -> Table:
    """Return a row per set of pairs: accuracy with its deviation over folds, TAR at three FARs, AUC.

    TAR is there twice: on the ROC of all pairs, and fold by fold.
    """
    whole, by_fold = (f"TAR@{far:g}" for far in FARS), (f"fold TAR@{far:g}" for far in FARS)
    heads = ("set", "pairs", "accuracy", *whole, *by_fold, "AUC")
    return Table(heads, tuple(_table_row(each) for each in results), title=title)


def _table_row(result: Verified) -> tuple[Cell, ...]:
    metrics, same = result.metrics, result.pairs.same
    shown = (
        figure(name, metrics[name]) if far * (~same).sum() >= 1 else "-"
        for kind in ("tar", "fold_tar")
        for far in FARS
        for name in [f"{kind}@far={far:g}"]
    )
    pairs = f"{len(same):,}" + (f" of {result.listed:,}" if result.listed > len(same) else "")
    accuracy = figure("accuracy", metrics["accuracy"], metrics["accuracy_std"])
    return tuple(map(Cell, (result.pairs.name, pairs, accuracy, *shown, figure("auc", metrics["auc"]))))


def write_verification(
    folder: Path, results: Sequence[Verified], templates: Mapping[str, float], about: Mapping[str, Any]
) -> Path:
    """Write verification.json, pairs.csv and verification.html with its figures; return the page.

    Args:
        about: what was verified, how and by which command.
    """
    write_json(folder / "verification.json", as_json(results, templates, about))
    parts = []
    if results:
        write_text(folder / "pairs.csv", as_csv(_rows(results)))
        parts = [_figures(results, about), *(part for each in results for part in _mistakes(each))]
    if templates:
        cells = tuple((Cell(name), Cell(_figure(value))) for name, value in templates.items())
        parts.append(Section(title="Templates", tables=[Table(("", "value"), cells)]))
    page = folder / "verification.html"
    write_page(page, f"Verification: {about['model']}", parts, note=f"Made by {about['command']}")
    return page


def _figures(results: Sequence[Verified], about: Mapping[str, Any]) -> Section:
    curves = {
        each.pairs.name: tuple(part.tolist() for part in roc_points(each.distances, each.pairs.same))
        for each in results
    }
    return Section(
        title="Pairs",
        tables=[pairs_table(results)],
        figures=[roc("roc", curves)],
        note="Percent. Accuracy: mean ± deviation over folds, each judged by the threshold that is best on "
        "the others. TAR@0.1: same pairs accepted when a tenth of the different pairs is, on the ROC of all "
        "pairs. fold TAR@0.1: the mean over folds, at the threshold that accepts a tenth of the different "
        "pairs of the others, as in insightface. A dash: too few pairs for that FAR. Pairs with an image "
        "that cannot be read are left out. Embeddings are the "
        f"mean of those of an image and its mirror image; distance: {about['distance']}.",
    )


def _figure(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{100 * value:.2f}"


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


def _rows(results: Sequence[Verified]) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for each in results:
        pairs, name = each.pairs, each.pairs.images.name
        assert pairs.folds is not None
        columns = (pairs.folds.tolist(), pairs.first.tolist(), pairs.second.tolist(), pairs.same.tolist())
        found += (
            {"set": pairs.name, "fold": fold, "first": name(first), "second": name(second)}
            | {"same": int(same), "distance": distance}
            for fold, first, second, same, distance in zip(*columns, each.distances.tolist(), strict=True)
        )
    return found


def _mistakes(result: Verified) -> list[Section]:
    missed, taken = worst(result, SHOWN)
    threshold = result.metrics["best_threshold"]
    text = f"The worst of them, at the threshold {threshold:.4g} that is best for all pairs."
    return [
        Section(
            title=f"{result.pairs.name}: {kind}",
            text=text if pairs else "None.",
            groups=[_pair(result, pair) for pair in pairs],
            small=False,
            pairs=True,
        )
        for kind, pairs in {"one person taken for two": missed, "two people taken for one": taken}.items()
    ]


def _pair(result: Verified, pair: int) -> Group:
    first, second = int(result.pairs.first[pair]), int(result.pairs.second[pair])
    other = _tile(result, second, float(result.distances[pair]))
    return Group(_tile(result, first), {"": [other]})


def _tile(result: Verified, place: int, distance: float | None = None) -> Tile:
    image = result.pairs.images.read(place)
    assert isinstance(image, Image.Image)
    return Tile(thumbnail(image, SIDE), result.pairs.images.name(place), distance=distance)
