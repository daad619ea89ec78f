"""Value and gradients of any softmax over classes in one pass, by the chunks and tiles of `fused.py`.

Some of the classes may be in other processes: each works through the same rows, chunk by chunk.
"""

from typing import Any

import torch
from torch import Tensor

from softwarp.losses.fused import Close, chunk, columns_of_a_tile, one_tensor, rows_of_a_chunk, slices


def fused_terms(
    queries: Tensor,
    keys: Tensor,
    own: Tensor,
    *,
    columns: Tensor,
    bias: Tensor | None,
    scale: float | None,
    width: int,
    close: Close,
) -> Tensor:
    """Return the mean over the batch of log(1 + sum_j exp(logit_ij - own_i)), j over the other classes.

    Args:
        own: the logit of each row's own class, [N].
        columns: the place of that class among the keys, negative if it is elsewhere.
        bias: added to products with the keys; none for distances.
        scale: of distances; None for products.
        width: the most keys that any process has: all must work through the same chunks.
        close: joins log(sum_j exp(logit_ij)) of the keys here with that of the others.
    """
    chunk_rows = rows_of_a_chunk(queries, width)
    sizes = (chunk_rows, columns_of_a_tile(queries, chunk_rows))
    loss: Tensor = _FusedTerms.apply(
        queries, keys, own, bias, columns, scale, *sizes, close, torch.is_grad_enabled()
    )
    return loss


class _FusedTerms(torch.autograd.Function):
    """The gradients are made together with the value, for a gradient of 1 on the mean loss."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        own: Tensor,
        bias: Tensor | None,
        columns: Tensor,
        scale: float | None,
        chunk_rows: int,
        tile_columns: int,
        close: Close,
        grad_enabled: bool,
    ) -> Tensor:
        with_grad = grad_enabled and any(ctx.needs_input_grad[:4])
        grad_keys = torch.zeros_like(keys) if with_grad else None
        grad_bias = torch.zeros_like(bias) if with_grad and bias is not None else None
        losses, grads, batch = [], [], len(queries)
        for rows in slices(batch, chunk_rows):
            part = (queries[rows], keys, columns[rows], -own[rows], scale, tile_columns, grad_keys, batch)
            loss, grad = chunk(*part, bias=bias, grad_bias=grad_bias, close=close)
            losses.append(loss)
            grads.append(grad)
        loss = one_tensor(losses)
        if grad_keys is not None:
            grad_own = torch.expm1(-loss).div_(batch)
            ctx.save_for_backward(one_tensor(grads), grad_keys, grad_own, grad_bias)
        return loss.mean()

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True, for which the gradients would be constants
            raise ValueError("a sharded loss has no second derivatives; leave out create_graph=True")
        grads = [None if grad is None else grad * grad_loss for grad in ctx.saved_tensors]
        return (*grads, *[None] * 6)
