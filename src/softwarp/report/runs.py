"""Finished runs -> the parts of a report: tables, curves, answers, confusions, maps, geometry, recipes."""

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os.path import commonpath
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from softwarp.metrics import geometry_metrics, nearest_neighbours, retrieval_per_query
from softwarp.metrics.checks import on_unit_sphere
from softwarp.overrides import write_out
from softwarp.repeats import Repeats, read_repeats
from softwarp.report.figures import curves, thumbnail_map
from softwarp.report.model_card import public_settings
from softwarp.report.page import Group, Part, Tile
from softwarp.report.pictures import Show, pictures_of
from softwarp.runs import Item, Run, deciding_settings
from softwarp.tables import Cell, Row, Table, metric_table

SHOWN = 4  # runs whose answers and maps are shown, the best by MAP@R
NEIGHBOURS = 10
QUERIES = {"best": 2, "median": 2, "worst": 4}
PAIRS = 6  # of confused classes
FACES = 8  # images of each of them
MAPPED, EACH = 12, 16  # classes on a map, and images of each
LARGE, SMALL = 80, 28  # pixels of pictures
METRICS = ("recall@1", "recall@2", "recall@4", "recall@8", "map@r", "r_precision", "nmi", "avg_dtp")


@dataclass(frozen=True)
class Entry:
    """A run, or runs that differ only in their seeds."""

    title: str
    runs: tuple[Run, ...]
    repeats: Repeats

    def judged_on(self) -> tuple[str, str, int]:
        """Return what tells whether two may be compared."""
        first = self.repeats.runs[0]
        return first.data_sha256, first.split, first.classes.evaluated


def read_entries(folders: Iterable[Path]) -> list[Entry]:
    """Return the finished runs in these folders; a folder with a run per seed is one entry."""
    places = list(dict.fromkeys(folders))
    entries = []
    for folder, title in zip(places, short_titles(places), strict=True):
        repeats = read_repeats(folder)
        several = (folder / "seeds.json").is_file()
        own = [folder / f"seed-{each.seed}" if several else folder for each in repeats.runs]
        entries.append(Entry(title, tuple(map(Run, own)), repeats))
    return entries


def short_titles(folders: Sequence[Path]) -> list[str]:
    """Return the folders' names without the path that they share."""
    try:
        shared = Path(commonpath([folder.absolute().parent for folder in folders]))
    except ValueError:  # none, or on several drives
        return [str(folder) for folder in folders]
    return [folder.absolute().relative_to(shared).as_posix() for folder in folders]


def table_of(entries: Sequence[Entry], metrics: Sequence[str]) -> Table:
    """Return a row per entry, and a row per untrained model they are compared with."""
    some = [name for name in metrics if all(name in entry.repeats.mean for entry in entries)]
    rows = []
    for entry in entries:
        words = (entry.title, entry.repeats.runs[0].name, str(len(entry.runs)))
        rows.append(Row(words, entry.repeats.mean, entry.repeats.deviation))
    baselines = [entry.repeats.baseline for entry in entries if entry.repeats.baseline]
    for place, baseline in enumerate(baselines):
        if baseline not in baselines[:place]:
            rows.append(Row(("before training", "", ""), baseline, ranked=False))
    return metric_table(rows, some, ("run", "loss", "seeds"))


def run_parts(entries: Sequence[Entry]) -> list[Part]:
    """Return the parts of all entries, those that were judged on the same classes together."""
    groups: dict[tuple[str, str, int], list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.judged_on(), []).append(entry)
    parts = []
    for number, group in enumerate(groups.values(), 1):
        parts += _group_parts(group, "" if len(groups) == 1 else f"{number}-")
    return parts


def _group_parts(entries: Sequence[Entry], prefix: str) -> list[Part]:
    first = entries[0].repeats.runs[0]
    data = entries[0].runs[0].recipe().data.name
    title = f"{data}: {first.classes.evaluated:,} {first.split} classes"
    seeds = "Mean and deviation over seeds. " * any(len(entry.runs) > 1 for entry in entries)
    results = Part(
        title=f"Results on {title}",
        text=f"Trained on {first.images.train:,} images of {first.classes.train:,} classes, judged on "
        f"{first.images.evaluated:,} images of {first.classes.evaluated:,} other classes.",
        tables=[table_of(entries, METRICS)],
        note=f"Percentages; {seeds}AvgDTP is the mean distance from training embeddings to their own proxy, "
        "on the unit sphere for losses that compare by cosine. The best of a column is bold.",
    )
    histories = {entry.title: [run.history() for run in entry.runs] for entry in entries}
    training = Part(
        title="Training",
        figures=[curves(f"{prefix}curves", histories)],
        note="The warped softmax pushes embeddings outward inside the radius alpha and pulls them back beyond "
        "it, so their mean distance to the proxy settles near alpha. Values of different losses cannot be "
        "compared.",
        level=3,
    )
    trained = any(row for seeds in histories.values() for row in seeds)
    parts = [results, *([training] if trained else [])]
    ranked = sorted(entries, key=lambda entry: -entry.repeats.mean["map@r"])
    views = {entry.title: view for entry in ranked if (view := View.of(entry.runs[0])) is not None}
    return [
        *parts,
        *(_space_parts(views, prefix, len(entries)) if views else [_without_embeddings()]),
        *_geometry([entry for entry in entries if entry.title in views]),
        _recipes(entries),
    ]


@dataclass(frozen=True)
class View:
    """What a run retrieves: of each query, the nearest images and the MAP@R."""

    run: Run
    embeddings: Tensor
    labels: Tensor
    items: list[Item]
    searched_labels: Tensor
    searched_items: list[Item]
    nearest: Tensor  # [N, K]
    values: Tensor  # [N]; NaN for a query whose class has no other image

    @classmethod
    def of(cls, run: Run) -> "View | None":
        """Return the view of a run, None if its embeddings were not kept."""
        if not (run.folder / "embeddings.safetensors").is_file():
            return None
        arrays, distance = run.load_embeddings(), run.result().distance
        gallery, embeddings = arrays.get("gallery"), arrays["embeddings"]
        found = len(embeddings) - 1 if gallery is None else len(gallery)
        sides = {"gallery": gallery, "distance": distance}
        return cls(
            run=run,
            embeddings=on_unit_sphere(embeddings) if distance == "cosine" else embeddings,
            labels=arrays["labels"],
            items=run.items(),
            searched_labels=arrays["labels"] if gallery is None else arrays["gallery_labels"],
            searched_items=run.items(gallery=gallery is not None),
            nearest=nearest_neighbours(embeddings, min(NEIGHBOURS, found), **sides)[1],
            values=retrieval_per_query(
                embeddings, arrays["labels"], gallery_labels=arrays.get("gallery_labels"), ks=(1,), **sides
            )["map@r"].cpu(),
        )


def _without_embeddings() -> Part:
    return Part(title="Embeddings", text="No run has kept its embeddings, so there is nothing to show.", level=3)


def _space_parts(views: Mapping[str, View], prefix: str, count: int) -> list[Part]:
    """The parts that show images, of the best runs that judged the same ones."""
    best = next(iter(views.values()))
    same = {title: view for title, view in views.items() if view.items == best.items}
    shown = dict(list(same.items())[:SHOWN])
    show, missing = pictures_of(best.run)
    limited = f" Of {count} runs, the {len(shown)} best are shown." if count > len(shown) else ""
    gone = f" The images cannot be shown: {missing}." if missing else ""
    first, view = next(iter(shown.items()))
    return [
        Part(
            title="What is retrieved",
            groups=gallery(shown, show),
            note=f"Queries whose answers are best, median and worst by MAP@R, each of another class, and the "
            f"{view.nearest.shape[1]} nearest images: solid green is the query's class, dashed red another."
            f"{limited}{gone}",
            level=3,
        ),
        Part(
            title=f"Most confused classes of {first}",
            groups=confused(view, show),
            note=f"Pairs of classes by how many of the {view.nearest.shape[1]} nearest images of either are of "
            f"the other; those at fault come first.{gone}",
            level=3,
        ),
        Part(
            title="Map",
            figures=[
                _map(f"{prefix}map-{_file_name(title)}", title, view, show) for title, view in shown.items()
            ],
            note=f"The first two principal components of up to {EACH} images each of up to {MAPPED} classes; a "
            f"colour is a class.{limited}{gone}",
            level=3,
        ),
    ]


def gallery(views: Mapping[str, View], show: Show) -> list[Group]:
    """Return queries with the nearest images in each view."""
    first = next(iter(views.values()))
    values = torch.stack([view.values for view in views.values()]).mean(0)
    groups = []
    for kind, queries in chosen_queries(values, first.labels).items():
        for query in queries:
            rows = {title: _answers(view, query, show) for title, view in views.items()}
            each = f"{kind}: MAP@R {100 * float(values[query]):.0f}"
            groups.append(Group(_tile(first.items[query], show), rows, each))
    return groups


def chosen_queries(values: Tensor, labels: Tensor) -> dict[str, list[int]]:
    """Return the queries to show by kind; each of another class, as far as there are enough.

    >>> chosen_queries(torch.tensor([0.5, 1.0, 0.0, 0.2]), torch.arange(4))
    {'worst': [2, 3, 0, 1]}
    """
    order = values.nan_to_num(-1.0).argsort(stable=True)
    order = order[~values[order].isnan()]  # worst first
    middle = (torch.arange(len(order)) - len(order) // 2).abs().argsort(stable=True)
    kinds = {"worst": order, "best": order.flip(0), "median": order[middle]}
    seen: set[int] = set()
    found: dict[str, list[int]] = {}
    for kind, candidates in kinds.items():
        for query in candidates.tolist():
            if len(found.get(kind, [])) < QUERIES[kind] and int(labels[query]) not in seen:
                seen.add(int(labels[query]))
                found.setdefault(kind, []).append(query)
    return {kind: found[kind] for kind in QUERIES if kind in found}


def _answers(view: View, query: int, show: Show) -> list[Tile]:
    own = int(view.labels[query])
    return [
        _tile(view.searched_items[place], show, right=int(view.searched_labels[place]) == own)
        for place in view.nearest[query].tolist()
    ]


def _tile(item: Item, show: Show, *, right: bool | None = None) -> Tile:
    return Tile(show(item, LARGE), item.file, item.class_name, right=right)


def confused(view: View, show: Show) -> list[Group]:
    """Return the pairs of classes that are most often among each other's nearest images."""
    names = dict(zip(view.labels.tolist(), (item.class_name for item in view.items), strict=True))
    names |= dict(
        zip(view.searched_labels.tolist(), (item.class_name for item in view.searched_items), strict=True)
    )
    groups = []
    for first, second, share in confused_pairs(view.labels, view.searched_labels[view.nearest])[:PAIRS]:
        rows = {}
        for own, other in ((first, second), (second, first)):
            queries = (view.labels == own).nonzero().flatten()
            faults = (view.searched_labels[view.nearest[queries]] == other).sum(1)
            order = queries[faults.argsort(descending=True, stable=True)].tolist()
            rows[names[own]] = [_tile(view.items[query], show) for query in order[:FACES]]
        faces = [tile for tiles in rows.values() for tile in tiles]
        title = f"{share:.0%}: {names[first]} and {names[second]}"
        groups.append(Group(faces[0], rows, title))
    return groups


def confused_pairs(labels: Tensor, neighbours: Tensor) -> list[tuple[int, int, float]]:
    """Return pairs of classes and the share of their nearest images that are of the other, largest first.

    Args:
        neighbours: [N, K], the class of each query's nearest images.

    >>> confused_pairs(torch.tensor([0, 0, 1]), torch.tensor([[0, 1], [0, 0], [0, 0]]))
    [(0, 1, 0.5)]
    """
    own = labels[:, None].expand_as(neighbours)
    pairs = torch.stack([torch.minimum(own, neighbours), torch.maximum(own, neighbours)], dim=-1)
    wrong, counts = pairs[own != neighbours].unique(dim=0, return_counts=True)
    sizes = labels.bincount(minlength=int(pairs.max()) + 1)
    shares = counts / (sizes[wrong].sum(1) * neighbours.shape[1])
    order = shares.argsort(descending=True, stable=True).tolist()
    return [(int(wrong[at, 0]), int(wrong[at, 1]), float(shares[at])) for at in order]


def _map(name: str, title: str, view: View, show: Show) -> Any:
    classes = view.labels.unique()
    some = classes[torch.linspace(0, len(classes) - 1, min(MAPPED, len(classes))).long()]
    rows = torch.cat([(view.labels == label).nonzero().flatten()[:EACH] for label in some])
    items = [view.items[row] for row in rows.tolist()]
    drawn = thumbnail_map(
        name,
        view.embeddings[rows],
        [item.class_name for item in items],
        [item.file for item in items],
        [show(item, SMALL) for item in items],
    )
    return type(drawn)(drawn.name, drawn.svg, drawn.rows, f"{title}: {drawn.caption}")


def _geometry(entries: Sequence[Entry]) -> list[Part]:
    rows = []
    for entry in entries:
        found = [_geometry_of(run) for run in entry.runs]
        mean = {name: statistics.mean(each[name] for each in found) for name in found[0]}
        spread = {name: statistics.stdev(each[name] for each in found) for name in mean if len(found) > 1}
        known = {name: value for name, value in mean.items() if not math.isnan(value)}
        rows.append(Row((entry.title,), known, spread))
    names = list(dict.fromkeys(name for row in rows for name in row.mean))
    note = "What each number means: docs/metrics.md. Lengths of one run cannot be compared with those of another."
    return [Part(title="Geometry", tables=[metric_table(rows, names, ("run",))], note=note, level=3)] if rows else []


def _geometry_of(run: Run) -> dict[str, float]:
    arrays = run.load_embeddings()
    return geometry_metrics(arrays["embeddings"], arrays["labels"], distance=run.result().distance)


def _recipes(entries: Sequence[Entry]) -> Part:
    """The recipe of the first run, what differs in the others, and where they ran."""
    settings = {entry.title: deciding_settings(write_out(entry.runs[0].recipe())) for entry in entries}
    first = next(iter(settings.values()))
    rows = []
    for entry in entries:
        other = settings[entry.title]
        changed = [f"{key} {other[key]}" for key in other if first.get(key, "absent") != other[key]]
        changed += [f"without {key}" for key in first if key not in other]
        minutes = statistics.mean(result.seconds for result in entry.repeats.runs) / 60
        rows.append((Cell(entry.title), Cell(", ".join(changed) or "as below"), Cell(f"{minutes:.1f}")))
    recipe = yaml.safe_dump(public_settings(entries[0].runs[0].recipe()), sort_keys=False, allow_unicode=True)
    places = {_machine(run.environment()): None for entry in entries for run in entry.runs}
    return Part(
        title="Recipes",
        tables=[Table(("run", "settings", "minutes"), tuple(rows), words=2)],
        folded={f"recipe of {entries[0].title}": recipe},
        note=f"Trained with {'; and with '.join(places)}. Images: sha256 {entries[0].repeats.runs[0].data_sha256}.",
        level=3,
    )


def _machine(environment: Mapping[str, Any]) -> str:
    packages = ", ".join(f"{name} {number}" for name, number in environment["packages"].items() if number)
    return (
        f"Python {environment['python']}, {environment['system']}, {environment['device']}, "
        f"{environment['threads']} threads, {packages}"
    )


def _file_name(title: str) -> str:
    return re.sub(r"[^\w.-]+", "-", title)
