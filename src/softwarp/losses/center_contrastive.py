"""Center contrastive loss (Cai et al. 2023): softmax over unit class centres with a margin, and a pull.

    loss_i = -log softmax_j(s (z_i . c_j - [j = y_i] m))[y_i] + lambda |z_i - c_y|^2
    z = e / |e|,  c = p / |p|: the bank of centres, one per class, trained with the model

| symbol | parameter | default | where |
|--------|-----------|---------|-------|
| s      | scale     | 32.0    | ours |
| m      | margin    | 0.1     | ours |
| lambda | weight    | 1.0     | ours |

There is no official code (arXiv 2308.00458), and this file is written from the abstract (a bank of class
centres, updated as training goes, each query contrasted with all of them; small variation within classes
and large differences between them) and from later accounts of the equation, whose pull reads
-2 lambda z_i . c_y: the same but for a constant, which keeps our value from being negative. Ours, not the
paper's: the three constants (s and m are those of Proxy-Anchor), and that centres move by the gradient.
"""

from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from softwarp.losses.checks import check_not_negative
from softwarp.losses.contract import Card, Training, phase_state, set_phase_state, set_scale, shown_settings
from softwarp.losses.distances import check_batch, check_finite, cosine_similarities, init_proxies


def center_contrastive_loss(
    embeddings: Tensor,
    proxies: Tensor,
    labels: Tensor,
    *,
    scale: float = 32.0,
    margin: float = 0.1,
    weight: float = 1.0,
) -> Tensor:
    """Return the center contrastive loss for each sample, [N]; the proxies are the centres.

    >>> import torch
    >>> proxies = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    >>> center_contrastive_loss(torch.tensor([[0.0, 1.0]]), proxies, torch.tensor([0]), margin=0.0)
    tensor([2.6931])
    """
    check_batch(embeddings, proxies, labels)
    target = labels.long()[:, None]
    cosines = cosine_similarities(embeddings, proxies)
    own = cosines.gather(1, target)
    logits = scale * cosines.scatter(1, target, own - margin)
    loss = cross_entropy(logits, labels.long(), reduction="none") + weight * (2 - 2 * own.squeeze(1))
    check_finite(loss, embeddings, proxies)
    return loss


class CenterContrastiveLoss(nn.Module):
    """The mean center contrastive loss over a batch, with one learned centre per class.

    >>> CenterContrastiveLoss(num_classes=10, embedding_size=4, weight=0.5)
    CenterContrastiveLoss(num_classes=10, embedding_size=4, scale=32.0, margin=0.1, weight=0.5)
    """

    distance = "cosine"
    class_vectors = "proxies"
    card: ClassVar[Card] = Card(
        title="Center contrastive",
        citation="Cai, Xiong, Tian: Center Contrastive Loss for Metric Learning. arXiv 2308.00458, 2023",
        equation="-log softmax_j(s (z_i . c_j - [j = y_i] m))[y_i] + lambda |z_i - c_y|^2",
        kind="proxies",
        training=Training(
            rate_ratio=100.0, details="no official code; centres move at the rate of other proxies"
        ),
        search_space={
            "scale": ("log", 8.0, 64.0),
            "margin": ("float", 0.0, 0.4),
            "weight": ("log", 0.1, 10.0),
        },
        notes="no official code: written from the abstract and later accounts; scale, margin, weight and the "
        "update of centres by the gradient are ours",
    )

    scale: float

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        scale: float = 32.0,
        margin: float = 0.1,
        weight: float = 1.0,
        proxy_init: str = "kaiming",
    ) -> None:
        super().__init__()
        check_not_negative(margin=margin, weight=weight)
        self.proxies = init_proxies(num_classes, embedding_size, proxy_init)
        self.margin, self.weight = margin, weight
        self.start_phase(scale=scale)

    start_phase, get_extra_state, set_extra_state = set_scale, phase_state, set_phase_state
    extra_repr = shown_settings

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        loss = center_contrastive_loss(
            embeddings, self.proxies, labels, scale=self.scale, margin=self.margin, weight=self.weight
        )
        return loss.mean()
