"""What embeddings tell of a folder: near-duplicates, likely mislabelled images, groups of unlabelled ones.

All look at the nearest neighbours of every image in an index, as its search finds them.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from softwarp.events import OnEvent, Work
from softwarp.index.results import Groups, ImageGroup, Member, Outlier, Outliers
from softwarp.index.rows import Distances, Rows
from softwarp.index.searching import as_told

if TYPE_CHECKING:
    from softwarp.index.index import Index

BLOCK = 1024  # images whose neighbours are searched at a time
FEW = 10  # neighbours in which copies are looked for at first
NEAR = 0.5  # near-duplicates are closer than this share of the upper quartile of nearest distances
FINENESS = 4.0  # the larger it is, the more and smaller are the clusters
EDGE = 3.0  # the last of k neighbours votes with exp(-3) of the weight of one at distance 0


def duplicates(index: "Index", threshold: float | None = None, *, on_event: OnEvent | None = None) -> Groups:
    """Return groups of images of which each is within `threshold` of another one in its group.

    Args:
        threshold: a distance as `search` gives it; by default half the upper quartile of the Euclidean
            distances to the nearest image, which copies do not move as long as a quarter has none.
    """
    found, distances = neighbours(index, FEW, on_event=on_event)
    if threshold is None:
        threshold = _near(index, distances)
    elif not threshold >= 0:
        raise ValueError(f"threshold is {threshold}; a distance is at least 0")
    pairs = _pairs(index, found, distances, threshold)
    groups = [_group(index, rows) for rows in _components(pairs, len(index))]
    surest_first = sorted(groups, key=lambda group: (max(group.distances), group.ids))
    return _listed(index, surest_first, threshold)


def outliers(index: "Index", k: int = 10, *, on_event: OnEvent | None = None) -> Outliers:
    """Return the images that their neighbours would label otherwise, the surest first.

    The k nearest images vote, each with the weight exp(-3 (d / d_k)^2), d_k being the distance of the last
    one. Images without a label neither vote nor are judged.
    """
    names, labels = numbered_classes(index)
    if len(names) < 2:
        raise ValueError(f"{index.folder} has {len(names)} classes; outliers need at least 2")
    found, distances = neighbours(index, k, on_event=on_event)
    judged = []
    for row in np.flatnonzero(labels >= 0).tolist():
        shares = vote(labels[found[row]], distances[row], len(names))
        own = int(labels[row])
        support, shares[own] = float(shares[own]), -1.0
        best = int(shares.argmax())
        if shares[best] > support:
            score = float(shares[best]) - support
            item = index.items[row]
            judged.append(Outlier(score, names[own], names[best], item.path, item.id))
    surest_first = sorted(judged, key=lambda outlier: (-outlier.score, outlier.id))
    return Outliers(tuple(surest_first), index.store.thumbnails)


def clusters(
    index: "Index", *, k: int = 10, fineness: float = FINENESS, on_event: OnEvent | None = None
) -> Groups:
    """Return groups of similar images, the largest first, whatever their labels; each image is in one.

    Images are linked to their k nearest, with the weights of `vote`. Louvain's method divides that graph
    where modularity is largest, and so chooses the number of groups. In each group the image nearest to its
    mean comes first, then the others by their distance to it.

    Args:
        fineness: the resolution of modularity: more groups, and smaller ones, the larger it is.
    """
    from networkx import from_scipy_sparse_array
    from networkx.algorithms.community import louvain_communities
    from scipy.sparse import coo_array

    found, distances = neighbours(index, k, on_event=on_event)
    starts, size = np.repeat(np.arange(len(index)), found.shape[1]), (len(index), len(index))
    weights = np.concatenate([_weights(each) for each in distances]) if len(index) else np.empty(0)
    links = coo_array((weights, (starts, found.ravel())), shape=size).tocsr()
    graph = from_scipy_sparse_array(links + links.T)
    groups = louvain_communities(graph, resolution=fineness, seed=0)
    typical_first = (_group(index, _by_centre(index, np.array(sorted(group)))) for group in groups)
    return _listed(index, sorted(typical_first, key=lambda group: (-len(group.ids), group.ids)))


def neighbours(index: "Index", k: int, *, on_event: OnEvent | None = None) -> tuple[Rows, Distances]:
    """Return rows and distances [N, k] of the nearest other images of every image; fewer if it has fewer."""
    bar = Work(on_event, "comparing", total=len(index))
    return _nearest_others(index, np.arange(len(index)), k, bar.advance)


def numbered_classes(index: "Index") -> tuple[list[str], Rows]:
    """Return the names of classes, ascending, and the number of each image's class; -1 for none."""
    labels = [item.label for item in index.items]
    names = sorted({label for label in labels if label is not None})
    numbers = {name: number for number, name in enumerate(names)}
    return names, np.array([-1 if label is None else numbers[label] for label in labels], np.int64)


def vote(labels: Rows, distances: Distances, classes: int) -> Distances:
    """Return the share [classes] of the votes of neighbours for each class; all 0 if none has a label.

    >>> vote(np.array([1, 0, 1]), np.array([0.0, 1.0, 1.0]), 2).round(3).tolist()
    [0.045, 0.955]
    """
    weights, known = _weights(distances), labels >= 0
    votes = np.bincount(labels[known], weights[known], minlength=classes).astype(np.float64)
    return votes / (votes.sum() or 1.0)


def _weights(distances: Distances) -> Distances:
    """The votes of neighbours at these distances: 1 at distance 0, exp(-3) for the furthest."""
    furthest = distances.max(initial=0)
    if furthest <= 0:
        return np.ones(len(distances))
    return np.asarray(np.exp(-EDGE * (distances / furthest) ** 2))


def _nearest_others(
    index: "Index", rows: Rows, k: int, advance: Callable[[int], None] = lambda count: None
) -> tuple[Rows, Distances]:
    """The nearest images of some rows, themselves left out; rows are searched for in blocks."""
    if not len(rows):
        return np.empty((0, 0), np.int64), np.empty((0, 0))
    parts = []
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        ids, distances = index.nearest(index.vectors[block], k + 1)
        found = np.searchsorted(index.ids, ids)
        itself = found == block[:, None]
        itself[~itself.any(axis=1), -1] = True  # behind so many copies that it was not found
        shape = (len(block), found.shape[1] - 1)
        parts.append((found[~itself].reshape(shape), distances[~itself].reshape(shape)))
        advance(len(block))
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def _near(index: "Index", distances: Distances) -> float:
    """The default threshold, in the units of the index."""
    if not distances.size:
        return 0.0
    share = NEAR**2 if index.distance == "cosine" else NEAR  # 1 - cos is half the squared Euclidean distance
    return float(share * np.quantile(distances[:, 0], 0.75))


def _pairs(index: "Index", found: Rows, distances: Distances, threshold: float) -> Rows:
    """All pairs [P, 2] of rows within the threshold; where ten neighbours all are, more are searched."""
    pairs, rows, k = [], np.arange(len(found)), found.shape[1]
    while True:
        near = distances <= threshold
        places, columns = np.nonzero(near)
        pairs.append(np.stack([rows[places], found[places, columns]], axis=1))
        rows = rows[near.all(axis=1)]
        if not len(rows) or k >= len(index) - 1:
            return np.concatenate(pairs)
        k = min(4 * k, len(index) - 1)
        found, distances = _nearest_others(index, rows, k)


def _components(pairs: Rows, size: int) -> list[Rows]:
    """The rows of each group of two and more that pairs connect."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(pairs), bool), (pairs[:, 0], pairs[:, 1])), shape=(size, size))
    _, group_of = connected_components(graph, directed=False)
    order = np.argsort(group_of, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(group_of[order])) + 1)
    return [rows for rows in groups if len(rows) > 1]


def _listed(index: "Index", groups: Sequence[ImageGroup], threshold: float | None = None) -> Groups:
    """Groups, and a row for each of their images."""
    items = iter(index.store.items([number for group in groups for number in group.ids]))
    rows = [
        Member(place, distance, item.label, item.path, item.id)
        for place, group in enumerate(groups, start=1)
        for item, distance in zip(islice(items, len(group.ids)), group.distances, strict=True)
    ]
    return Groups(tuple(rows), tuple(groups), threshold, index.store.thumbnails)


def _group(index: "Index", rows: Rows) -> ImageGroup:
    points = index.vectors[rows].astype(np.float64)
    distances = as_told(np.linalg.norm(points - points[0], axis=1), index.distance)
    return ImageGroup(index.ids[rows].tolist(), distances.tolist())


def _by_centre(index: "Index", rows: Rows) -> Rows:
    """The rows of a group: the nearest to its mean, then the others by their distance to that one."""
    points = index.vectors[rows].astype(np.float64)
    first = np.linalg.norm(points - points.mean(axis=0), axis=1).argmin()
    return rows[np.argsort(np.linalg.norm(points - points[first], axis=1), kind="stable")]
