"""Realigned Softmax Warping (DeMoor & Prevost): softmax over warped Euclidean distances to proxies.

    loss_i = log(1 + sum_{j != y_i} exp(s f1(t_iy) - s f2(t_ij))),   t_ij = |e_i - p_j|      (Eq. 8)

| symbol  | parameter | default | where |
|---------|-----------|---------|-------|
| t       | distances | -       | section 3, unnormalised Euclidean |
| f1, f2  | own, other| Eq. 7, t| Eq. 6: own distance through f1, the others through f2 |
| alpha   | alpha     | auto    | Eq. 7: radius where the force on an embedding turns round |
| k1, k2  | k1, k2    | 0.9, 1.2| Eq. 7: slopes inside and beyond alpha, 0 < k1 < 1 < k2; at 1 no warp |
| k Delta | delta     | 1.0     | Eq. 7: multiplier on Delta (0 = none; the authors: 1.3 to 1.5, faces 1) |
| -       | scale     | auto    | multiplies distances; the authors' code calls it temperature |

The defaults are the module's, not the paper's. With "auto", `automatic.py` measures scale and alpha in
lengths of the space, so the loss works in any number of dimensions without a search. The authors ran alpha
23 to 30 on CUB and Cars (13 and 6 on SOP), k1 0.5 to 0.95 and k2 1.12 to 1.62, in 512 dimensions (faces:
alpha 16 and 12, k1 0.3 and 0.2, k2 1.075 and 1.03); their recipes have these. Embeddings come to rest near
alpha, so a smaller space wants a smaller one.

`softmax_loss` and `warped_softmax_loss` are the specification, `fused_warped_softmax_loss` the fast
form that the modules use. Differs from the official code: the distance to its own proxy comes from a direct
difference, and there is no floor of 1e-6 under distances; at distance zero the gradient is zero.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from softwarp.losses.automatic import Auto, Lengths, auto_factor, radius
from softwarp.losses.contract import Card, Shard, Terms, Training, shown_settings
from softwarp.losses.distances import check_batch, check_finite, euclidean_distances, init_proxies, widen
from softwarp.losses.fused import fused_softmax
from softwarp.losses.warps import Warp, check_warp, identity, piecewise

PAPER = "DeMoor, Prevost: Realigned Softmax Warping for Deep Metric Learning. 2024"


def softmax_loss(
    embeddings: Tensor,
    proxies: Tensor,
    labels: Tensor,
    *,
    own: Warp = identity,
    other: Warp = identity,
    scale: float = 1.0,
) -> Tensor:
    """Return the loss of Eq. 8 for each sample, [N], with any f1 (`own`) and f2 (`other`).

    >>> proxies = torch.tensor([[0.0], [10.0]])
    >>> softmax_loss(torch.tensor([[5.0]]), proxies, torch.tensor([0]))
    tensor([0.6931])
    """
    check_batch(embeddings, proxies, labels)
    target = labels.long()[:, None]
    t = euclidean_distances(embeddings, proxies)
    own_logit = -scale * own(t.gather(1, target).squeeze(1))[:, None]
    gaps = (-scale * other(t) - own_logit).scatter(1, target, 0.0)
    loss = gaps.logsumexp(dim=1)
    check_finite(loss, embeddings, proxies)
    return loss


def warped_softmax_loss(
    embeddings: Tensor,
    proxies: Tensor,
    labels: Tensor,
    *,
    alpha: float | Tensor,
    k1: float | Tensor,
    k2: float | Tensor,
    scale: float = 1.0,
    delta: float = 1.0,
) -> Tensor:
    """Return the warped softmax loss (Eq. 7 and 8) for each sample, [N]: the specification.

    Args:
        alpha: radius >= 0; a number, or a tensor [C] with one value per class (so are k1 and k2).
        k1: positive slope inside alpha; below 1 it pushes embeddings outward.
        k2: positive slope beyond alpha; above 1 it pulls them back.
        scale: positive factor on all distances.
        delta: multiplier on the paper's Delta; 1 leaves the value below alpha unwarped.

    >>> proxies = torch.tensor([[0.0], [10.0]])
    >>> warped_softmax_loss(torch.tensor([[5.0]]), proxies, torch.tensor([0]), alpha=3.0, k1=0.5, k2=2.0)
    tensor([2.1269])
    """
    check_batch(embeddings, proxies, labels)
    check_warp(len(proxies), alpha=alpha, k1=k1, k2=k2, scale=scale, delta=delta)
    warp = piecewise(alpha=alpha, k1=k1, k2=k2, delta=delta, labels=labels)
    return softmax_loss(embeddings, proxies, labels, own=warp, scale=scale)


def fused_warped_softmax_loss(
    embeddings: Tensor,
    proxies: Tensor,
    labels: Tensor,
    *,
    alpha: float | Tensor,
    k1: float | Tensor,
    k2: float | Tensor,
    scale: float = 1.0,
    delta: float = 1.0,
    chunk_rows: int | None = None,
    tile_columns: int | None = None,
) -> Tensor:
    """Return the mean of `warped_softmax_loss` as a scalar, fast and in bounded memory.

    Args:
        chunk_rows: rows of the N x C matrix that are held at a time; by default 128 MB of them.
        tile_columns: columns worked on at a time; by default as many as stay in the cache.
    """
    warp: dict[str, Any] = {"alpha": alpha, "k1": k1, "k2": k2, "scale": scale, "delta": delta}
    check_warp(len(proxies), **warp)
    return fused_softmax(
        embeddings, proxies, labels, **warp, chunk_rows=chunk_rows, tile_columns=tile_columns
    )


class WarpedSoftmaxLoss(nn.Module):
    """The mean warped softmax loss over a batch, with one learned proxy per class.

    >>> loss = WarpedSoftmaxLoss(num_classes=10, embedding_size=4)
    >>> loss(torch.randn(3, 4), torch.tensor([0, 5, 9])).shape
    torch.Size([])
    """

    distance = "euclidean"
    class_vectors = "proxies"
    card: ClassVar[Card] = Card(
        title="Warped softmax",
        citation=PAPER,
        equation="-log(exp(-s f(t_iy)) / (exp(-s f(t_iy)) + sum_{j != y} exp(-s t_ij))), f of Eq. 7",
        kind="proxies",
        training=Training(
            by="official code",
            batch=(8, 8),
            rate_ratio=100.0,
            details="CUB, eps 1, weight decay 1e-7, rates 0.01 and 1.0, in the second phase 0.001 and "
            "0.0005; Cars 4 x 16; SOP 64 x 3, rates 0.024 and 225",
        ),
        search_space={
            "scale": ("auto", 0.1, 10.0),
            "alpha": ("auto", 0.1, 10.0),
            "k1": ("float", 0.1, 1.0),
            "k2": ("float", 1.0, 2.5),
        },
    )
    alpha: Tensor
    k1: Tensor
    k2: Tensor
    scale: float | Auto

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        alpha: float | Tensor | Auto = "auto",
        k1: float | Tensor = 0.9,
        k2: float | Tensor = 1.2,
        scale: float | Auto = "auto",
        delta: float = 1.0,
        proxy_init: str = "kaiming",
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.proxies = init_proxies(num_classes, embedding_size, proxy_init)
        self.lengths, self.alpha_due = Lengths(), 0.0
        self.set_warp(alpha=alpha, k1=k1, k2=k2, scale=scale, delta=delta)

    def set_warp(
        self,
        *,
        alpha: float | Tensor | Auto | None = None,
        k1: float | Tensor | None = None,
        k2: float | Tensor | None = None,
        scale: float | Auto | None = None,
        delta: float | None = None,
    ) -> None:
        """Change some of the warp's parameters, keep the rest: the start of a second phase.

        "auto" measures alpha on the next batch of training and then keeps it, and the scale before every one;
        "auto:2" takes twice that.
        """
        alpha_due = auto_factor(alpha)
        new = {"alpha": 0.0 if alpha_due else alpha, "k1": k1, "k2": k2, "scale": scale, "delta": delta}
        warp: dict[str, Any] = {
            name: getattr(self, name) if value is None else value for name, value in new.items()
        }
        check_warp(self.num_classes, **warp | {"scale": auto_factor(warp["scale"]) or warp["scale"]})
        k1, k2 = torch.as_tensor(warp["k1"]), torch.as_tensor(warp["k2"])
        if not bool((k1 <= 1).all() and (k2 >= 1).all()):
            raise ValueError(
                f"the warp needs 0 < k1 <= 1 <= k2, got k1={warp['k1']}, k2={warp['k2']}; "
                "for other slopes call warped_softmax_loss, which takes any positive ones"
            )
        for name in ("alpha", "k1", "k2"):
            value = torch.as_tensor(warp[name], dtype=self.proxies.dtype, device=self.proxies.device)
            self.register_buffer(name, value)
        self.scale = warp["scale"] if auto_factor(warp["scale"]) else float(warp["scale"])
        self.delta = float(warp["delta"])
        if alpha is not None:
            self.alpha_due = alpha_due  # the factor, until a batch has decided it

    start_phase = set_warp

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        if isinstance(self.scale, str) or self.alpha_due:
            check_batch(embeddings, self.proxies, labels)
        scale, alpha, reach = self._settle(embeddings, labels, lambda: self.proxies)
        loss = fused_softmax(
            embeddings,
            self.proxies,
            labels,
            alpha=alpha,
            k1=self.k1,
            k2=self.k2,
            scale=scale,
            delta=self.delta,
        )
        if self.training:  # only now, as the batch has proved good
            self.alpha, self.alpha_due = alpha, 0.0
            if isinstance(self.scale, str):
                self.lengths.learn_batch(embeddings, self.proxies, labels, reach)
        return loss

    def terms(self, embeddings: Tensor, shard: Shard) -> Terms:
        """Return the loss in its parts, for the classes of a shard."""
        embeddings, proxies = widen(embeddings, self.proxies)
        scale, alpha, reach = self._settle(embeddings, shard.labels, shard.landmarks)
        t = torch.linalg.vector_norm(embeddings[shard.rows] - proxies[shard.places], dim=1)
        own = shard.labels[shard.rows]
        warp = piecewise(alpha=alpha, k1=self.k1, k2=self.k2, delta=self.delta, labels=own)

        def learn() -> None:
            self.alpha, self.alpha_due = alpha, 0.0
            if isinstance(self.scale, str):
                self.lengths.learn_shard(embeddings, t, shard, self.num_classes, reach)

        return Terms(queries=embeddings, keys=proxies, own=-scale * warp(t), scale=scale, learn=learn)

    def _settle(
        self, embeddings: Tensor, labels: Tensor, proxies: Callable[[], Tensor]
    ) -> tuple[float, Tensor, float]:
        """Return scale and alpha for this batch, and the reach of the first one if either is measured."""
        scale, reach = self.lengths.settle(self.scale, self.num_classes, embeddings, proxies)
        if not self.alpha_due:
            return scale, self.alpha, reach
        reach = reach or self.lengths.first_reach(embeddings, proxies)
        return scale, (self.alpha_due * radius(embeddings, labels, reach)).to(self.alpha), reach

    def proxies_placed(self) -> None:
        """Say that the proxies were put where their classes are, before the first batch."""
        self.lengths.placed.fill_(True)

    def readings(self) -> dict[str, float]:
        """Return scale and alpha as the next batch meets them; what no batch has decided yet is left out."""
        alpha = {} if self.alpha_due else {"alpha": float(self.alpha.mean())}
        return self.lengths.readings(self.scale, self.num_classes) | alpha

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        *_, missing, unexpected, errors = rest
        buffers, settings = dict(self._buffers), self.get_extra_state()
        for name in ("alpha", "k1", "k2"):  # with the shape they were saved in: one number, or one per class
            if (saved := state_dict.get(prefix + name)) is not None:
                self._buffers[name] = getattr(self, name).new_empty(saved.shape)
        loaded = False
        try:
            super()._load_from_state_dict(state_dict, prefix, *rest)
            loaded = not (missing or unexpected or errors)
        finally:
            if not loaded:  # the warp stays as it was
                self._buffers.update(buffers)
                self.set_extra_state(settings)

    def get_extra_state(self) -> dict[str, Any]:
        """Return what a checkpoint needs besides proxies, alpha, k1, k2 and lengths."""
        return {"scale": self.scale, "delta": self.delta, "alpha_due": self.alpha_due}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.set_warp(scale=state["scale"], delta=state.get("delta"))
        self.alpha_due = float(state.get("alpha_due", 0.0))

    extra_repr = shown_settings
