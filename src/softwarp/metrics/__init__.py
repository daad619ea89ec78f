"""Metrics: pure functions from embeddings and labels to numbers."""

from softwarp.metrics.clustering import clustering_metrics
from softwarp.metrics.geometry import average_distance_to_proxy, geometry_metrics, hubness, occurrences
from softwarp.metrics.identification import identification_metrics
from softwarp.metrics.intervals import bootstrap_means, bootstrap_over_classes
from softwarp.metrics.neighbours import nearest_neighbours
from softwarp.metrics.retrieval import retrieval_metrics, retrieval_per_query
from softwarp.metrics.verification import combine_flipped, pair_distances, roc_points, verification_metrics
from softwarp.metrics.votes import knn_per_query

__all__ = [
    "average_distance_to_proxy",
    "bootstrap_means",
    "bootstrap_over_classes",
    "clustering_metrics",
    "combine_flipped",
    "geometry_metrics",
    "hubness",
    "identification_metrics",
    "knn_per_query",
    "nearest_neighbours",
    "occurrences",
    "pair_distances",
    "retrieval_metrics",
    "retrieval_per_query",
    "roc_points",
    "verification_metrics",
]
