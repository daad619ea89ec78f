"""Exact ranks of every query's positives, by counting what lies closer, block by block.

A rank is a count: rank(p) = 1 + #{items closer to the query than its positive p}. So nothing of the N x N
distances is kept: those to the positives come first, exactly; then each block of a float32 matrix product is
compared with them and counted. Without a gallery a block serves both of its sides, which halves the product.

The order is that of float64 distances between the embeddings as given, ties broken by index. Float32 decides
only what it can. Its score of a pair is, with x centred and scaled to |x| <= 1,

    s_ij = x_i . x_j - |x_i|^2 / 2 - |x_j|^2 / 2 = -|x_i - x_j|^2 / 2

and off by at most `_score_error`. What comes nearer than that to a positive's score is in doubt, and settled
by the float64 distance itself (`counting.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from softwarp.metrics.counting import Rows, Side, count_closer, exact_distances, settle_doubts

BLOCK_ROWS = 1024  # 4 MB of scores: what is compared again and again stays in cache
BLOCK_POSITIVES = 1 << 22  # most (query, positive) pairs in a block of queries
SYMMETRIC_POSITIVES = 1 << 23  # most such pairs held at once, which the halved product needs
CHUNK = 128  # dimensions summed at a time: the bound on the rounding error grows with it

Advance = Callable[[float], None]


def positive_ranks(
    queries: Tensor,
    labels: Tensor,
    gallery: Tensor | None,
    gallery_labels: Tensor,
    own: Tensor,
    limit: int,
    advance: Advance,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Blocks of query indices [b] and the ranks of their positives [b, R], nearest first, inf for none.

    Args:
        gallery: None where the queries search among themselves; `gallery_labels` are then `labels`.
        own: [N] gallery index of each query, left out of its search; -1 where it has none.
        limit: ranks are exact up to this and up to a query's number of positives; a rank beyond both is
            some number beyond both.
        advance: told the share of the work just done.
    """
    side, other = _sides(queries, labels, gallery, gallery_labels)
    first = torch.searchsorted(other.keys, side.keys)
    counts = torch.searchsorted(other.keys, side.keys, right=True) - first
    cuts = _cuts(counts.tolist())
    blocks = (_rows(side, other, cut, first, counts, own, limit) for cut in cuts)
    halved = gallery is None and int(counts.sum()) <= SYMMETRIC_POSITIVES
    passes = _halved_pass(side, list(blocks), advance) if halved else _full_pass(side, other, blocks, advance)
    for rows in passes:
        settle_doubts(rows, side, other)
        places = torch.arange(1, rows.closer.shape[1] + 1, device=own.device)
        ranks = (rows.closer + places).double().masked_fill(rows.distances.isinf(), torch.inf)
        yield side.order[rows.places], ranks


def _halved_pass(side: Side, blocks: list[Rows], advance: Advance) -> Iterator[Rows]:
    """Every block against itself and those after it, counted for its rows and for its columns."""
    for number, rows in enumerate(blocks):
        for columns in blocks[number:]:
            scores = _scores(side, side, rows.places, columns.places)
            _count(rows, side, side, columns.places, scores)
            if columns is not rows:
                _count(columns, side, side, rows.places, scores.T)
            advance(2 / len(blocks) / (len(blocks) + 1))
    yield from blocks


def _full_pass(side: Side, other: Side, blocks: Iterator[Rows], advance: Advance) -> Iterator[Rows]:
    """Every block of queries against the whole gallery, one after the other."""
    for rows in blocks:
        for start in range(0, len(other.order), BLOCK_ROWS):
            columns = slice(start, min(start + BLOCK_ROWS, len(other.order)))
            _count(rows, side, other, columns, _scores(side, other, rows.places, columns))
        advance((rows.places.stop - rows.places.start) / len(side.order))
        yield rows


def _count(rows: Rows, side: Side, other: Side, columns: slice, scores: Tensor) -> None:
    lengths = side.lengths[rows.places] + other.lengths[columns].max()
    count_closer(rows, side, other, columns, scores, _score_error(lengths, side.points.shape[1]))


def _score_error(lengths: Tensor, dimensions: int) -> Tensor:
    """A bound on |computed score - score| where two points' lengths add up to `lengths`.

    With u = 2^-24: the sums of `CHUNK` products, in any order, are off by CHUNK u |x||y| at most, and
    |x||y| <= lengths^2 / 4; adding each to what is there by u lengths^2 / 2; rounding the points and the
    lengths by less than 16 u lengths^2 / 4. 1e-30 covers underflow.
    """
    return (CHUNK + 2 * dimensions / CHUNK + 16) * 2**-24 * lengths.square() / 4 + 1e-30


def _scores(side: Side, other: Side, rows: slice, columns: slice) -> Tensor:
    """Scores [rows, columns], larger is closer; -inf within a class: its order is known already."""
    left, right = side.points[rows], other.points[columns]
    scores = -(side.lengths[rows, None].square() / 2).float() - (other.lengths[columns].square() / 2).float()
    for chunk in range(0, left.shape[1], CHUNK):
        scores.addmm_(left[:, chunk : chunk + CHUNK], right[:, chunk : chunk + CHUNK].T)
    keys, other_keys = side.keys[rows], other.keys[columns]
    if keys[0] <= other_keys[-1] and other_keys[0] <= keys[-1]:  # both ascend: no overlap, no common class
        scores.masked_fill_(keys[:, None] == other_keys, -torch.inf)
    return scores


def _rows(
    side: Side, other: Side, places: slice, first: Tensor, counts: Tensor, own: Tensor, limit: int
) -> Rows:
    """A block of queries with the exact distances to its positives, sorted; ties stay in index order."""
    start, slots = places.start, int(counts[places].max())
    distances = torch.full((places.stop - start, slots), torch.inf, dtype=torch.float64, device=own.device)
    positives = torch.zeros_like(distances, dtype=torch.int64)
    _, sizes = torch.unique_consecutive(side.keys[places], return_counts=True)
    for size in sizes.tolist():
        here, (begin, count) = slice(start, start + size), (int(first[start]), int(counts[start]))
        items = other.order[begin : begin + count]
        inside = slice(start - places.start, start - places.start + size)
        distances[inside, :count] = exact_distances(side.exact[side.order[here]], other.exact[items])
        positives[inside, :count] = items
        start += size
    distances[positives == own[side.order[places]][:, None]] = torch.inf
    distances, order = distances.sort(dim=1, stable=True)
    slots = int(distances.isfinite().sum(dim=1).max())
    distances, positives = (
        distances[:, :slots].contiguous(),
        positives.gather(1, order)[:, :slots].contiguous(),
    )
    return Rows(places, distances, positives, torch.zeros_like(positives), max(limit, slots))


def _cuts(counts: list[int]) -> list[slice]:
    """Blocks of queries, given how many positives each has, ascending."""
    cuts, start = [], 0
    while start < len(counts):
        stop = min(start + BLOCK_ROWS, len(counts))
        while stop > start + 1 and (stop - start) * counts[stop - 1] > BLOCK_POSITIVES:
            stop = start + (stop - start) // 2
        cuts.append(slice(start, stop))
        start = stop
    return cuts


def _sides(
    queries: Tensor, labels: Tensor, gallery: Tensor | None, gallery_labels: Tensor
) -> tuple[Side, Side]:
    """Queries and gallery in the order of their classes, small classes first so that a block's are alike."""
    classes, numbers = torch.unique(torch.cat([labels, gallery_labels]), return_inverse=True)
    sizes = torch.bincount(numbers[len(labels) :], minlength=len(classes))
    keys = sizes[numbers] * len(classes) + numbers
    items = queries if gallery is None else gallery
    centre = items.mean(dim=0, dtype=torch.float64)
    lengths = [_lengths(part, centre) for part in ([queries] if gallery is None else [queries, gallery])]
    scale = float(torch.cat(lengths).max()) or 1.0
    side = _side(queries, keys[: len(labels)], centre, lengths[0], scale)
    return side, side if gallery is None else _side(gallery, keys[len(labels) :], centre, lengths[1], scale)


def _lengths(points: Tensor, centre: Tensor) -> Tensor:
    return torch.cat([(part.double() - centre).norm(dim=1) for part in torch.split(points, BLOCK_ROWS)])


def _side(exact: Tensor, keys: Tensor, centre: Tensor, lengths: Tensor, scale: float) -> Side:
    keys, order = keys.sort(stable=True)
    parts = [((exact[part].double() - centre) / scale).float() for part in torch.split(order, BLOCK_ROWS)]
    return Side(exact, order, keys, torch.cat(parts), lengths[order] / scale, scale)
