"""Retrieval metrics: every one a function of the ranks of a query's positives."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from softwarp.metrics.checks import Array, check_distance, check_embeddings, check_labels, on_unit_sphere


def retrieval_metrics(
    embeddings: Array,
    labels: Array,
    *,
    gallery: Array | None = None,
    gallery_labels: Array | None = None,
    ks: Sequence[int] = (1, 2, 4, 8),
    map_ks: Sequence[int] = (),
    ndcg_ks: Sequence[int] = (),
    distance: str = "euclidean",
    device: torch.device | str | None = None,
    progress: bool = False,
) -> dict[str, float]:
    """Means over the queries that have positives: `recall@K`, `precision@1`, `r_precision`, `map@r` and more.

    >>> points = torch.tensor([[0.0], [1.0], [5.0], [7.0]])
    >>> retrieval_metrics(points, torch.tensor([0, 0, 1, 1]), ks=(1,))["recall@1"]
    1.0
    """
    values = retrieval_per_query(
        embeddings,
        labels,
        gallery=gallery,
        gallery_labels=gallery_labels,
        ks=ks,
        map_ks=map_ks,
        ndcg_ks=ndcg_ks,
        distance=distance,
        device=device,
        progress=progress,
    )
    counted = {name: float(value.nanmean()) for name, value in values.items()}
    lost = int(next(iter(values.values())).isnan().sum())
    return {**counted, "queries": float(len(embeddings) - lost), "queries_without_positives": float(lost)}


def retrieval_per_query(
    embeddings: Array,
    labels: Array,
    *,
    gallery: Array | None = None,
    gallery_labels: Array | None = None,
    ks: Sequence[int] = (1, 2, 4, 8),
    map_ks: Sequence[int] = (),
    ndcg_ks: Sequence[int] = (),
    distance: str = "euclidean",
    device: torch.device | str | None = None,
    progress: bool = False,
) -> dict[str, Tensor]:
    """The same metrics for each query, float64 [N], NaN where a query has no positives."""
    check_distance(distance)
    queries = check_embeddings(embeddings)
    target = torch.device(device) if device is not None else queries.device
    queries = queries.to(target)
    query_labels = check_labels(labels, len(queries), target)
    if (gallery is None) != (gallery_labels is None):
        raise ValueError("gallery and gallery_labels go together: give both or neither")
    items, item_labels = queries, query_labels
    if gallery is not None and gallery_labels is not None:
        items = check_embeddings(gallery, "gallery").to(target)
        item_labels = check_labels(gallery_labels, len(items), target, "gallery_labels")
    if distance == "cosine":
        queries, items = on_unit_sphere(queries), on_unit_sphere(items, "gallery")
    rows = []
    for start in range(0, len(queries), 256):
        block = slice(start, start + 256)
        distances = torch.cdist(
            queries[block].double(), items.double(), compute_mode="donot_use_mm_for_euclid_dist"
        )
        relevant = query_labels[block, None] == item_labels
        if gallery is None:
            own = torch.arange(start, start + len(distances), device=target)
            distances[torch.arange(len(own)), own] = torch.inf
            relevant[torch.arange(len(own)), own] = False
        order = distances.sort(dim=1, stable=True).indices
        for hits in relevant.gather(1, order):
            rows.append(_from_ranks(hits.nonzero().flatten().double() + 1, ks, map_ks, ndcg_ks))
    return {name: torch.tensor([row[name] for row in rows], dtype=torch.float64) for name in rows[0]}


def _from_ranks(
    ranks: Tensor, ks: Sequence[int], map_ks: Sequence[int], ndcg_ks: Sequence[int]
) -> dict[str, float]:
    count = len(ranks)
    place = torch.arange(1, count + 1, dtype=torch.float64, device=ranks.device)
    precision = place / ranks

    def share(k: int) -> float:
        return float(precision[ranks <= k].sum()) / min(count, k) if count else torch.nan

    def gain(k: int) -> float:
        ideal = float((1 / torch.log2(1 + place[:k])).sum())
        return float((1 / torch.log2(1 + ranks[ranks <= k])).sum()) / ideal if count else torch.nan

    return {
        **{f"recall@{k}": float(ranks[0] <= k) if count else torch.nan for k in ks},
        "precision@1": float(ranks[0] == 1) if count else torch.nan,
        "r_precision": float((ranks <= count).sum()) / count if count else torch.nan,
        "map@r": share(count),
        **{f"map@{k}": share(k) for k in map_ks},
        **{f"ndcg@{k}": gain(k) for k in ndcg_ks},
    }


def nearest_neighbours(
    embeddings: Array, k: int, *, gallery: Array | None = None, distance: str = "euclidean"
) -> tuple[Tensor, Tensor]:
    """Distances (float64) and indices [N, k] of the nearest items; without a gallery no row finds itself.

    >>> nearest_neighbours(torch.tensor([[0.0], [1.0], [5.0]]), 1)[1].flatten().tolist()
    [1, 0, 1]
    """
    check_distance(distance)
    queries = check_embeddings(embeddings)
    items = queries if gallery is None else check_embeddings(gallery, "gallery").to(queries.device)
    if not 1 <= k <= len(items) - (gallery is None):
        raise ValueError(f"k is {k}, but there are only {len(items) - (gallery is None)} items to find")
    if distance == "cosine":
        queries, items = on_unit_sphere(queries), on_unit_sphere(items, "gallery")
    found = []
    for start in range(0, len(queries), 256):
        block = queries[start : start + 256].double()
        distances = torch.cdist(block, items.double(), compute_mode="donot_use_mm_for_euclid_dist")
        if gallery is None:
            distances[torch.arange(len(block)), start + torch.arange(len(block))] = torch.inf
        found.append(distances.sort(dim=1, stable=True))
    values = torch.cat([block.values[:, :k] for block in found])
    indices = torch.cat([block.indices[:, :k] for block in found])
    return (values.square() / 2 if distance == "cosine" else values), indices
