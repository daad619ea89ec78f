"""Nearest neighbours, exact and block by block."""

import torch
from torch import Tensor

from softwarp.metrics.checks import Array, check_sides
from softwarp.metrics.scaling import exact_distances
from softwarp.metrics.scores import Side, distances_in_frame, make_sides, score_error, scores
from softwarp.metrics.threads import side_by_side

BLOCK_ROWS = 64  # queries whose scores of the whole gallery are held at once
SPARE = 32  # candidates beyond k, so that float32 need not be right about the last ones


def nearest_neighbours(
    embeddings: Array, k: int, *, gallery: Array | None = None, distance: str = "euclidean"
) -> tuple[Tensor, Tensor]:
    """Distances (float64) and indices [N, k] of the nearest items; without a gallery no row finds itself.

    The order is that of float64, ties by index. The distance of "cosine" is 1 - cos.

    >>> nearest_neighbours(torch.tensor([[0.0], [1.0], [5.0]]), 1)[1].flatten().tolist()
    [1, 0, 1]
    """
    queries, items = check_sides(embeddings, gallery, distance)
    found = len(queries) - 1 if items is None else len(items)
    if not 1 <= k <= found:
        raise ValueError(f"k is {k}, but there are {found} items to find; choose 1 to {found}")
    with torch.inference_mode(False), torch.no_grad():
        keys = torch.zeros(len(queries), dtype=torch.int64, device=queries.device)
        with side_by_side(queries.device) as each:
            side, other = make_sides(queries, keys, items, keys.new_zeros(found), each)
            starts = range(0, len(queries), BLOCK_ROWS)
            blocks = list(each(lambda start: _nearest(side, other, start, k), starts))
    distances = torch.cat([block[0] for block in blocks])
    return (
        distances.square() / 2 if distance == "cosine" else distances,
        torch.cat([block[1] for block in blocks]),
    )


def _nearest(side: Side, other: Side, start: int, k: int) -> tuple[Tensor, Tensor]:
    """The k nearest of a block: candidates by score, their order by float64; in doubt, all by float64."""
    rows, columns = slice(start, min(start + BLOCK_ROWS, len(side.order))), slice(0, len(other.order))
    block = torch.empty(rows.stop - start, columns.stop, device=side.points.device)
    block = scores(side, other, rows, columns, block)
    if side is other:
        block.diagonal(start).fill_(-torch.inf)
    best, candidates = block.topk(min(k + SPARE, block.shape[1]), dim=1)
    distances, indices = _sorted(side, other, rows, candidates.sort(dim=1).values)
    left_out = best[:, -1] + score_error(side, other, rows, columns)  # no item left out scores more
    unsure = -distances_in_frame(side.frame, distances[:, k - 1]).square() / 2 <= left_out * (1 - 2**-22)
    for row in unsure.nonzero().flatten().tolist() if candidates.shape[1] < block.shape[1] else []:
        whole = torch.arange(block.shape[1], device=block.device)[None]
        every = _sorted(side, other, slice(start + row, start + row + 1), whole)
        distances[row, :k], indices[row, :k] = every[0][0, :k], every[1][0, :k]
    return distances[:, :k], indices[:, :k]


def _sorted(side: Side, other: Side, rows: slice, candidates: Tensor) -> tuple[Tensor, Tensor]:
    """Ascending candidates [b, c] by float64 distance, equal ones left ascending, the row itself last."""
    distances = exact_distances(side.exact[rows][:, None], other.exact[candidates])[:, 0]
    if side is other:
        itself = torch.arange(rows.start, rows.stop, device=candidates.device)
        distances.masked_fill_(candidates == itself[:, None], torch.inf)
    distances, order = distances.sort(dim=1, stable=True)
    return distances, candidates.gather(1, order)
