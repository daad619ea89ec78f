"""What runs retrieve -> the parts of a report that show images: answers, confused classes, maps."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from softwarp.evaluation import evenly_spaced
from softwarp.metrics import nearest_neighbours, retrieval_per_query
from softwarp.metrics.checks import on_unit_sphere
from softwarp.report.figures import thumbnail_map
from softwarp.report.page import Group, Illustration, Section, Tile
from softwarp.report.pictures import Show, pictures_of
from softwarp.runs.run import EvaluatedImage, Run

SHOWN = 4  # runs whose answers and maps are shown, the best by MAP@R
NEIGHBOURS = 10
QUERIES = {"best": 2, "median": 2, "worst": 4}
PAIRS = 6  # pairs of confused classes that are shown
FACES = 8  # images of each of them
MAPPED, EACH = 12, 16  # classes on a map, and images of each
LARGE, SMALL = 80, 28  # pixels of pictures


@dataclass(frozen=True)
class View:
    """What a run retrieves: of each query, the nearest images and the MAP@R."""

    run: Run
    embeddings: Tensor
    labels: Tensor
    items: list[EvaluatedImage]
    searched_labels: Tensor
    searched_items: list[EvaluatedImage]
    nearest: Tensor  # [N, K]
    values: Tensor  # [N]; NaN for a query whose class has no other image

    @classmethod
    def of(cls, run: Run) -> "View":
        """Return the view of a run that has kept its embeddings."""
        arrays, distance = run.load_embeddings(), run.result().distance
        gallery, embeddings = arrays.get("gallery"), arrays["embeddings"]
        found = len(embeddings) - 1 if gallery is None else len(gallery)
        sides: dict[str, Any] = {"gallery": gallery, "distance": distance}
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


def space_parts(runs: Mapping[str, Run], prefix: str, count: int) -> list[Section]:
    """Return the parts that show images, of the best runs that were judged on the same ones.

    Args:
        runs: those that have kept their embeddings, by title, the best first.
        prefix: of the names of figures.
        count: of all runs.
    """
    first, best = next(iter(runs.items()))
    items = best.items()
    same = [title for title, run in runs.items() if run.items() == items]
    shown = {title: View.of(runs[title]) for title in same[:SHOWN]}
    show, there = pictures_of(best)
    limited = f" Of {count} runs, the {len(shown)} best are shown." if count > len(shown) else ""
    gone = "" if there else " The images are not where the recipe says they are, so they cannot be shown."
    view = shown[first]
    near = view.nearest.shape[1]
    return [
        Section(
            title="What is retrieved",
            groups=gallery(shown, show),
            note="Queries of different classes whose answers are best, median and worst by MAP@R, and the "
            f"{near} nearest images: solid green is the query's class, dashed red another.{limited}{gone}",
            level=3,
        ),
        Section(
            title=f"Most confused classes of {first}",
            groups=confused(view, show),
            note=f"Pairs of classes by the share of the {near} nearest images of either that are of the "
            f"other; the images with most of them come first.{gone}",
            level=3,
        ),
        Section(
            title="Map",
            side_by_side=True,
            figures=[
                _map(f"{prefix}map-{_file_name(title)}", title, view, show) for title, view in shown.items()
            ],
            note=f"The first two principal components of up to {EACH} images each of up to {MAPPED} classes; "
            f"a colour is a class.{limited}{gone}",
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
    """Return the queries to show by kind, no query twice; those of a kind are of different classes.

    >>> chosen_queries(torch.tensor([0.5, 1.0, 0.0, 0.2, 0.9, 0.1]), torch.arange(6))
    {'best': [1, 4], 'worst': [2, 5, 3, 0]}
    """
    order = values.nan_to_num(-1.0).argsort(stable=True)
    order = order[~values[order].isnan()]  # worst first
    middle = (torch.arange(len(order)) - len(order) // 2).abs().argsort(stable=True)
    kinds = {"worst": order, "best": order.flip(0), "median": order[middle]}
    taken: set[int] = set()
    found: dict[str, list[int]] = {}
    for kind, candidates in kinds.items():
        classes: set[int] = set()
        for query in candidates.tolist():
            label = int(labels[query])
            if len(classes) < QUERIES[kind] and query not in taken and label not in classes:
                taken.add(query)
                classes.add(label)
                found.setdefault(kind, []).append(query)
    return {kind: found[kind] for kind in QUERIES if kind in found}


def _answers(view: View, query: int, show: Show) -> list[Tile]:
    own = int(view.labels[query])
    return [
        _tile(view.searched_items[place], show, right=int(view.searched_labels[place]) == own)
        for place in view.nearest[query].tolist()
    ]


def _tile(item: EvaluatedImage, show: Show, *, right: bool | None = None) -> Tile:
    return Tile(show(item, LARGE), item.file, item.class_name, right=right)


def confused(view: View, show: Show) -> list[Group]:
    """Return the pairs of classes that are most often among each other's nearest images."""
    labels = torch.cat([view.labels, view.searched_labels]).tolist()
    items = [*view.items, *view.searched_items]
    names = {label: item.class_name for label, item in zip(labels, items, strict=True)}
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


def _map(name: str, title: str, view: View, show: Show) -> Illustration:
    classes = view.labels.unique()
    some = classes[evenly_spaced(len(classes), MAPPED)]
    rows = torch.cat([(view.labels == label).nonzero().flatten()[:EACH] for label in some])
    items = [view.items[row] for row in rows.tolist()]
    drawn = thumbnail_map(
        name,
        view.embeddings[rows],
        [item.class_name for item in items],
        [item.file for item in items],
        [show(item, SMALL) for item in items],
    )
    return replace(drawn, caption=f"{title}: {drawn.caption}")


def _file_name(title: str) -> str:
    return re.sub(r"[^\w.-]+", "-", title)
