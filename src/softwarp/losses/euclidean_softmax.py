"""Softmax over Euclidean distances to proxies (DeMoor & Prevost, Eq. 4): no warp.

    loss_i = -log softmax_j(-s t_ij)[y_i],   t_ij = |e_i - p_j|

| symbol | parameter | default | where |
|--------|-----------|---------|-------|
| s      | scale     | 1.0     | not in Eq. 4; "auto" and "auto:2" as in `automatic.py` |
"""

from typing import ClassVar

from torch import Tensor, nn

from softwarp.losses.automatic import Auto, Lengths, factor_of
from softwarp.losses.checks import check_positive
from softwarp.losses.contract import Card, Training, phase_state, set_phase_state
from softwarp.losses.distances import check_batch, init_proxies
from softwarp.losses.warped_softmax import PAPER, fused_mean


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
        year=2024,
        equation="-log softmax_j(-s |e_i - p_j|)[y_i]",
        kind="proxies",
        training=Training(
            by="ours",
            batch=(8, 8),
            optimizer="adam",
            rate_ratio=100.0,
            details="the paper does not say for Eq. 4; eps 1 and rates as the authors ran the warped softmax",
        ),
        proxy_rate_ratio=100.0,
        search_space={"scale": ("auto", 0.1, 10.0)},
    )
    scale: float | Auto

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        scale: float | Auto = 1.0,
        proxy_init: str = "kaiming",
    ) -> None:
        super().__init__()
        self.proxies = init_proxies(num_classes, embedding_size, proxy_init)
        self.lengths = Lengths()
        self.start_phase(scale=scale)

    def start_phase(self, *, scale: float | Auto) -> None:
        """Change the scale; "auto" measures it before every batch of training."""
        check_positive(scale=factor_of(scale) if isinstance(scale, str) else scale)
        self.scale = scale

    get_extra_state, set_extra_state = phase_state, set_phase_state

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        scale, reach = self.scale, 0.0
        if isinstance(scale, str):
            check_batch(embeddings, self.proxies, labels)
            reach = self.lengths.first_reach(embeddings, self.proxies)
            scale = factor_of(scale) * self.lengths.scale(len(self.proxies), reach)
        loss = fused_mean(embeddings, self.proxies, labels, alpha=0.0, k1=1.0, k2=1.0, scale=scale, delta=0.0)
        if self.training and isinstance(self.scale, str):  # and the batch has proved good
            self.lengths.learn(embeddings, self.proxies, labels, reach)
        return loss

    def readings(self) -> dict[str, float]:
        """Return the scale as the next batch meets it; nothing before the first, where it is automatic."""
        return self.lengths.readings(self.scale, len(self.proxies))

    def extra_repr(self) -> str:
        classes, size = self.proxies.shape
        return f"num_classes={classes}, embedding_size={size}, scale={self.scale}"
