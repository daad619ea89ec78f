"""Losses by name: made from `(num_classes, embedding_size, ...)`, called with `(embeddings, labels)`."""

from difflib import get_close_matches
from typing import Any

from torch import nn

from softwarp.losses.blackbox import (
    BlackBoxAPLoss,
    BlackBoxRecallLoss,
    blackbox_ap_loss,
    blackbox_recall_loss,
)
from softwarp.losses.card import Card, settings_of
from softwarp.losses.cbml import CBMLLoss, cbml_loss
from softwarp.losses.center_contrastive import CenterContrastiveLoss, center_contrastive_loss
from softwarp.losses.contextual import ContextualLoss, contextual_loss
from softwarp.losses.cross_entropy import CrossEntropyLoss, cross_entropy_loss
from softwarp.losses.from_pml_margins import (
    ArcFaceLoss,
    CosFaceLoss,
    LargeMarginSoftmaxLoss,
    SphereFaceLoss,
)
from softwarp.losses.from_pml_pairs import CircleLoss, ContrastiveLoss, MarginLoss, MultiSimilarityLoss
from softwarp.losses.from_pml_proxies import NormalizedSoftmaxLoss, ProxyAnchorLoss, SoftTripleLoss
from softwarp.losses.from_pml_tuples import (
    FastAPLoss,
    LiftedStructureLoss,
    NPairLoss,
    SupConLoss,
    TripletLoss,
)
from softwarp.losses.function_family import PowerLoss, ScaledLoss, power_loss, scaled_loss
from softwarp.losses.group_loss import GroupLoss
from softwarp.losses.hierarchical_proxies import HierarchicalProxiesLoss
from softwarp.losses.hist import HISTLoss
from softwarp.losses.intra_batch import IntraBatchLoss
from softwarp.losses.l2_softmax import L2SoftmaxLoss, l2_softmax_loss
from softwarp.losses.magface import MagFaceLoss, magface_loss
from softwarp.losses.osap import OSAPLoss, osap_loss
from softwarp.losses.proxy_gml import ProxyGMLLoss, proxy_gml_loss
from softwarp.losses.proxy_nca import ProxyNCALoss, proxy_nca_loss
from softwarp.losses.proxy_nca_pp import ProxyNCAppLoss, proxy_nca_pp_loss
from softwarp.losses.recall_at_k import RecallAtKLoss, recall_at_k_loss
from softwarp.losses.roadmap import RoadmapLoss, calibration_loss, sup_ap_loss
from softwarp.losses.sgsl import SGSLLoss, sgsl_loss
from softwarp.losses.smooth_ap import SmoothAPLoss, smooth_ap_loss
from softwarp.losses.softbin_ap import SoftBinAPLoss, softbin_ap_loss
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
    "power": PowerLoss,
    "scaled": ScaledLoss,
    "proxy_nca_pp": ProxyNCAppLoss,
    "hierarchical_proxies": HierarchicalProxiesLoss,
    "center_contrastive": CenterContrastiveLoss,
    "magface": MagFaceLoss,
    "l2_softmax": L2SoftmaxLoss,
    "cross_entropy": CrossEntropyLoss,
    "proxy_nca": ProxyNCALoss,
    "proxy_gml": ProxyGMLLoss,
    "sgsl": SGSLLoss,
    "cbml": CBMLLoss,
    "hist": HISTLoss,
    "intra_batch": IntraBatchLoss,
    "group_loss": GroupLoss,
    "smooth_ap": SmoothAPLoss,
    "roadmap": RoadmapLoss,
    "softbin_ap": SoftBinAPLoss,
    "blackbox_ap": BlackBoxAPLoss,
    "blackbox_recall": BlackBoxRecallLoss,
    "recall_at_k": RecallAtKLoss,
    "contextual": ContextualLoss,
    "osap": OSAPLoss,
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
    loss = find_loss(name)
    known = settings_of(loss)
    for setting in settings.keys() - known.keys() if "settings" not in known else ():
        near = get_close_matches(setting, known, n=1)
        answer = f"did you mean {near[0]}?" if near else f"it has {', '.join(known) or 'none'}"
        raise ValueError(f"{name} has no setting {setting!r}; {answer}")
    try:
        return loss(num_classes, embedding_size, **settings)
    except TypeError as error:  # a word where a number belongs
        given = ", ".join(f"{key}={value!r} (default {known.get(key)})" for key, value in settings.items())
        raise ValueError(f"{name} cannot be made with {given}: {error}") from error


def find_loss(name: str) -> type[nn.Module]:
    """Return the class of that name; a name that is not there is answered with the nearest ones."""
    if name not in LOSSES:
        near = get_close_matches(name.lower(), LOSSES, n=3)
        answer = f"did you mean {' or '.join(near)}?" if near else "`softwarp losses` lists them"
        raise ValueError(f"no loss is called {name!r}; {answer}")
    return LOSSES[name]


def card_of(name: str) -> Card:
    """Return what the loss of that name says of itself.

    >>> card_of("proxy_nca_pp").year
    2020
    """
    card = getattr(find_loss(name), "card", None)
    if not isinstance(card, Card):
        raise ValueError(f"the loss {name} has no card; give its class one, as examples/own_loss.py does")
    return card


__all__ = [
    "LOSSES",
    "BlackBoxAPLoss",
    "BlackBoxRecallLoss",
    "CBMLLoss",
    "Card",
    "CenterContrastiveLoss",
    "ContextualLoss",
    "CrossEntropyLoss",
    "EuclideanSoftmaxLoss",
    "GroupLoss",
    "HISTLoss",
    "HierarchicalProxiesLoss",
    "IntraBatchLoss",
    "L2SoftmaxLoss",
    "MagFaceLoss",
    "OSAPLoss",
    "PowerLoss",
    "ProxyGMLLoss",
    "ProxyNCALoss",
    "ProxyNCAppLoss",
    "RecallAtKLoss",
    "RoadmapLoss",
    "SGSLLoss",
    "ScaledLoss",
    "SmoothAPLoss",
    "SoftBinAPLoss",
    "WarpedSoftmaxLoss",
    "blackbox_ap_loss",
    "blackbox_recall_loss",
    "build_loss",
    "calibration_loss",
    "card_of",
    "cbml_loss",
    "center_contrastive_loss",
    "contextual_loss",
    "cross_entropy_loss",
    "find_loss",
    "fused_warped_softmax_loss",
    "l2_softmax_loss",
    "magface_loss",
    "osap_loss",
    "power_loss",
    "proxy_gml_loss",
    "proxy_nca_loss",
    "proxy_nca_pp_loss",
    "recall_at_k_loss",
    "scaled_loss",
    "sgsl_loss",
    "smooth_ap_loss",
    "softbin_ap_loss",
    "softmax_loss",
    "sup_ap_loss",
    "warped_softmax_loss",
]
