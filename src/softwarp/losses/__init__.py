"""Losses by name: made from `(num_classes, embedding_size, ...)`, called with `(embeddings, labels)`."""

from difflib import get_close_matches
from typing import Any

from torch import nn

from softwarp.losses.card import Card
from softwarp.losses.from_pml_pairs import (
    CircleLoss,
    ContrastiveLoss,
    FastAPLoss,
    LiftedStructureLoss,
    MarginLoss,
    MultiSimilarityLoss,
    NPairLoss,
    SupConLoss,
    TripletLoss,
)
from softwarp.losses.from_pml_proxies import (
    ArcFaceLoss,
    CosFaceLoss,
    LargeMarginSoftmaxLoss,
    NormalizedSoftmaxLoss,
    ProxyAnchorLoss,
    SoftTripleLoss,
    SphereFaceLoss,
)
from softwarp.losses.proxy_nca_pp import ProxyNCAppLoss, proxy_nca_pp_loss
from softwarp.losses.warped_softmax import (
    EuclideanSoftmaxLoss,
    WarpedSoftmaxLoss,
    fused_warped_softmax_loss,
    softmax_loss,
    warped_softmax_loss,
)

LOSSES: dict[str, type[nn.Module]] = {
    "warped_softmax": WarpedSoftmaxLoss,
    "euclidean_softmax": EuclideanSoftmaxLoss,
    "proxy_nca_pp": ProxyNCAppLoss,
    # From pytorch-metric-learning
    "contrastive": ContrastiveLoss,
    "triplet": TripletLoss,
    "n_pair": NPairLoss,
    "lifted_structure": LiftedStructureLoss,
    "margin": MarginLoss,
    "multi_similarity": MultiSimilarityLoss,
    "circle": CircleLoss,
    "fast_ap": FastAPLoss,
    "supcon": SupConLoss,
    "proxy_anchor": ProxyAnchorLoss,
    "soft_triple": SoftTripleLoss,
    "normalized_softmax": NormalizedSoftmaxLoss,
    "large_margin_softmax": LargeMarginSoftmaxLoss,
    "sphereface": SphereFaceLoss,
    "cosface": CosFaceLoss,
    "arcface": ArcFaceLoss,
}


def build_loss(name: str, num_classes: int, embedding_size: int, **settings: Any) -> nn.Module:
    """Return the loss of that name; a name that is not there is answered with the nearest ones.

    >>> build_loss("euclidean_softmax", 10, 4, scale=2.0)
    EuclideanSoftmaxLoss(num_classes=10, embedding_size=4, scale=2.0)
    """
    return find_loss(name)(num_classes, embedding_size, **settings)


def find_loss(name: str) -> type[nn.Module]:
    """Return the class of that name; a name that is not there is answered with the nearest ones."""
    if name not in LOSSES:
        near = get_close_matches(name, LOSSES, n=3) or list(LOSSES)
        raise ValueError(f"no loss is called {name!r}; did you mean {' or '.join(near)}?")
    return LOSSES[name]


def card_of(name: str) -> Card:
    """Return what the loss of that name says of itself.

    >>> card_of("proxy_nca_pp").year
    2020
    """
    card: Card = find_loss(name).card  # type: ignore[attr-defined]
    return card


__all__ = [
    "LOSSES",
    "Card",
    "EuclideanSoftmaxLoss",
    "ProxyNCAppLoss",
    "WarpedSoftmaxLoss",
    "build_loss",
    "card_of",
    "find_loss",
    "fused_warped_softmax_loss",
    "proxy_nca_pp_loss",
    "softmax_loss",
    "warped_softmax_loss",
]
