"""Metrics: pure functions from embeddings and labels to numbers."""

from softwarp.metrics.clustering import clustering_metrics
from softwarp.metrics.geometry import average_distance_to_proxy
from softwarp.metrics.retrieval import nearest_neighbours, retrieval_metrics, retrieval_per_query

__all__ = [
    "average_distance_to_proxy",
    "clustering_metrics",
    "nearest_neighbours",
    "retrieval_metrics",
    "retrieval_per_query",
]
