"""Retrieval metrics, every one a function of the ranks of a query's positives.

The query itself is left out by its index, never by its position, so duplicates are ordinary neighbours. Ties
are broken by index. Queries without positives are left out of the means and counted. `ranks.py` finds the
ranks, in the order of float64 and without holding anything of size N x N.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from softwarp.metrics.checks import Array, Labels, check_label_sides, check_labels, check_sides
from softwarp.metrics.ranks import Advance, positive_ranks


def retrieval_metrics(
    embeddings: Array,
    labels: Labels,
    *,
    gallery: Array | None = None,
    gallery_labels: Labels | None = None,
    query_rows: Array | None = None,
    ks: Sequence[int] | None = None,
    map_ks: Sequence[int] = (),
    ndcg_ks: Sequence[int] = (),
    distance: str = "euclidean",
    device: torch.device | str | None = None,
    advance: Advance | None = None,
) -> dict[str, float]:
    """Means over the queries that have positives, and how many do and do not.

    Keys: `recall@K` (any positive among the K nearest), `precision@1`, `r_precision`, `map@r`, where asked
    `map@K` and `ndcg@K`, `queries`, `queries_without_positives`. The arguments are those of
    `retrieval_per_query`. Where no query has a positive the means are NaN.

    >>> points = torch.tensor([[0.0], [1.0], [5.0], [7.0]])
    >>> retrieval_metrics(points, torch.tensor([0, 0, 1, 1]), ks=(1,))["recall@1"]
    1.0
    """
    values = retrieval_per_query(
        embeddings,
        labels,
        gallery=gallery,
        gallery_labels=gallery_labels,
        query_rows=query_rows,
        ks=ks,
        map_ks=map_ks,
        ndcg_ks=ndcg_ks,
        distance=distance,
        device=device,
        advance=advance,
    )
    without = int(values["map@r"].isnan().sum())
    means = {name: float(value.nanmean()) for name, value in values.items()}
    return means | {"queries": float(len(embeddings) - without), "queries_without_positives": float(without)}


def retrieval_per_query(
    embeddings: Array,
    labels: Labels,
    *,
    gallery: Array | None = None,
    gallery_labels: Labels | None = None,
    query_rows: Array | None = None,
    ks: Sequence[int] | None = None,
    map_ks: Sequence[int] = (),
    ndcg_ks: Sequence[int] = (),
    distance: str = "euclidean",
    device: torch.device | str | None = None,
    advance: Advance | None = None,
) -> dict[str, Tensor]:
    """Every metric for each query, float64 [N] in the order given; NaN where a query has no positives.

    Args:
        gallery: what is searched; None where the queries are searched among themselves.
        query_rows: the gallery row that a query itself is, left out of its search; -1 for none.
        ks: each from 1 to the number of items searched, as `map_ks` and `ndcg_ks` are; if not given 1, 2, 4
            and 8, as far as there are items.
        distance: "euclidean", or "cosine", whose order is the euclidean one on the unit sphere.
        device: where to compute; None leaves the embeddings where they are.
        advance: called with the share of the work just done.

    >>> points = torch.tensor([[0.0], [1.0], [1.5]])
    >>> retrieval_per_query(points, torch.tensor([0, 0, 1]), ks=(1,))["recall@1"]
    tensor([1., 0., nan], dtype=torch.float64)
    """
    queries, items = check_sides(embeddings, gallery, distance, device)
    searched = len(queries) - 1 if items is None else len(items)
    ks = [k for k in (1, 2, 4, 8) if k <= searched] if ks is None else ks
    for k in (*ks, *map_ks, *ndcg_ks):
        if not 1 <= k <= searched:
            raise ValueError(f"K is {k}, but each query searches {searched} items; choose 1 to {searched}")
    query_labels, item_labels = check_label_sides(labels, gallery_labels, queries, items)
    own = _own_rows(query_rows, query_labels, item_labels, gallery is None)
    limit = max((*ks, *map_ks, *ndcg_ks), default=1)
    values: dict[str, Tensor] = {}
    with torch.inference_mode(False), torch.no_grad():
        found = positive_ranks(
            queries, query_labels, items, item_labels, own, limit, advance or (lambda share: None)
        )
        for rows, ranks in found:
            for name, value in _from_ranks(ranks, ks, map_ks, ndcg_ks).items():
                values.setdefault(name, own.new_empty(len(queries), dtype=torch.float64))[rows] = value
    return values


def _own_rows(
    query_rows: Array | None, labels: Tensor, item_labels: Tensor, among_themselves: bool
) -> Tensor:
    if among_themselves:
        if query_rows is not None:
            raise ValueError("query_rows says where queries are in a gallery; without a gallery leave it out")
        return torch.arange(len(labels), device=labels.device)
    if query_rows is None:
        return torch.full_like(labels, -1)
    own = check_labels(query_rows, len(labels), labels.device, "query_rows")
    if int(own.min()) < -1 or int(own.max()) >= len(item_labels):
        raise ValueError(f"query_rows must be -1 or a row of the gallery, 0 to {len(item_labels) - 1}")
    strange = ((own >= 0) & (item_labels[own] != labels)).nonzero().flatten().tolist()
    if strange:
        raise ValueError(f"query {strange[0]} and its own row of the gallery have different labels")
    return own


def _from_ranks(
    ranks: Tensor, ks: Sequence[int], map_ks: Sequence[int], ndcg_ks: Sequence[int]
) -> dict[str, Tensor]:
    """Metrics [b] from ranks [b, R] of the positives, nearest first, inf for none."""
    ranks = torch.nn.functional.pad(ranks, (0, 1), value=torch.inf)  # so that there is a nearest one
    count = ranks.isfinite().sum(dim=1).double()
    place = torch.arange(1, ranks.shape[1] + 1, dtype=torch.float64, device=ranks.device)
    nobody = count == 0

    def average_precision(k: Tensor) -> Tensor:
        found = (place / ranks).masked_fill(ranks > k[:, None], 0)
        return found.sum(dim=1) / torch.minimum(count, k)

    def gain(k: Tensor) -> Tensor:
        best = (1 / torch.log2(1 + place)).masked_fill(place > torch.minimum(count, k)[:, None], 0)
        return (1 / torch.log2(1 + ranks)).masked_fill(ranks > k[:, None], 0).sum(dim=1) / best.sum(dim=1)

    metrics = {
        **{f"recall@{k}": (ranks[:, 0] <= k).double() for k in ks},
        "precision@1": (ranks[:, 0] == 1).double(),
        "r_precision": (ranks <= count[:, None]).sum(dim=1) / count,
        "map@r": average_precision(count),
        **{f"map@{k}": average_precision(torch.full_like(count, k)) for k in map_ks},
        **{f"ndcg@{k}": gain(torch.full_like(count, k)) for k in ndcg_ks},
    }
    return {name: value.masked_fill(nobody, torch.nan) for name, value in metrics.items()}
