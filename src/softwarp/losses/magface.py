"""MagFace (Meng et al. 2021): ArcFace whose margin grows with an embedding's length, which is rewarded.

    loss_i = -log softmax_j(s c_ij)[y_i] + lambda_g g(a_i)
    c_ij   = cos(theta_ij)                for j != y_i
             cos(theta_iy + m(a_i))       for j  = y_i where theta_iy is below 90 degrees, else cos(theta_iy)
    m(a)   = l_m + (u_m - l_m) (a - l_a) / (u_a - l_a),   g(a) = a / u_a^2 + 1 / a
    a_i    = |e_i|, held within [l_a, u_a]

| symbol   | parameter                  | default     | where |
|----------|----------------------------|-------------|-------|
| s        | scale                      | 64.0        | official run script |
| l_a, u_a | lower_norm, upper_norm     | 10.0, 110.0 | official run script: bounds of the length |
| l_m, u_m | lower_margin, upper_margin | 0.45, 0.8   | official run script: margins at the bounds, radians |
| lambda_g | regularizer                | 35.0        | official run script: weight of g |

An embedding whose length lies outside the bounds feels the angle alone. Differs from the official code:
the gradient of sin(theta) on a proxy, infinite there, is zero here; the easy margin (a margin below 90
degrees alone) is the only one.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from softwarp.losses.checks import check_positive
from softwarp.losses.contract import Card, Shard, Terms, Training, own_logits, shown_settings
from softwarp.losses.distances import check_batch, check_finite, cosine_similarities, init_proxies, widen


def magface_loss(
    embeddings: Tensor,
    proxies: Tensor,
    labels: Tensor,
    *,
    scale: float = 64.0,
    lower_norm: float = 10.0,
    upper_norm: float = 110.0,
    lower_margin: float = 0.45,
    upper_margin: float = 0.8,
    regularizer: float = 35.0,
) -> Tensor:
    """Return the MagFace loss for each sample, [N].

    >>> proxies = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> magface_loss(torch.tensor([[0.0, 110.0]]), proxies, torch.tensor([1]))
    tensor([0.6364])
    """
    check_batch(embeddings, proxies, labels)
    target = labels.long()[:, None]
    cosines = cosine_similarities(embeddings, proxies)
    own, reward = own_part(
        widen(embeddings, proxies)[0],
        cosines.gather(1, target).squeeze(1),
        norms=(lower_norm, upper_norm),
        margins=(lower_margin, upper_margin),
    )
    logits = scale * cosines.scatter(1, target, own[:, None])
    loss = cross_entropy(logits, labels.long(), reduction="none") + regularizer * reward
    check_finite(loss, embeddings, proxies)
    return loss


def own_part(
    embeddings: Tensor, cosines: Tensor, *, norms: tuple[float, float], margins: tuple[float, float]
) -> tuple[Tensor, Tensor]:
    """Return c_iy, the cosine [N] to its own class with the margin, and g(a_i); bounds are (lower, upper)."""
    a: Tensor = torch.linalg.vector_norm(embeddings, dim=1).clamp(*norms)
    slope = (margins[1] - margins[0]) / (norms[1] - norms[0])
    turned = cosine_of_sum(cosines, margins[0] + slope * (a - norms[0]))
    return torch.where(cosines > 0, turned, cosines), a / norms[1] ** 2 + 1 / a


def cosine_of_sum(cosine: Tensor, angle: Tensor) -> Tensor:
    """Return cos(theta + angle) from cos(theta), theta in [0, pi], with a finite gradient at its ends.

    >>> cosine_of_sum(torch.tensor([1.0]), torch.tensor([0.5]))
    tensor([0.8776])
    """
    square = 1 - cosine.square()
    inside = square > 0
    sine = torch.where(inside, torch.where(inside, square, 1.0).sqrt(), 0.0)
    return cosine * angle.cos() - sine * angle.sin()


class MagFaceLoss(nn.Module):
    """The mean MagFace loss over a batch, with one learned proxy per class."""

    distance = "cosine"
    class_vectors = "proxies"
    card: ClassVar[Card] = Card(
        title="MagFace",
        citation="Meng, Zhao, Huang, Zhou: MagFace: A Universal Representation for Face Recognition and "
        "Quality Assessment. CVPR 2021",
        equation="-log softmax_j(s cos(theta_ij + [j = y_i] m(a_i)))[y_i] + lambda_g (a_i / u_a^2 + 1 / a_i)",
        kind="proxies",
        training=Training(
            by="official code",
            batch=512,
            optimizer="sgd",
            rate_ratio=1.0,
            details="faces, rate 0.1, weight decay 5e-4, 25 epochs, a tenth after 10, 18 and 22",
        ),
        proxy_rate_ratio=100.0,
        search_space={
            "scale": ("log", 8.0, 128.0),
            "lower_margin": ("float", 0.0, 0.5),
            "regularizer": ("log", 1.0, 100.0),
        },
        notes="zero gradient of sin(theta) on a proxy instead of an infinite one; easy margin only; proxies "
        "start with length 1, as in the official code",
    )

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        scale: float = 64.0,
        lower_norm: float = 10.0,
        upper_norm: float = 110.0,
        lower_margin: float = 0.45,
        upper_margin: float = 0.8,
        regularizer: float = 35.0,
        proxy_init: str = "unit",
    ) -> None:
        super().__init__()
        check_positive(scale=scale, lower_norm=lower_norm, upper_norm=upper_norm)
        if not (lower_norm < upper_norm and 0 <= lower_margin <= upper_margin and regularizer >= 0):
            raise ValueError(
                "MagFace needs lower_norm < upper_norm, 0 <= lower_margin <= upper_margin, regularizer >= 0; "
                f"got {lower_norm}, {upper_norm}, {lower_margin}, {upper_margin}, {regularizer}"
            )
        self.num_classes = num_classes
        self.proxies = init_proxies(num_classes, embedding_size, proxy_init)
        self.settings = {
            "scale": scale,
            "lower_norm": lower_norm,
            "upper_norm": upper_norm,
            "lower_margin": lower_margin,
            "upper_margin": upper_margin,
            "regularizer": regularizer,
        }

    extra_repr = shown_settings

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return magface_loss(embeddings, self.proxies, labels, **self.settings).mean()

    def terms(self, embeddings: Tensor, shard: Shard) -> Terms:
        """Return the loss in its parts, for the classes of a shard."""
        settings = self.settings
        wide, proxies = widen(embeddings, self.proxies)
        unit, keys = normalize(wide), normalize(proxies)
        own, reward = own_part(
            wide[shard.rows],
            own_logits(unit, keys, shard),
            norms=(settings["lower_norm"], settings["upper_norm"]),
            margins=(settings["lower_margin"], settings["upper_margin"]),
        )
        extra = shard.spread(settings["regularizer"] * reward)
        return Terms(queries=settings["scale"] * unit, keys=keys, own=settings["scale"] * own, extra=extra)
