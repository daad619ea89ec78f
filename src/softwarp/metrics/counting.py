"""Counting, in one block of scores, the items closer to each query than each of its positives.

Only scores above that of a query's farthest positive still asked for matter: one pass over the block lists
these few, and a search finds the nearest positive that each of them beats. Float32 scores decide what they
can; what comes nearer to a positive's score than their error is a doubt and settled by the float64 distance,
ties by index. `ranks.py` says why, and where the blocks come from.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock, local

import numpy as np
import torch
from torch import Tensor

from softwarp.metrics.scaling import exact_distances
from softwarp.metrics.scores import Side, score_error, square_error

LISTED_AT_ONCE = 1 << 17  # scores; if more of a block matter, half is counted first, which leaves fewer
DOUBTS_AT_ONCE = 1024  # pairs whose float64 rows are in cache together
LOWEST_BIT = np.array([max(0, (byte & -byte).bit_length() - 1) for byte in range(256)])  # its place in a byte


class Workspace(local):
    """Two blocks for each thread, used again and again.

    New blocks each time would lie between small tensors that live on, so malloc could not reuse their room,
    and the process would grow by gigabytes.
    """

    def __init__(self) -> None:
        self._blocks: dict[torch.dtype, Tensor] = {}

    def block(self, dtype: torch.dtype, shape: Sequence[int], device: torch.device) -> Tensor:
        """Room of that shape, one for each type, with what was left there."""
        size = math.prod(shape)
        if dtype not in self._blocks or len(self._blocks[dtype]) < size:
            self._blocks[dtype] = torch.empty(size, dtype=dtype, device=device)
        return self._blocks[dtype][:size].view(*shape)


@dataclass
class QueryBlock:
    """A block of queries, their positives (nearest first), and how many others lie closer than each."""

    places: slice  # where the queries are, in the order of classes
    scores: Tensor  # [rows, slots] of the positives, in float64, off by `square_error`; -inf for no more
    positives: Tensor  # [rows, slots] gallery index
    closer: Tensor  # [rows, slots] others that are closer, without those in doubt
    limit: int  # ranks are exact up to this
    doubts: list[Tensor] = field(default_factory=list)  # each [3, n]: row, place of the slot, gallery index
    lock: Lock = field(default_factory=Lock)  # blocks are counted side by side

    def asked(self) -> Tensor:
        """[rows, slots] Whether a positive's rank may still be within the limit: the first of each row."""
        slots = torch.arange(self.closer.shape[1], device=self.closer.device)
        with self.lock:
            return (self.closer + slots < self.limit) & self.scores.isfinite()

    def add(self, closer: Tensor, doubts: Tensor | None = None) -> None:
        """Adds what a block has; other threads may add at the same time."""
        with self.lock:
            self.closer += closer
            self.doubts += [] if doubts is None else [doubts]

    def take_doubts(self, least: int) -> Tensor | None:
        """All doubts so far, no longer kept here; None where they are fewer than that."""
        with self.lock:
            if sum(part.shape[1] for part in self.doubts) < least:
                return None
            taken, self.doubts = torch.cat(self.doubts, dim=1), []
            return taken


def count_closer(
    rows: QueryBlock, side: Side, other: Side, columns: slice, scores: Tensor, workspace: Workspace
) -> None:
    """Adds to `rows.closer` the items of a block of scores [rows, columns] that are closer.

    Items of a query's own class must score -inf. `settle` must follow the last block.
    """
    if not rows.scores.shape[1]:
        return
    low, high = _bounds(rows, score_error(side, other, rows.places, columns) + square_error(side))
    least = low.masked_fill(~rows.asked(), torch.inf).amin(dim=1)
    listed = _listed(scores, least, workspace)
    width = scores.shape[1]
    if listed is None:
        for start, stop in ((0, width // 2), (width // 2, width)):
            part = slice(columns.start + start, columns.start + stop)
            count_closer(rows, side, other, part, scores[:, start:stop], workspace)
        return
    row, column, score = listed
    beaten = _first_beaten(low, row, score)
    doubts = _doubts(high, row, column, score, beaten, scores.numel() // 8)
    if doubts is None:  # ties everywhere: all in float64 is cheaper than one by one
        rows.add(_count_exactly(rows, side, other, columns))
        return
    closer = torch.bincount(beaten, minlength=low.numel()).view_as(low).cumsum(dim=1)
    closer.view(-1).index_add_(0, doubts[1], torch.full_like(doubts[1], -1))
    doubts[2] = other.order[columns][doubts[2]]
    rows.add(closer, doubts)
    settle(rows, side, other, DOUBTS_AT_ONCE)


def settle(rows: QueryBlock, side: Side, other: Side, least: int = 1) -> None:
    """Adds to `rows.closer` the doubts whose float64 distance is smaller, if there are so many."""
    doubts = rows.take_doubts(least)
    for part in [] if doubts is None else torch.split(doubts, DOUBTS_AT_ONCE, dim=1):
        row, place, item = part
        query, positive = side.order[rows.places][row], rows.positives.view(-1)[place]
        distance, to_positive = _both_distances(side, other, query, item, positive).unbind(dim=1)
        nearer = _is_closer(distance, item, to_positive, positive).long()
        with rows.lock:
            rows.closer.view(-1).index_add_(0, place, nearer)


def _both_distances(side: Side, other: Side, query: Tensor, item: Tensor, positive: Tensor) -> Tensor:
    """[n, 2] From each query to an item and to its positive."""
    items = torch.stack([other.exact[item], other.exact[positive]], dim=1)
    return exact_distances(side.exact[query][:, None], items)[:, 0]


def _is_closer(distance: Tensor, item: Tensor, to_positive: Tensor, positive: Tensor) -> Tensor:
    return (distance < to_positive) | ((distance == to_positive) & (item < positive))


def _bounds(rows: QueryBlock, error: Tensor) -> tuple[Tensor, Tensor]:
    """Scores [rows, slots] surely farther and surely closer than each positive; both descend along a row."""
    rounding = 2**-22  # the bounds themselves are rounded to float32
    low, high = rows.scores * (1 + rounding) - error[:, None], rows.scores * (1 - rounding) + error[:, None]
    return low.float(), high.float()


def _listed(scores: Tensor, least: Tensor, workspace: Workspace) -> tuple[Tensor, Tensor, Tensor] | None:
    """Row, column and value of the scores above each row's least; None where there are too many."""
    turned = scores.stride(0) == 1  # then its columns lie side by side
    lines, bounds = (scores.T, least) if turned else (scores, least[:, None])
    if scores.device.type == "cpu":  # NumPy compares and lists several times faster than torch
        above = workspace.block(torch.bool, lines.shape, lines.device).numpy()
        np.greater(lines.numpy(), bounds.numpy(), out=above)
        if np.count_nonzero(above) > LISTED_AT_ONCE and scores.shape[1] > 1:
            return None
        places = _true_places(above)
        place, line = torch.from_numpy(places), torch.from_numpy(places // lines.shape[1])
    else:
        place = (lines > bounds).flatten().nonzero().flatten()
        line = place // lines.shape[1]
    item = place - line * lines.shape[1]
    step = lines.stride(0)  # a part of a block has gaps between its lines
    whole = lines.as_strided(((len(lines) - 1) * step + lines.shape[1],), (1,))
    value = whole.index_select(0, line * step + item)
    return (item, line, value) if turned else (line, item, value)


def _true_places(mask: np.ndarray) -> np.ndarray:
    """Flat indices of what is true, in any order: where that is little, faster than `np.flatnonzero`."""
    packed = np.packbits(mask, bitorder="little")  # eight to a byte, hardly two of them true
    byte, found = np.flatnonzero(packed.astype(bool)), []
    left = packed[byte]
    while len(left):
        found.append(byte * 8 + LOWEST_BIT[left])
        left &= left - 1
        more = np.flatnonzero(left)
        byte, left = byte[more], left[more]
    return np.concatenate(found) if found else byte


def _first_beaten(bounds: Tensor, row: Tensor, score: Tensor) -> Tensor:
    """Place in `bounds.view(-1)` of the first in its row, descending, below each score; else of the last."""
    flat, width = bounds.view(-1), bounds.shape[1]
    place = row * width
    while width > 1:
        half = width // 2
        place = place.add(flat[half - 1 :].index_select(0, place) >= score, alpha=half)
        width -= half
    return place


def _doubts(
    high: Tensor, row: Tensor, column: Tensor, score: Tensor, beaten: Tensor, most: int
) -> Tensor | None:
    """Row, place of the slot and column [3, n] of scores not surely above; None where there are too many."""
    unsure = (score <= high.view(-1).index_select(0, beaten)).nonzero().flatten()
    row, column, score, beaten = (part[unsure] for part in (row, column, score, beaten))
    widths = _first_beaten(high, row, score) - beaten  # each is in doubt about so many positives,
    widths += high.view(-1)[beaten + widths] >= score  # the last included
    if int(widths.sum()) > most:
        return None
    which = torch.arange(len(widths), device=widths.device).repeat_interleave(widths)
    offset = torch.arange(len(which), device=which.device) - (widths.cumsum(0) - widths)[which]
    return torch.stack([row[which], beaten[which] + offset, column[which]])


def _count_exactly(rows: QueryBlock, side: Side, other: Side, columns: slice) -> Tensor:
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
