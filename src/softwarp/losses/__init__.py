"""Losses by name: made from `(num_classes, embedding_size, ...)`, called with `(embeddings, labels)`."""

from softwarp.losses.blackbox import (
    BlackBoxAPLoss,
    BlackBoxRecallLoss,
    blackbox_ap_loss,
    blackbox_recall_loss,
)
from softwarp.losses.cbml import CBMLLoss, cbml_loss
from softwarp.losses.center_contrastive import CenterContrastiveLoss, center_contrastive_loss
from softwarp.losses.contextual import ContextualLoss, contextual_loss
from softwarp.losses.contract import Card, Training
from softwarp.losses.cross_entropy import CrossEntropyLoss, cross_entropy_loss
from softwarp.losses.euclidean_softmax import EuclideanSoftmaxLoss
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
from softwarp.losses.registry import LOSSES, build_loss, card_of, find_loss
from softwarp.losses.roadmap import RoadmapLoss, calibration_loss, sup_ap_loss
from softwarp.losses.sgsl import SGSLLoss, sgsl_loss
from softwarp.losses.smooth_ap import SmoothAPLoss, smooth_ap_loss
from softwarp.losses.softbin_ap import SoftBinAPLoss, softbin_ap_loss
from softwarp.losses.warped_softmax import (
    WarpedSoftmaxLoss,
    fused_warped_softmax_loss,
    softmax_loss,
    warped_softmax_loss,
)

LOSSES |= {
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


__all__ = [
    "LOSSES",
    "ArcFaceLoss",
    "BlackBoxAPLoss",
    "BlackBoxRecallLoss",
    "CBMLLoss",
    "Card",
    "CenterContrastiveLoss",
    "CircleLoss",
    "ContextualLoss",
    "ContrastiveLoss",
    "CosFaceLoss",
    "CrossEntropyLoss",
    "EuclideanSoftmaxLoss",
    "FastAPLoss",
    "GroupLoss",
    "HISTLoss",
    "HierarchicalProxiesLoss",
    "IntraBatchLoss",
    "L2SoftmaxLoss",
    "LargeMarginSoftmaxLoss",
    "LiftedStructureLoss",
    "MagFaceLoss",
    "MarginLoss",
    "MultiSimilarityLoss",
    "NPairLoss",
    "NormalizedSoftmaxLoss",
    "OSAPLoss",
    "PowerLoss",
    "ProxyAnchorLoss",
    "ProxyGMLLoss",
    "ProxyNCALoss",
    "ProxyNCAppLoss",
    "RecallAtKLoss",
    "RoadmapLoss",
    "SGSLLoss",
    "ScaledLoss",
    "SmoothAPLoss",
    "SoftBinAPLoss",
    "SoftTripleLoss",
    "SphereFaceLoss",
    "SupConLoss",
    "Training",
    "TripletLoss",
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
