"""Counting, in one block of scores, the items closer to each query than each of its positives.

Float32 scores decide what they can; what comes nearer to a positive's score than their error is a doubt and
settled by the float64 distance, ties by index. `ranks.py` says why, and where the blocks come from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock, local

import numpy as np
import torch
from torch import Tensor

from softwarp.metrics.scaling import exact_distances
from softwarp.metrics.scores import Side, score_error, square_error

FEW_POSITIVES = 24  # up to here a comparison for each positive is cheaper than sorting the block
SPARE = 32  # items kept beyond the limit when sorting, for doubts at the edge
DOUBTS_AT_ONCE = 1024  # pairs whose float64 rows are in cache together

Doubt = tuple[Tensor, Tensor, Tensor]  # row and slot of the positive, column of the item
Counted = tuple[Tensor, Tensor, Callable[[Tensor], Iterator[Doubt]]]


class Workspace(local):
    """Two blocks of float32 for each thread, used again and again.

    New ones for every block of scores would come to lie between small tensors that live on, and malloc could
    not use their room again: the process would grow by gigabytes.
    """

    def __init__(self) -> None:
        self._blocks: dict[str, Tensor] = {}

    def block(self, name: str, shape: Sequence[int], device: torch.device) -> Tensor:
        """Room of that shape under a name, with what was left there."""
        size = math.prod(shape)
        if name not in self._blocks or len(self._blocks[name]) < size:
            self._blocks[name] = torch.empty(size, device=device)
        return self._blocks[name][:size].view(*shape)


@dataclass
class Rows:
    """A block of queries, their positives (nearest first), and how many others lie closer than each."""

    places: slice  # of the queries, in the order of classes
    distances: Tensor  # [rows, slots] of points, squares off by `square_error`; inf for no more positives
    positives: Tensor  # [rows, slots] gallery index
    closer: Tensor  # [rows, slots] others that are closer
    limit: int  # ranks are exact up to this
    lock: Lock = field(default_factory=Lock)  # blocks are counted side by side


def count_closer(
    rows: Rows, side: Side, other: Side, columns: slice, scores: Tensor, workspace: Workspace
) -> None:
    """Adds to `rows.closer` the items of a block of scores [rows, columns] that are closer.

    Items of a query's own class must score -inf.
    """
    slots = torch.arange(rows.closer.shape[1], device=scores.device)
    if not len(slots):
        return
    error = score_error(side, other, rows.places, columns)
    low, high = _bounds(rows, error + square_error(side), rows.closer + slots >= rows.limit)
    count = _by_comparing if len(slots) <= FEW_POSITIVES else _by_sorting
    above_low, closer, list_between = count(scores, low, high, rows.limit, workspace)
    between = above_low - closer
    between[rows.closer + slots + closer >= rows.limit] = 0
    doubts = int(between.sum())
    if doubts > scores.numel() // 8:  # ties everywhere: all in float64 is cheaper than one by one
        closer = _count_exactly(rows, side, other, columns)
    elif doubts:
        for doubt in list_between(between):
            _settle(doubt, closer, rows, side, other, columns)
    with rows.lock:
        rows.closer += closer


def _settle(doubt: Doubt, closer: Tensor, rows: Rows, side: Side, other: Side, columns: slice) -> None:
    """Adds to `closer` the doubts whose float64 distance is smaller, or equal with a smaller index."""
    queries, items = side.order[rows.places], other.order[columns]
    for row, slot, column in zip(*(torch.split(part, DOUBTS_AT_ONCE) for part in doubt), strict=True):
        item, positive = items[column], rows.positives[row, slot]
        distance, to_positive = _both_distances(side, other, queries[row], item, positive).unbind(dim=1)
        nearer = _is_closer(distance, item, to_positive, positive)
        closer.index_put_((row, slot), nearer.long(), accumulate=True)


def _both_distances(side: Side, other: Side, query: Tensor, item: Tensor, positive: Tensor) -> Tensor:
    """[n, 2] From each query to an item and to its positive."""
    items = torch.stack([other.exact[item], other.exact[positive]], dim=1)
    return exact_distances(side.exact[query][:, None], items)[:, 0]


def _is_closer(distance: Tensor, item: Tensor, to_positive: Tensor, positive: Tensor) -> Tensor:
    return (distance < to_positive) | ((distance == to_positive) & (item < positive))


def _bounds(rows: Rows, error: Tensor, beyond: Tensor) -> tuple[Tensor, Tensor]:
    """Scores [rows, slots] surely farther and surely closer than each positive; inf for what nobody asks."""
    score = -rows.distances.square() / 2
    margin = error[:, None] - score * 2**-22  # the second term: the bounds themselves are rounded to float32
    unasked = beyond | rows.distances.isinf()
    low, high = (score - margin).float(), (score + margin).float()
    return low.masked_fill_(unasked, torch.inf), high.masked_fill_(unasked, torch.inf)


def _by_comparing(scores: Tensor, low: Tensor, high: Tensor, limit: int, workspace: Workspace) -> Counted:
    """Counts [rows, slots] of scores above each bound, by a pass over the block for each; lists on demand."""
    room = workspace.block("passed", scores.shape, scores.device)
    passed = room.as_strided(
        scores.shape, scores.stride()
    )  # ones and zeros as float32: far quicker than bool

    def above(bounds: Tensor) -> Tensor:
        columns = bounds.T.contiguous()  # strided bounds would cost the comparison its vector instructions
        counts = [torch.gt(scores, bound[:, None], out=passed).sum(dim=1) for bound in columns]
        return torch.stack(counts, dim=1).long()

    def list_between(between: Tensor) -> Iterator[Doubt]:
        for row, slot in zip(
            *(torch.split(part, 256) for part in between.nonzero(as_tuple=True)), strict=True
        ):
            lines = scores[row]
            inside = (lines > low[row, slot][:, None]) & (lines <= high[row, slot][:, None])
            pair, column = inside.nonzero(as_tuple=True)
            yield row[pair], slot[pair], column

    return above(low), above(high), list_between


def _by_sorting(scores: Tensor, low: Tensor, high: Tensor, limit: int, workspace: Workspace) -> Counted:
    """The same by binary search in the sorted rows, of which no more than the limit's best are needed."""
    width = scores.shape[1]
    for kept in (min(limit + SPARE, width), width):
        ascending = _best(scores, kept, workspace)
        above_low, above_high = (
            kept - torch.searchsorted(ascending, bound, right=True) for bound in (low, high)
        )
        if not ((above_low == kept) & (above_high < limit)).any():  # else doubts may run past the edge
            break

    def list_between(between: Tensor) -> Iterator[Doubt]:
        row, slot = between.nonzero(as_tuple=True)
        doubtful, line = row.unique(return_inverse=True)
        columns = scores[doubtful].topk(kept, dim=1).indices
        widths = between[row, slot]
        ends = widths.cumsum(0)
        position = torch.arange(int(widths.sum()), device=widths.device)
        position += (above_high[row, slot] - ends + widths).repeat_interleave(widths)
        row, slot, line = (part.repeat_interleave(widths) for part in (row, slot, line))
        yield row, slot, columns[line, position]

    return above_low, above_high, list_between


def _best(scores: Tensor, kept: int, workspace: Workspace) -> Tensor:
    """The `kept` largest of each row, ascending."""
    if scores.device.type != "cpu":
        return scores.topk(kept, dim=1).values.flip(1)
    copy = workspace.block("passed", scores.shape, scores.device).copy_(scores).numpy()
    least = scores.shape[1] - kept
    if least:  # NumPy selects without indices, six times faster than torch with them
        copy.partition(least, axis=1)
    best = np.ascontiguousarray(copy[:, least:])
    best.sort(axis=1)
    return torch.from_numpy(best)


def _count_exactly(rows: Rows, side: Side, other: Side, columns: slice) -> Tensor:
    """Counts [rows, slots] of the closer items of the block, all in float64."""
    counts = torch.zeros_like(rows.closer)
    item, keys = other.order[columns], other.keys[columns]
    for start in range(0, len(counts), 16):
        part = slice(start, start + 16)
        query = side.exact[side.order[rows.places][part]]
        distance = exact_distances(query, other.exact[item])
        distance[side.keys[rows.places][part, None] == keys] = torch.inf
        for slot, positive in enumerate(rows.positives[part].T):
            to_positive = exact_distances(query[:, None], other.exact[positive][:, None])[:, 0]
            counts[part, slot] = _is_closer(distance, item, to_positive, positive[:, None]).sum(dim=1)
    return counts
