"""Classifiers with an angular margin, from pytorch-metric-learning; their proxies are [C, D].

Each class has the equation, where it was taken from and where it differs from the paper on its card.
Symbols: z = e / |e|, q_j = p_j / |p_j|, t_ij the angle between them, y the class of sample i.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partialmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from softwarp.losses.checks import check_not_negative, check_positive, check_sizes, check_whole
from softwarp.losses.contract import Card, Shard, Terms, Training, own_logits
from softwarp.losses.distances import init_proxies, widen
from softwarp.losses.from_pml import angles_of, call_pml, pml_classifier

EASING = (
    "m = margin, a whole number that multiplies the angle. L = max(last_plain, first_plain / (1 + "
    "plain_decay steps)) lets training begin with the plain softmax; its constants are those of SphereFace's "
    "published configuration: L is 5 after 1,660 steps, which are forward passes in training. Both plain "
    "settings at 0 give the margin alone. scale is not in the paper (1)."
)

SHORT = "from N(0, 0.01), as in insightface's code; pytorch-metric-learning draws from N(0, 1)"


class LargeMarginSoftmaxLoss(nn.Module):
    """A linear classifier that gradually multiplies the angle to a sample's own class by a whole number."""

    distance = "cosine"
    class_vectors = "proxies"
    pml_name = "LargeMarginSoftmaxLoss"
    unit_weights = False
    steps: Tensor
    card: ClassVar[Card] = Card(
        title="Large-margin softmax",
        citation="Liu, Wen, Yu, Yang: Large-Margin Softmax Loss for Convolutional Neural Networks. ICML 2016",
        equation="-log softmax_j(scale |e| |p_j| f_j)[y], f_y = (L cos t + (-1)^k cos(m t) - 2k) / (1 + L), "
        "k = floor(m t / pi), f_j = cos t_ij",
        kind="classifier",
        training=Training(
            by="official code",
            batch=128,
            optimizer="sgd",
            rate_ratio=1.0,
            details="CIFAR-10, rate 0.1, momentum 0.9, weight decay 5e-4",
        ),
        proxy_rate_ratio=10.0,
        search_space={"margin": ("int", 2, 5), "scale": ("log", 0.3, 10.0)},
        notes=f"{EASING} The rate ratio is ours. Class vectors start with deviation sqrt(2 / D) (paper: He's "
        "initialization).",
    )

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        margin: int = 4,
        scale: float = 1.0,
        first_plain: float = 1000.0,
        plain_decay: float = 0.12,
        last_plain: float = 5.0,
        proxy_init: str = "kaiming_in",
    ) -> None:
        super().__init__()
        check_whole(margin=margin)
        check_positive(scale=scale)
        self.num_classes, self.embedding_size = check_sizes(num_classes, embedding_size)
        check_not_negative(first_plain=first_plain, plain_decay=plain_decay, last_plain=last_plain)
        self.schedule = first_plain, plain_decay, last_plain
        self.pml = pml_classifier(self.pml_name, num_classes, embedding_size, margin=margin, scale=scale)
        self.proxies = init_proxies(num_classes, embedding_size, proxy_init)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        with eased(self.pml, self._plain()):
            value = call_pml(self, embeddings, labels, W=self.proxies.T)
        if self.training:
            self.steps += 1
        return value

    def terms(self, embeddings: Tensor, shard: Shard) -> Terms:
        """Return the loss in its parts, for the classes of a shard."""
        wide, proxies = widen(embeddings, self.proxies)
        unit_proxies = normalize(proxies)
        with eased(self.pml, self._plain()):
            own = self.pml.modify_cosine_of_target_classes(own_logits(normalize(wide), unit_proxies, shard))
        own = own * self.pml.scale * wide[shard.rows].norm(dim=1)
        if not self.unit_weights:
            own = own * proxies[shard.places].norm(dim=1)
        keys = unit_proxies if self.unit_weights else proxies

        def learn() -> None:
            self.steps += 1

        return Terms(queries=self.pml.scale * wide, keys=keys, own=own, learn=learn)

    def _plain(self) -> Tensor:
        first, decay, last = self.schedule
        return (first / (1 + decay * self.steps)).clamp_min(last)


class SphereFaceLoss(LargeMarginSoftmaxLoss):
    """The large-margin softmax with class weights of length one."""

    distance = "cosine"
    class_vectors = "proxies"
    pml_name = "SphereFaceLoss"
    unit_weights = True
    card: ClassVar[Card] = Card(
        title="SphereFace",
        citation="Liu, Wen, Yu, Li, Raj, Song: SphereFace: Deep Hypersphere Embedding for Face Recognition. "
        "CVPR 2017",
        equation="-log softmax_j(scale |e| f_j)[y], f_y = (L cos t + (-1)^k cos(m t) - 2k) / (1 + L), "
        "k = floor(m t / pi), f_j = cos t_ij",
        kind="classifier",
        training=Training(
            by="official code",
            batch=256,
            optimizer="sgd",
            rate_ratio=1.0,
            details="faces, 256 on each GPU, rate 0.1, momentum 0.9, weight decay 5e-4, 28,000 steps",
        ),
        proxy_rate_ratio=100.0,
        search_space={"margin": ("int", 2, 5), "scale": ("log", 0.3, 10.0)},
        notes=f"{EASING} Class vectors start with length 1, where the official code's (Caffe's xavier) have "
        "it on average.",
    )

    __init__ = partialmethod(LargeMarginSoftmaxLoss.__init__, proxy_init="unit")


@contextmanager
def eased(pml: Any, plain: Tensor) -> Iterator[None]:
    """Let PML's loss take `plain` parts of the plain cosine for each part of the one with the margin."""
    with_margin = pml.modify_cosine_of_target_classes
    pml.modify_cosine_of_target_classes = lambda own: (plain * own + with_margin(own)) / (1 + plain)
    try:
        yield
    finally:
        del pml.modify_cosine_of_target_classes


def cosine_terms(loss: Any, embeddings: Tensor, shard: Shard) -> Terms:
    """Return a softmax over scaled cosines in its parts, for the classes of a shard.

    PML says what the margin makes of a cosine.
    """
    unit, keys = map(normalize, widen(embeddings, loss.proxies))
    own = loss.pml.modify_cosine_of_target_classes(own_logits(unit, keys, shard))
    return Terms(queries=loss.pml.scale * unit, keys=keys, own=loss.pml.scale * own)


class CosFaceLoss(nn.Module):
    """A softmax over cosines, with a margin taken from that of its own class."""

    distance = "cosine"
    class_vectors = "proxies"
    card: ClassVar[Card] = Card(
        title="CosFace",
        citation="Wang, Wang, Zhou, Ji, Gong, Zhou, Li, Liu: CosFace: Large Margin Cosine Loss for Deep Face "
        "Recognition. CVPR 2018",
        equation="-log softmax_j(scale (cos t_ij - margin [j = y]))[y]",
        kind="classifier",
        training=Training(
            by="paper",
            batch=512,
            optimizer="sgd",
            rate_ratio=1.0,
            details="faces, rate 0.1, a tenth after 16,000, 24,000 and 28,000 steps, momentum 0.9, weight "
            "decay 5e-4",
        ),
        search_space={"margin": ("float", 0.0, 0.6), "scale": ("log", 8.0, 128.0)},
        notes="margin is a difference of cosines; 0.35 is the paper's, insightface's code has 0.40. Class "
        f"vectors start {SHORT}.",
    )

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        margin: float = 0.35,
        scale: float = 64.0,
        proxy_init: str = "insightface",
    ) -> None:
        super().__init__()
        check_not_negative(margin=margin)
        check_positive(scale=scale)
        self.num_classes, self.embedding_size = check_sizes(num_classes, embedding_size)
        self.pml = pml_classifier("CosFaceLoss", num_classes, embedding_size, margin=margin, scale=scale)
        self.proxies = init_proxies(num_classes, embedding_size, proxy_init)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return call_pml(self, embeddings, labels, W=self.proxies.T)

    terms = cosine_terms


class ArcFaceLoss(nn.Module):
    """A softmax over cosines, with a margin added to the angle of its own class."""

    distance = "cosine"
    class_vectors = "proxies"
    card: ClassVar[Card] = Card(
        title="ArcFace",
        citation="Deng, Guo, Xue, Zafeiriou: ArcFace: Additive Angular Margin Loss for Deep Face "
        "Recognition. CVPR 2019",
        equation="-log softmax_j(scale f_j)[y], f_y = cos(t + margin), or cos t - margin sin(margin) where "
        "t > pi - margin; f_j = cos t_ij",
        kind="classifier",
        training=Training(
            by="paper",
            batch=512,
            optimizer="sgd",
            rate_ratio=1.0,
            details="faces, rate 0.1, a tenth after 20,000 and 28,000 steps, momentum 0.9, weight decay 5e-4",
        ),
        search_space={"margin": ("float", 0.05, 0.8), "scale": ("log", 8.0, 128.0)},
        notes="margin is in radians, as in the paper; pytorch-metric-learning 2 takes degrees. The case "
        "beyond pi - margin is that of the first official code; the current one has none, and there "
        f"cos(t + margin) grows again. Class vectors start {SHORT}.",
    )

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        margin: float = 0.5,
        scale: float = 64.0,
        proxy_init: str = "insightface",
    ) -> None:
        super().__init__()
        check_positive(scale=scale)
        if not 0 <= margin < math.pi:
            raise ValueError(f"margin is an angle in radians, at least 0 and below pi, got {margin}")
        self.num_classes, self.embedding_size = check_sizes(num_classes, embedding_size)
        degrees = math.degrees(margin)
        self.pml = pml_classifier("ArcFaceLoss", num_classes, embedding_size, margin=degrees, scale=scale)
        self.pml.get_angles = angles_of
        self.proxies = init_proxies(num_classes, embedding_size, proxy_init)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return call_pml(self, embeddings, labels, W=self.proxies.T)

    terms = cosine_terms
