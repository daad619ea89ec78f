"""Losses by name: made from `(num_classes, embedding_size, ...)`, called with `(embeddings, labels)`."""

from softwarp.losses.blackbox import BlackBoxAPLoss as BlackBoxAPLoss
from softwarp.losses.blackbox import BlackBoxRecallLoss as BlackBoxRecallLoss
from softwarp.losses.blackbox import blackbox_ap_loss as blackbox_ap_loss
from softwarp.losses.blackbox import blackbox_recall_loss as blackbox_recall_loss
from softwarp.losses.cbml import CBMLLoss as CBMLLoss
from softwarp.losses.cbml import cbml_loss as cbml_loss
from softwarp.losses.center_contrastive import CenterContrastiveLoss as CenterContrastiveLoss
from softwarp.losses.center_contrastive import center_contrastive_loss as center_contrastive_loss
from softwarp.losses.contextual import ContextualLoss as ContextualLoss
from softwarp.losses.contextual import contextual_loss as contextual_loss
from softwarp.losses.contract import Card as Card
from softwarp.losses.contract import Training as Training
from softwarp.losses.cross_entropy import CrossEntropyLoss as CrossEntropyLoss
from softwarp.losses.cross_entropy import cross_entropy_loss as cross_entropy_loss
from softwarp.losses.euclidean_softmax import EuclideanSoftmaxLoss as EuclideanSoftmaxLoss
from softwarp.losses.from_pml_margins import ArcFaceLoss as ArcFaceLoss
from softwarp.losses.from_pml_margins import CosFaceLoss as CosFaceLoss
from softwarp.losses.from_pml_margins import LargeMarginSoftmaxLoss as LargeMarginSoftmaxLoss
from softwarp.losses.from_pml_margins import SphereFaceLoss as SphereFaceLoss
from softwarp.losses.from_pml_pairs import CircleLoss as CircleLoss
from softwarp.losses.from_pml_pairs import ContrastiveLoss as ContrastiveLoss
from softwarp.losses.from_pml_pairs import MarginLoss as MarginLoss
from softwarp.losses.from_pml_pairs import MultiSimilarityLoss as MultiSimilarityLoss
from softwarp.losses.from_pml_proxies import NormalizedSoftmaxLoss as NormalizedSoftmaxLoss
from softwarp.losses.from_pml_proxies import ProxyAnchorLoss as ProxyAnchorLoss
from softwarp.losses.from_pml_proxies import SoftTripleLoss as SoftTripleLoss
from softwarp.losses.from_pml_tuples import FastAPLoss as FastAPLoss
from softwarp.losses.from_pml_tuples import LiftedStructureLoss as LiftedStructureLoss
from softwarp.losses.from_pml_tuples import NPairLoss as NPairLoss
from softwarp.losses.from_pml_tuples import SupConLoss as SupConLoss
from softwarp.losses.from_pml_tuples import TripletLoss as TripletLoss
from softwarp.losses.function_family import PowerLoss as PowerLoss
from softwarp.losses.function_family import ScaledLoss as ScaledLoss
from softwarp.losses.function_family import power_loss as power_loss
from softwarp.losses.function_family import scaled_loss as scaled_loss
from softwarp.losses.group_loss import GroupLoss as GroupLoss
from softwarp.losses.hierarchical_proxies import HierarchicalProxiesLoss as HierarchicalProxiesLoss
from softwarp.losses.hist import HISTLoss as HISTLoss
from softwarp.losses.intra_batch import IntraBatchLoss as IntraBatchLoss
from softwarp.losses.l2_softmax import L2SoftmaxLoss as L2SoftmaxLoss
from softwarp.losses.l2_softmax import l2_softmax_loss as l2_softmax_loss
from softwarp.losses.magface import MagFaceLoss as MagFaceLoss
from softwarp.losses.magface import magface_loss as magface_loss
from softwarp.losses.osap import OSAPLoss as OSAPLoss
from softwarp.losses.osap import osap_loss as osap_loss
from softwarp.losses.proxy_gml import ProxyGMLLoss as ProxyGMLLoss
from softwarp.losses.proxy_gml import proxy_gml_loss as proxy_gml_loss
from softwarp.losses.proxy_nca import ProxyNCALoss as ProxyNCALoss
from softwarp.losses.proxy_nca import proxy_nca_loss as proxy_nca_loss
from softwarp.losses.proxy_nca_pp import ProxyNCAppLoss as ProxyNCAppLoss
from softwarp.losses.proxy_nca_pp import proxy_nca_pp_loss as proxy_nca_pp_loss
from softwarp.losses.recall_at_k import RecallAtKLoss as RecallAtKLoss
from softwarp.losses.recall_at_k import recall_at_k_loss as recall_at_k_loss
from softwarp.losses.registry import LOSSES as LOSSES
from softwarp.losses.registry import build_loss as build_loss
from softwarp.losses.registry import card_of as card_of
from softwarp.losses.registry import find_loss as find_loss
from softwarp.losses.roadmap import RoadmapLoss as RoadmapLoss
from softwarp.losses.roadmap import calibration_loss as calibration_loss
from softwarp.losses.roadmap import sup_ap_loss as sup_ap_loss
from softwarp.losses.sgsl import SGSLLoss as SGSLLoss
from softwarp.losses.sgsl import sgsl_loss as sgsl_loss
from softwarp.losses.smooth_ap import SmoothAPLoss as SmoothAPLoss
from softwarp.losses.smooth_ap import smooth_ap_loss as smooth_ap_loss
from softwarp.losses.softbin_ap import SoftBinAPLoss as SoftBinAPLoss
from softwarp.losses.softbin_ap import softbin_ap_loss as softbin_ap_loss
from softwarp.losses.warped_softmax import WarpedSoftmaxLoss as WarpedSoftmaxLoss
from softwarp.losses.warped_softmax import fused_warped_softmax_loss as fused_warped_softmax_loss
from softwarp.losses.warped_softmax import softmax_loss as softmax_loss
from softwarp.losses.warped_softmax import warped_softmax_loss as warped_softmax_loss

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
