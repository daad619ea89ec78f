"""The fast form of the warped softmax: value and gradients in one pass over the N x C matrix.

Rows are taken in chunks, so that only one chunk of the matrix exists; a chunk is made of column
tiles, so that the element-wise work finds its data in the cache. For each tile, once:

    t = |e - p|  by one matrix product, then  u = exp(s (m - t)),  m = the row's smallest t in the tile

The tile keeps u / t. When a chunk's losses are known, softmax weights differ from u by one factor
per row and tile, exp(s f1 - loss - s m), so the gradients are two more products and no second exp.
Each row's own column is left out of the tiles: its distance is a direct difference, its gradient exact.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

CHUNK_BYTES = 2**27
# On a CPU a tile should stay in the cache; on a GPU there should be few kernel launches.
CPU_TILE_ELEMENTS = 2**19
GPU_TILE_ELEMENTS = 2**26
# exp(-80) is negligible next to the row's largest term, and not yet a denormal: those slow products down.
SMALLEST_EXPONENT = -80.0


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
    """Return the mean loss over the batch; alpha, k1 and k2 are numbers or tensors [N]."""
    rows, classes = len(embeddings), len(proxies)
    if chunk_rows is None:
        chunks = -(-rows * classes * embeddings.element_size() // CHUNK_BYTES)
        chunk_rows = -(-rows // chunks)
    if tile_columns is None:
        elements = CPU_TILE_ELEMENTS if embeddings.device.type == "cpu" else GPU_TILE_ELEMENTS
        tile_columns = max(1, elements // chunk_rows)
    warp = [
        torch.as_tensor(value, dtype=embeddings.dtype, device=embeddings.device) for value in (alpha, k1, k2)
    ]
    settings = (scale, delta, chunk_rows, tile_columns, torch.is_grad_enabled())
    loss: Tensor = _FusedSoftmax.apply(embeddings, proxies, labels, *warp, *settings)
    return loss


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
        for rows in _slices(len(embeddings), chunk_rows):
            e, y = embeddings[rows], labels[rows]
            loss, grad = _chunk(e, proxies, y, own[rows], scale, tile_columns, grad_proxies, len(t))
            losses.append(loss)
            grads.append(grad)
        loss = _joined(losses)
        if grad_proxies is not None:
            own_grad = difference.mul_((own_force * -torch.expm1(-loss))[:, None])
            grad_proxies.index_add_(0, labels, own_grad, alpha=-1)
            ctx.save_for_backward(own_grad.add_(_joined(grads)), grad_proxies)
        return loss.mean()

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # by create_graph=True: the gradients would pass for constants
            raise ValueError(
                "the fused warped softmax has no second derivatives; take the mean of warped_softmax_loss, "
                "which has them, or leave out create_graph=True"
            )
        grads = ctx.saved_tensors
        # Checking the value avoids the copy, where that costs no synchronisation.
        if grad_loss.device.type != "cpu" or grad_loss.item() != 1:
            grads = [grad * grad_loss for grad in grads]
        return (*grads, *[None] * 9)


def _slices(length: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _chunk(
    e: Tensor,
    proxies: Tensor,
    y: Tensor,
    own: Tensor,
    scale: float,
    tile_columns: int,
    grad_proxies: Tensor | None,
    batch: int,
) -> tuple[Tensor, Tensor]:
    """Return the losses of these rows and the other proxies' gradient on them; add to `grad_proxies`.

    Only in-place products are used: autocast leaves those alone, so they stay in full precision.
    """
    parts = _slices(len(proxies), tile_columns)
    tiles, minima, sums = [], [], []
    for part in parts:
        tile, minimum, total = _tile(e, proxies[part], y - part.start, scale, only=len(parts) == 1)
        if grad_proxies is not None:
            tiles.append(tile)
        minima.append(minimum)
        sums.append(total.log_().sub_(minimum))
    others = sums[0] if len(sums) == 1 else torch.stack(sums).logsumexp(0)
    loss = softplus(others.add_(own), threshold=40)  # the default of 20 cuts off after 2e-9
    grad = torch.zeros_like(e)
    if grad_proxies is None:
        return loss, grad
    pull = torch.zeros_like(loss)
    for part, a, minimum in zip(parts, tiles, minima, strict=True):
        a.mul_((own - loss - minimum).exp_().mul_(scale / batch)[:, None])
        pull.add_(a.sum(1))
        grad.addmm_(a, proxies[part])
        grad_proxies[part].addcmul_(proxies[part], a.sum(0)[:, None], value=-1).addmm_(a.T, e)
    return loss, grad.addcmul_(e, pull[:, None], value=-1)


def _tile(e: Tensor, p: Tensor, own: Tensor, scale: float, only: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return u / t with its own column zero, s times each row's smallest t, and each row's sum of u."""
    tile = torch.add(e.square().sum(1)[:, None], p.square().sum(1)).addmm_(e, p.T, alpha=-2)
    index = own[:, None]
    if only:
        tile.scatter_(1, index, torch.inf)
    else:
        here = (index >= 0) & (index < len(p))
        index = index.clamp(0, len(p) - 1)
        tile.scatter_(1, index, tile.gather(1, index).masked_fill_(here, torch.inf))
    t = tile.clamp_min_(0).sqrt_()
    minimum = t.amin(1).clamp_max_(1e30).mul_(scale)  # finite also where its own column is the only one
    u = torch.add(minimum[:, None], t, alpha=-scale).clamp_min_(SMALLEST_EXPONENT).exp_()
    total = u.sum(1)
    # On a proxy u / t is infinite, and the gradient there is zero by definition.
    return torch.div(u, t, out=t).nan_to_num_(nan=torch.nan, posinf=0.0), minimum, total
