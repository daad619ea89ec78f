"""The function ablation of Realigned Softmax Warping (DeMoor & Prevost, Table 3): t^p, and c t.

    power:   loss_i = log(1 + sum_{j != y_i} exp(s t_iy^p - s t_ij^p))        f1 = f2 = t^p
    scaled:  loss_i = log(1 + sum_{j != y_i} exp(s c t_iy - s t_ij))          f1 = c t, f2 = t

| symbol | parameter | default | where |
|--------|-----------|---------|-------|
| t_ij   | -         | -       | unnormalised Euclidean distance of embedding i and proxy j |
| p      | exponent  | 1.5     | Table 3: 2 (a Gaussian kernel), 3/2 (the best of the three), 1/2 |
| c      | factor    | 1.1     | Table 3: 0.5 and 0.97 (run off to infinity), 1.1 (the best), 2 |
| -      | scale     | 1.0     | multiplies f1 and f2, as in the warped softmax |

A convex power separates, a concave one compacts; a factor on the distance to a sample's own proxy is "half a
warp": it pushes outward everywhere below 1 and inward everywhere above. Table 3 changes both functions for a
power and f1 alone for a factor. Differs from the official code: it holds none of these functions.
"""

from typing import ClassVar

from torch import Tensor, nn

from softwarp.losses.checks import check_positive
from softwarp.losses.contract import Card, Training, phase_state, set_phase_state, set_scale, shown_settings
from softwarp.losses.distances import init_proxies
from softwarp.losses.warped_softmax import PAPER, softmax_loss
from softwarp.losses.warps import power, scaled

# The paper's Table 3 does not say.
TABLE_3 = Training(batch=(8, 8), rate_ratio=100.0, details="eps 1, as for the warped softmax")


def power_loss(
    embeddings: Tensor, proxies: Tensor, labels: Tensor, *, exponent: float = 1.5, scale: float = 1.0
) -> Tensor:
    """Return the softmax loss over distances to the power `exponent` for each sample, [N].

    >>> import torch
    >>> power_loss(torch.tensor([[1.0]]), torch.tensor([[0.0], [3.0]]), torch.tensor([0]), exponent=2.0)
    tensor([0.0486])
    """
    warp = power(exponent)
    return softmax_loss(embeddings, proxies, labels, own=warp, other=warp, scale=scale)


def scaled_loss(
    embeddings: Tensor, proxies: Tensor, labels: Tensor, *, factor: float = 1.1, scale: float = 1.0
) -> Tensor:
    """Return the softmax loss with the distance to its own proxy times `factor` for each sample, [N].

    >>> import torch
    >>> scaled_loss(torch.tensor([[1.0]]), torch.tensor([[0.0], [2.0]]), torch.tensor([0]), factor=2.0)
    tensor([1.3133])
    """
    return softmax_loss(embeddings, proxies, labels, own=scaled(factor), scale=scale)


class PowerLoss(nn.Module):
    """The mean of `power_loss` over a batch, with one learned proxy per class.

    >>> PowerLoss(num_classes=10, embedding_size=4, exponent=2.0)
    PowerLoss(num_classes=10, embedding_size=4, exponent=2.0, scale=1.0)
    """

    distance = "euclidean"
    class_vectors = "proxies"
    card: ClassVar[Card] = Card(
        title="Power softmax",
        citation=PAPER + ", Table 3",
        equation="-log softmax_j(-s |e_i - p_j|^p)[y_i]",
        kind="proxies",
        training=TABLE_3,
        search_space={"exponent": ("float", 0.5, 2.0), "scale": ("log", 0.03, 10.0)},
        notes="not in the official code",
    )

    scale: float

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        exponent: float = 1.5,
        scale: float = 1.0,
        proxy_init: str = "kaiming",
    ) -> None:
        super().__init__()
        check_positive(exponent=exponent)
        self.proxies = init_proxies(num_classes, embedding_size, proxy_init)
        self.exponent = exponent
        self.start_phase(scale=scale)

    start_phase, get_extra_state, set_extra_state = set_scale, phase_state, set_phase_state
    extra_repr = shown_settings

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return power_loss(embeddings, self.proxies, labels, exponent=self.exponent, scale=self.scale).mean()


class ScaledLoss(nn.Module):
    """The mean of `scaled_loss` over a batch, with one learned proxy per class.

    >>> ScaledLoss(num_classes=10, embedding_size=4)
    ScaledLoss(num_classes=10, embedding_size=4, factor=1.1, scale=1.0)
    """

    distance = "euclidean"
    class_vectors = "proxies"
    card: ClassVar[Card] = Card(
        title="Scaled softmax",
        citation=PAPER + ", Table 3",
        equation="-log(exp(-s c t_iy) / (exp(-s c t_iy) + sum_{j != y} exp(-s t_ij))), t_ij = |e_i - p_j|",
        kind="proxies",
        training=TABLE_3,
        search_space={"factor": ("float", 0.9, 2.0), "scale": ("log", 1.0, 10.0)},
        notes="not in the official code; below a factor of 1 nothing holds the embeddings back",
    )

    scale: float

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        factor: float = 1.1,
        scale: float = 1.0,
        proxy_init: str = "kaiming",
    ) -> None:
        super().__init__()
        check_positive(factor=factor)
        self.proxies = init_proxies(num_classes, embedding_size, proxy_init)
        self.factor = factor
        self.start_phase(scale=scale)

    start_phase, get_extra_state, set_extra_state = set_scale, phase_state, set_phase_state
    extra_repr = shown_settings

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return scaled_loss(embeddings, self.proxies, labels, factor=self.factor, scale=self.scale).mean()
