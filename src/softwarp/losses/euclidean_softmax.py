"""Softmax over Euclidean distances to proxies (DeMoor & Prevost, Eq. 4): no warp.

    loss_i = -log softmax_j(-s t_ij)[y_i],   t_ij = |e_i - p_j|

| symbol | parameter | default | where |
|--------|-----------|---------|-------|
| s      | scale     | auto    | not in Eq. 4; "auto" and "auto:2" as in `automatic.py` |
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from softwarp.losses.automatic import Auto, Lengths, auto_factor
from softwarp.losses.checks import check_positive
from softwarp.losses.contract import (
    Card,
    Shard,
    Terms,
    Training,
    phase_state,
    set_phase_state,
    shown_settings,
)
from softwarp.losses.distances import check_batch, init_proxies, widen
from softwarp.losses.fused import fused_softmax
from softwarp.losses.warped_softmax import PAPER


class EuclideanSoftmaxLoss(nn.Module):
    """The softmax over Euclidean distances without a warp (Eq. 4): k1 = k2 = 1.

    >>> import torch
    >>> loss = EuclideanSoftmaxLoss(num_classes=10, embedding_size=4)
    >>> loss(torch.randn(3, 4), torch.tensor([0, 5, 9])).shape
    torch.Size([])
    """

    distance = "euclidean"
    class_vectors = "proxies"
    card: ClassVar[Card] = Card(
        title="Euclidean softmax",
        citation=PAPER + ", Eq. 4",
        equation="-log softmax_j(-s |e_i - p_j|)[y_i]",
        kind="proxies",
        training=Training(
            batch=(8, 8),
            rate_ratio=100.0,
            details="the paper does not say for Eq. 4; eps 1 and rates as the authors ran the warped softmax",
        ),
        search_space={"scale": ("auto", 0.1, 10.0)},
    )
    scale: float | Auto

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        scale: float | Auto = "auto",
        proxy_init: str = "kaiming",
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.proxies = init_proxies(num_classes, embedding_size, proxy_init)
        self.lengths = Lengths()
        self.start_phase(scale=scale)

    def start_phase(self, *, scale: float | Auto) -> None:
        """Change the scale; "auto" measures it before every batch of training."""
        check_positive(scale=auto_factor(scale) if isinstance(scale, str) else scale)
        self.scale = scale

    get_extra_state, set_extra_state = phase_state, set_phase_state
    extra_repr = shown_settings

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        if isinstance(self.scale, str):
            check_batch(embeddings, self.proxies, labels)
        scale, reach = self.lengths.settle(self.scale, self.num_classes, embeddings, lambda: self.proxies)
        loss = fused_softmax(
            embeddings, self.proxies, labels, alpha=0.0, k1=1.0, k2=1.0, scale=scale, delta=0.0
        )
        if self.training and isinstance(self.scale, str):  # only now, as the batch has proved good
            self.lengths.learn_batch(embeddings, self.proxies, labels, reach)
        return loss

    def terms(self, embeddings: Tensor, shard: Shard) -> Terms:
        """Return the loss in its parts, for the classes of a shard."""
        embeddings, proxies = widen(embeddings, self.proxies)
        scale, reach = self.lengths.settle(self.scale, self.num_classes, embeddings, shard.landmarks)
        t = torch.linalg.vector_norm(embeddings[shard.rows] - proxies[shard.places], dim=1)

        def learn() -> None:
            if isinstance(self.scale, str):
                self.lengths.learn_shard(embeddings, t, shard, self.num_classes, reach)

        return Terms(queries=embeddings, keys=proxies, own=-scale * t, scale=scale, learn=learn)

    def proxies_placed(self) -> None:
        """Say that the proxies were put where their classes are, before the first batch."""
        self.lengths.placed.fill_(True)

    def readings(self) -> dict[str, float]:
        """Return the scale as the next batch meets it; nothing before the first, where it is automatic."""
        return self.lengths.readings(self.scale, self.num_classes)
