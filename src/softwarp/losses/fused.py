"""The fast form of a softmax over classes: value and gradients in one pass over the N x C matrix.

Rows are taken in chunks, so that only one chunk of the matrix exists; a chunk is made of column
tiles, so that the element-wise work finds its data in the cache. For each tile, once:

    t = |e - p|  by one matrix product, then  u = exp(s (m - t)),  m = the row's smallest t in the tile

The tile keeps u / t. When a chunk's losses are known, softmax weights differ from u by one factor
per row and tile, exp(s f1 - loss - s m), so the gradients are two more products and no second exp.
Each row's own column is left out of the tiles: its distance is a direct difference, its gradient exact.

`fused_softmax` is the warped softmax. `fused_terms.py` uses the same chunks for any softmax over classes,
some of which may be in other processes: `close` joins their sums when a chunk has its own.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from softwarp.losses.checks import check_whole
from softwarp.losses.distances import check_batch, check_finite, widen
from softwarp.losses.warps import per_sample

CHUNK_BYTES = 2**27
# On a CPU a tile should stay in the cache; on a GPU there should be few kernel launches.
CPU_TILE_ELEMENTS = 2**19
GPU_TILE_ELEMENTS = 2**26
# exp(-80) is negligible next to the row's largest term, and not yet a denormal: those slow products down.
SMALLEST_EXPONENT = -80.0

Close = Callable[[Tensor], Tensor]


def fused_softmax(
    embeddings: Tensor,
    proxies: Tensor,
    labels: Tensor,
    *,
    alpha: float | Tensor,
    k1: float | Tensor,
    k2: float | Tensor,
    scale: float,
    delta: float,
    chunk_rows: int | None = None,
    tile_columns: int | None = None,
) -> Tensor:
    """Return the mean warped softmax loss over the batch, for a warp that was checked before.

    The modules check theirs once, not at every step. The arguments are those of `fused_warped_softmax_loss`.
    """
    check_batch(embeddings, proxies, labels)
    e, p = widen(embeddings, proxies)
    y = labels.long()
    chunk_rows = rows_of_a_chunk(e, len(p)) if chunk_rows is None else chunk_rows
    tile_columns = columns_of_a_tile(e, max(1, chunk_rows)) if tile_columns is None else tile_columns
    check_whole(chunk_rows=chunk_rows, tile_columns=tile_columns)
    warp = [
        torch.as_tensor(per_sample(value, y), dtype=e.dtype, device=e.device) for value in (alpha, k1, k2)
    ]
    settings = (scale, delta, chunk_rows, tile_columns, torch.is_grad_enabled())
    loss: Tensor = _FusedSoftmax.apply(e, p, y, *warp, *settings)
    check_finite(loss, embeddings, proxies)
    return loss


def rows_of_a_chunk(embeddings: Tensor, classes: int) -> int:
    """Return how many rows of the matrix are held at a time."""
    rows = len(embeddings)
    chunks = -(-rows * max(1, classes) * embeddings.element_size() // CHUNK_BYTES)
    return -(-rows // chunks)


def columns_of_a_tile(embeddings: Tensor, chunk_rows: int) -> int:
    """Return how many columns are worked on at a time."""
    elements = CPU_TILE_ELEMENTS if embeddings.device.type == "cpu" else GPU_TILE_ELEMENTS
    return max(1, elements // chunk_rows)


class _FusedSoftmax(torch.autograd.Function):
    """The gradients are made together with the value, for a gradient of 1 on the mean loss."""

    @staticmethod
    def forward(
        ctx: Any,
        embeddings: Tensor,
        proxies: Tensor,
        labels: Tensor,
        alpha: Tensor,
        k1: Tensor,
        k2: Tensor,
        scale: float,
        delta: float,
        chunk_rows: int,
        tile_columns: int,
        grad_enabled: bool,
    ) -> Tensor:
        with_grad = grad_enabled and any(ctx.needs_input_grad[:2])
        grad_proxies = torch.zeros_like(proxies) if with_grad else None
        difference = embeddings - proxies.index_select(0, labels)
        t = torch.linalg.vector_norm(difference, dim=1)
        inside = t < alpha
        slope = torch.where(inside, k1, k2)
        offset = torch.where(inside, delta * (1 - k1) * t, (1 - k2) * alpha)
        own = scale * (slope * t + offset)
        # The force of a row's own distance per unit of (e - p), before the softmax weight; zero on the proxy.
        own_force = (scale / len(t)) * slope / t.masked_fill_(t == 0, torch.inf)

        losses, grads = [], []
        for rows in slices(len(embeddings), chunk_rows):
            e, y = embeddings[rows], labels[rows]
            loss, grad = chunk(e, proxies, y, own[rows], scale, tile_columns, grad_proxies, len(t))
            losses.append(loss)
            grads.append(grad)
        loss = one_tensor(losses)
        if grad_proxies is not None:
            own_grad = difference.mul_((own_force * -torch.expm1(-loss))[:, None])
            grad_proxies.index_add_(0, labels, own_grad, alpha=-1)
            ctx.save_for_backward(own_grad.add_(one_tensor(grads)), grad_proxies)
        return loss.mean()

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True, for which the gradients would be constants
            raise ValueError(
                "the fused warped softmax has no second derivatives; take the mean of warped_softmax_loss, "
                "which has them, or leave out create_graph=True"
            )
        grads = ctx.saved_tensors
        # Checking the value avoids the copy, where that costs no synchronisation.
        if grad_loss.device.type != "cpu" or grad_loss.item() != 1:
            grads = [grad * grad_loss for grad in grads]
        return (*grads, *[None] * 9)


def slices(length: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


def one_tensor(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def chunk(
    e: Tensor,
    vectors: Tensor,
    y: Tensor,
    own: Tensor,
    scale: float | None,
    tile_columns: int,
    grad_vectors: Tensor | None,
    batch: int,
    *,
    bias: Tensor | None = None,
    grad_bias: Tensor | None = None,
    close: Close | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the losses of these rows and the other classes' gradient on them; add to the other gradients.

    Only in-place products are used: autocast leaves those alone, so they stay in full precision.

    Args:
        y: the place of each row's own class among the vectors, negative if it is elsewhere.
        own: minus the logit of each row's own class.
        scale: None for logits that are products.
    """
    parts = slices(len(vectors), tile_columns)
    tiles, minima, sums = [], [], []
    for part in parts:
        place = y - part.start
        if scale is None:
            added = None if bias is None else bias[part]
            tile, minimum, total = _product_tile(e, vectors[part], place, added)
        else:
            only = len(parts) == 1 and close is None
            tile, minimum, total = _tile(e, vectors[part], place, scale, only=only)
        if grad_vectors is not None:
            tiles.append(tile)
        minima.append(minimum)
        sums.append(total.log_().sub_(minimum))
    if len(sums) > 1:
        others = torch.stack(sums).logsumexp(0)
    else:
        others = sums[0] if sums else torch.full_like(own, -torch.inf)
    if close is not None:
        others = close(others)
    loss = softplus(others.add_(own), threshold=40)  # the default of 20 cuts off after 2e-9
    grad = torch.zeros_like(e)
    if grad_vectors is None:
        return loss, grad
    pull = torch.zeros_like(loss)
    for part, a, minimum in zip(parts, tiles, minima, strict=True):
        a.mul_((own - loss - minimum).exp_().mul_((scale or 1.0) / batch)[:, None])
        grad.addmm_(a, vectors[part])
        if scale is not None:
            pull.add_(a.sum(1))
            grad_vectors[part].addcmul_(vectors[part], a.sum(0)[:, None], value=-1)
        grad_vectors[part].addmm_(a.T, e)
        if grad_bias is not None:
            grad_bias[part].add_(a.sum(0))
    return loss, grad if scale is None else grad.addcmul_(e, pull[:, None], value=-1)


def _tile(e: Tensor, p: Tensor, own: Tensor, scale: float, only: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return u / t with its own column zero, s times each row's smallest t, and each row's sum of u."""
    tile = torch.add(e.square().sum(1)[:, None], p.square().sum(1)).addmm_(e, p.T, alpha=-2)
    if only:
        tile.scatter_(1, own[:, None], torch.inf)
    else:
        _fill_own(tile, own, torch.inf)
    t = tile.clamp_min_(0).sqrt_()
    minimum = t.amin(1).clamp_max_(1e30).mul_(scale)  # finite also where its own column is the only one
    u = torch.add(minimum[:, None], t, alpha=-scale).clamp_min_(SMALLEST_EXPONENT).exp_()
    total = u.sum(1)
    # On a proxy u / t is infinite, and the gradient there is zero by definition.
    return torch.div(u, t, out=t).nan_to_num_(nan=torch.nan, posinf=0.0), minimum, total


def _product_tile(
    e: Tensor, vectors: Tensor, own: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return u = exp(z - max z) with its own column zero, minus each row's largest z, and its sum of u."""
    z = e.new_zeros(len(e), len(vectors)) if bias is None else bias.repeat(len(e), 1)
    z.addmm_(e, vectors.T)
    _fill_own(z, own, -torch.inf)
    minimum = z.amax(1).clamp_min_(-1e30).neg_()
    u = z.add_(minimum[:, None]).clamp_min_(SMALLEST_EXPONENT).exp_()
    _fill_own(u, own, 0.0)
    return u, minimum, u.sum(1)


def _fill_own(tile: Tensor, own: Tensor, value: float) -> None:
    """Set each row's own column, if it is in this tile."""
    index = own[:, None]
    here = (index >= 0) & (index < tile.shape[1])
    index = index.clamp(0, tile.shape[1] - 1)
    tile.scatter_(1, index, tile.gather(1, index).masked_fill_(here, value))
