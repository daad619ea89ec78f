"""Shared by the losses over ranked lists: which items are positives, and queries in blocks of bounded memory.

A query compares each of its P positives with all N items. For all queries at once that is N x P x N
numbers; here one block of queries exists at a time, and is computed again for its gradient.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import normalize

from softwarp.losses.contract import Card
from softwarp.losses.distances import check_finite, check_input, widen

# Numbers in the largest tensor of a block, a handful of which exist together: about 100 MB in float32.
BLOCK_ELEMENTS = 2**22


class Lists(NamedTuple):
    """What a block of B queries sees; P is the largest number of positives, with padding for the others."""

    similarities: Tensor  # [B, N]: to each item; -inf to the query itself where it is left out
    own: Tensor  # [B, P]: to each positive
    real: Tensor  # [B, P]: False where `own` is padding
    same: Tensor  # [B, N]: whether the item has the query's class

    def gaps(self) -> Tensor:
        """Return s_j - s_i as [B, P, N]: by how much item j comes before positive i."""
        return self.similarities[:, None, :] - self.own[:, :, None]

    def own_gaps(self) -> Tensor:
        """Return the same among the positives, [B, P, P]; padding is not masked."""
        return self.own[:, None, :] - self.own[:, :, None]

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean [B] of values [B, P] over the positives that are real."""
        return (values * self.real).sum(1) / self.real.sum(1)


def over_queries(
    function: Callable[[Lists], Tensor],
    items: Tensor,
    labels: Tensor,
    *,
    with_query: bool,
    query_ranked: bool = False,
    width: int | None = None,
) -> Tensor:
    """Return `function` of every query's list, [Q]; a query is an item that shares its class with another.

    Args:
        with_query: whether the query stands in its own list, as its own positive.
        query_ranked: whether it stands there without being a positive.
        width: numbers that `function` makes for each query and item; by default the number of positives.
    """
    columns, real = positive_columns(labels, with_query=with_query)
    queries = find_queries(real.sum(1) > int(with_query))

    def block(items: Tensor, rows: Tensor) -> Tensor:
        similarities = items[rows] @ items.T
        own = similarities.gather(1, columns[rows])
        if not (with_query or query_ranked):
            similarities = similarities.scatter(1, rows[:, None], -torch.inf)
        return function(Lists(similarities, own, real[rows], labels[rows, None] == labels))

    return torch.cat(in_blocks(block, items, queries, width=width or columns.shape[1]))


def in_blocks(
    function: Callable[[Tensor, Tensor], Tensor], items: Tensor, rows: Tensor, *, width: int
) -> list[Tensor]:
    """Return function(items, some rows) for all rows, in blocks; gradients compute it once more.

    Args:
        width: numbers that `function` makes for each row and item.
    """
    blocks = rows.split(max(1, BLOCK_ELEMENTS // (len(items) * width)))
    if len(blocks) == 1:
        return [function(items, rows)]
    return [_Recomputed.apply(items, block, function) for block in blocks]


class _Recomputed(torch.autograd.Function):
    """function(items, rows), which keeps nothing for its gradient but its arguments.

    torch.utils.checkpoint does the same, but its first call imports the compiler: seconds, and 170 MB.
    """

    @staticmethod
    def forward(
        ctx: Any, items: Tensor, rows: Tensor, function: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        ctx.save_for_backward(items, rows)
        ctx.function = function
        return function(items, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        items, rows = ctx.saved_tensors
        with torch.enable_grad(), torch.autocast(items.device.type, enabled=False):
            leaf = items.detach().requires_grad_()
            total = (ctx.function(leaf, rows) * gradient).sum()
            return torch.autograd.grad(total, leaf)[0], None, None


def positive_columns(labels: Tensor, *, with_query: bool) -> tuple[Tensor, Tensor]:
    """Return for each sample the samples of its class, [N, P], and which of these are real, not padding.

    >>> columns, real = positive_columns(torch.tensor([7, 3, 7, 7]), with_query=False)
    >>> columns[real].tolist()
    [2, 3, 0, 3, 0, 2]
    """
    inverse, counts = labels.unique(return_inverse=True, return_counts=True)[1:]
    order = inverse.argsort(stable=True)
    starts = (counts.cumsum(0) - counts)[inverse, None]
    left_out = 0 if with_query else 1
    steps = torch.arange(int(counts.max()) - left_out, device=labels.device).expand(len(labels), -1)
    real = steps < counts[inverse, None] - left_out
    if not with_query:
        steps = steps + (steps >= order.argsort()[:, None] - starts)  # skips the sample itself
    return order[(starts + steps).clamp_max(len(labels) - 1)], real


def find_queries(has_positive: Tensor) -> Tensor:
    """Return the indices of the samples that share their class with another; there must be some."""
    if not has_positive.any():
        raise ValueError(
            "no sample has another one of its class in the batch, so that nothing can be ranked; "
            "raise batches.samples to 2 or more"
        )
    return has_positive.nonzero().flatten()


def unit_rows(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Return the embeddings with length one, in at least float32, after checking the batch."""
    classes = int(labels.max()) + 1 if labels.numel() else 1
    check_input(embeddings, labels, max(classes, 1), embeddings.shape[-1])
    unit = normalize(widen(embeddings)[0])
    check_finite(unit, embeddings, embeddings)
    return unit


def check_lists(card: Card, sizes: tuple[int, int], embeddings: Tensor, labels: Tensor) -> None:
    """Raise a ValueError when the batch does not fit the loss, or no class of it has enough samples.

    Samples that are alone in their class are allowed among others: they are ranked but are not queries.
    """
    check_input(embeddings, labels, *sizes)
    counts = labels.unique(return_counts=True)[1]
    if len(counts) < card.min_classes or int(counts.max()) < card.min_samples:
        card.check_counts(labels)
