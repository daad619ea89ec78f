"""The accuracy of a vote of the nearest items on the class of a query."""

from collections.abc import Sequence

import torch
from torch import Tensor

from softwarp.metrics.checks import Array, Labels, check_label_sides
from softwarp.metrics.neighbours import nearest_neighbours

PAIRS_AT_ONCE = 1 << 24  # pairs of neighbours that are compared at a time


def knn_per_query(
    embeddings: Array,
    labels: Labels,
    *,
    gallery: Array | None = None,
    gallery_labels: Labels | None = None,
    ks: Sequence[int] = (5,),
    distance: str = "euclidean",
) -> dict[str, Tensor]:
    """`knn@K` for each query, float64 [N]: 1 if the K nearest vote for its class, else 0.

    Each of the K nearest has one vote. Of classes with as many votes the one with the nearest item wins; of
    items at the same distance the one with the smaller index is nearer. NaN where a query has no positives,
    as in `retrieval_per_query`.

    Args:
        gallery: what is searched; None where the queries are searched among themselves, never finding
            themselves.
        ks: each from 1 to the number of items searched.

    >>> points, gallery = torch.tensor([[0.0]]), torch.tensor([[0.1], [0.2], [0.3]])
    >>> sides = {"gallery": gallery, "gallery_labels": [1, 0, 0]}
    >>> {name: float(value) for name, value in knn_per_query(points, [0], ks=(1, 2, 3), **sides).items()}
    {'knn@1': 0.0, 'knn@2': 0.0, 'knn@3': 1.0}
    """
    if not ks or min(ks) < 1:
        raise ValueError(f"K of knn@K must be whole numbers from 1, got {list(ks)}")
    items = None if gallery is None else torch.as_tensor(gallery)
    asked, known = check_label_sides(labels, gallery_labels, torch.as_tensor(embeddings), items)
    found = known[nearest_neighbours(embeddings, max(ks), gallery=gallery, distance=distance)[1]]
    alone = ~_has_positives(asked, known, among_themselves=gallery is None)
    return {f"knn@{k}": (_elected(found[:, :k]) == asked).double().masked_fill(alone, torch.nan) for k in ks}


def _elected(classes: Tensor) -> Tensor:
    """The class [N] with the most votes among [N, K], nearest first; of equal ones the first."""
    k = classes.shape[1]
    ahead = torch.arange(k, 0, -1, device=classes.device)  # more for nearer ones, less than a vote
    winners = []
    for part in classes.split(max(1, PAIRS_AT_ONCE // k**2)):
        votes = (part[:, :, None] == part[:, None, :]).sum(dim=2)
        first = (votes * (k + 1) + ahead).argmax(dim=1, keepdim=True)
        winners.append(part.gather(1, first)[:, 0])
    return torch.cat(winners)


def _has_positives(asked: Tensor, known: Tensor, *, among_themselves: bool) -> Tensor:
    if not among_themselves:
        return torch.isin(asked, known)
    _, place, counts = torch.unique(asked, return_inverse=True, return_counts=True)
    several: Tensor = counts[place] > 1
    return several
