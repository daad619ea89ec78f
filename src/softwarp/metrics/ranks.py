"""Exact ranks of every query's positives, by counting what lies closer, block by block.

A rank is a count: rank(p) = 1 + #{items closer to the query than its positive p}. So nothing of the N x N
distances is kept: those to the positives come first, in float64; then each block of a float32 matrix product
is compared with them and counted. Without a gallery a block serves both of its sides, so half of the product
is enough.

The order is that of float64 distances between the embeddings as given, ties broken by index: float32 scores
decide what they can (`scores.py`), and what is too close to call is settled by the float64 distance itself
(`counting.py`).
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
from torch import Tensor

from softwarp.metrics.checks import ROWS_AT_ONCE
from softwarp.metrics.counting import QueryBlock, Workspace, count_closer, settle
from softwarp.metrics.scaling import exact_distances
from softwarp.metrics.scores import (
    Side,
    distances_in_frame,
    in_frame,
    make_sides,
    near_distances,
    scores,
    square_error,
)
from softwarp.metrics.threads import Map, side_by_side

BLOCK_ROWS = 1536  # 9 MB of scores: few calls, and what is compared again stays in cache
BLOCK_POSITIVES = 1 << 22  # most (query, positive) pairs in a block of queries
SYMMETRIC_POSITIVES = 1 << 23  # most such pairs held at once, which the halved product needs

Advance = Callable[[float], None]
Measure = Callable[[Tensor, Tensor], Tensor]


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
        advance: called with the share of the work just done.
    """
    keys, gallery_keys = _class_keys(labels, gallery_labels)
    with side_by_side(own.device) as each:
        side, other = make_sides(queries, keys, gallery, gallery_keys, each)
        first = torch.searchsorted(other.keys, side.keys)
        counts = torch.searchsorted(other.keys, side.keys, right=True) - first
        cuts = _cuts(counts.tolist())

        def rows_of(cut: slice) -> QueryBlock:
            return _rows(side, other, cut, first, counts, own, limit)

        if gallery is None and int(counts.sum()) <= SYMMETRIC_POSITIVES:
            finished = _halved_pass(side, list(each(rows_of, cuts)), each, advance)
        else:  # one block of queries after the other, or the positives of all would be held
            finished = _full_pass(side, other, map(rows_of, cuts), each, advance)
        for rows in finished:
            settle(rows, side, other)
            places = torch.arange(1, rows.closer.shape[1] + 1, device=own.device)
            ranks = (rows.closer + places).double().masked_fill(rows.scores.isinf(), torch.inf)
            yield side.order[rows.places], ranks


def _halved_pass(side: Side, blocks: list[QueryBlock], each: Map, advance: Advance) -> Iterator[QueryBlock]:
    """Every block against itself and those after it, counted for its rows and for its columns."""
    workspace = Workspace()

    def count(pair: tuple[QueryBlock, QueryBlock]) -> None:
        rows, columns = pair
        block = _scores_across(side, side, rows.places, columns.places, workspace)
        count_closer(rows, side, side, columns.places, block, workspace)
        if columns is not rows:
            count_closer(columns, side, side, rows.places, block.T, workspace)

    pairs = [(rows, columns) for number, rows in enumerate(blocks) for columns in blocks[number:]]
    for _ in each(count, pairs):
        advance(1 / len(pairs))
    yield from blocks


def _full_pass(
    side: Side, other: Side, blocks: Iterable[QueryBlock], each: Map, advance: Advance
) -> Iterator[QueryBlock]:
    """Every block of queries against the whole gallery, one after the other."""
    starts = range(0, len(other.order), BLOCK_ROWS)
    cuts = [slice(start, min(start + BLOCK_ROWS, len(other.order))) for start in starts]
    workspace = Workspace()
    for rows in blocks:
        list(each(partial(_count_across, rows, side, other, workspace), cuts))
        advance((rows.places.stop - rows.places.start) / len(side.order))
        yield rows


def _count_across(rows: QueryBlock, side: Side, other: Side, workspace: Workspace, columns: slice) -> None:
    block = _scores_across(side, other, rows.places, columns, workspace)
    count_closer(rows, side, other, columns, block, workspace)


def _scores_across(side: Side, other: Side, rows: slice, columns: slice, workspace: Workspace) -> Tensor:
    """Scores between classes; -inf within a class, whose order is known already."""
    keys, other_keys = side.keys[rows], other.keys[columns]
    room = workspace.block(torch.float32, (len(keys), len(other_keys)), keys.device)
    block = scores(side, other, rows, columns, room)
    if keys[0] <= other_keys[-1] and other_keys[0] <= keys[-1]:  # both ascend: no overlap, no common class
        block.masked_fill_(keys[:, None] == other_keys, -torch.inf)
    return block


def _rows(
    side: Side, other: Side, places: slice, first: Tensor, counts: Tensor, own: Tensor, limit: int
) -> QueryBlock:
    """A block of queries and its positives, nearest first; ties stay in index order."""

    def near(left: Tensor, right: Tensor) -> Tensor:
        return near_distances(in_frame(side.frame, left), in_frame(side.frame, right))

    distances, positives = _to_positives(side, other, places, first, counts, own, near)
    if bool((distances.square().diff(dim=1) <= 2 * square_error(side)).any()):  # which is nearer? ask exactly
        distances, positives = _to_positives(side, other, places, first, counts, own, exact_distances)
        distances = distances_in_frame(side.frame, distances)
    slots = int(distances.isfinite().sum(dim=1).max())
    distances, positives = distances[:, :slots].contiguous(), positives[:, :slots].contiguous()
    scores = -distances.square() / 2
    return QueryBlock(places, scores, positives, torch.zeros_like(positives), max(limit, slots))


def _to_positives(
    side: Side, other: Side, places: slice, first: Tensor, counts: Tensor, own: Tensor, measure: Measure
) -> tuple[Tensor, Tensor]:
    """Sorted distances [rows, slots] to the positives, and their indices; inf for none and for oneself."""
    queries = side.order[places]
    shape = (places.stop - places.start, int(counts[places].max()))
    distances = torch.full(shape, torch.inf, dtype=torch.float64, device=own.device)
    positives = torch.zeros_like(distances, dtype=torch.int64)
    row = 0
    for classes, size in _alike(side.keys[places], counts[places]):
        rows = slice(row, row + classes * size)
        starts = first[places][rows][::size, None]
        count = int(counts[places.start + row])
        items = other.order[starts + torch.arange(count, device=own.device)]
        left = side.exact[queries[rows]].view(classes, size, -1)
        near = measure(left, other.exact[items])
        distances[rows, :count] = near.flatten(0, 1)
        positives[rows, :count] = items.repeat_interleave(size, dim=0)
        row = rows.stop
    distances[positives == own[queries][:, None]] = torch.inf
    distances, order = distances.sort(dim=1, stable=True)
    return distances, positives.gather(1, order)


def _alike(keys: Tensor, counts: Tensor) -> Iterator[tuple[int, int]]:
    """Runs of classes as (how many, queries of each): as many queries and positives each, few rows in all."""
    sizes = torch.unique_consecutive(keys, return_counts=True)[1]
    kinds = torch.stack([sizes, counts[sizes.cumsum(0) - sizes]], dim=1)
    for (size, count), run in zip(
        *(part.tolist() for part in torch.unique_consecutive(kinds, dim=0, return_counts=True)), strict=True
    ):
        most = max(1, ROWS_AT_ONCE // (size + count))
        for start in range(0, run, most):
            yield min(most, run - start), size


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


def _class_keys(labels: Tensor, gallery_labels: Tensor) -> tuple[Tensor, Tensor]:
    """A key for each class, smaller for smaller classes so that those of a block are alike."""
    classes, numbers = torch.unique(torch.cat([labels, gallery_labels]), return_inverse=True)
    sizes = torch.bincount(numbers[len(labels) :], minlength=len(classes))
    keys = sizes[numbers] * len(classes) + numbers
    return keys[: len(labels)], keys[len(labels) :]
