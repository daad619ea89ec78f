"""Clustering metrics: how well k-means finds the classes again."""

from __future__ import annotations

import faiss
import torch
from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score

from softwarp.metrics.checks import Array, check_embeddings, check_labels


def clustering_metrics(
    embeddings: Array,
    labels: Array,
    *,
    seed: int = 0,
    iterations: int = 20,
    restarts: int = 1,
    progress: bool = False,
) -> dict[str, float]:
    """`nmi` (arithmetic), `nmi_geometric` and `ami` of seeded k-means with as many clusters as classes.

    >>> points = torch.tensor([[0.0], [0.1], [5.0], [5.1]])
    >>> round(clustering_metrics(points, torch.tensor([0, 0, 1, 1]))["nmi"], 6)
    1.0
    """
    points = check_embeddings(embeddings).float().cpu().contiguous().numpy()
    truth = check_labels(labels, len(points), torch.device("cpu")).numpy()
    kmeans = faiss.Kmeans(
        points.shape[1],
        len(set(truth.tolist())),
        niter=iterations,
        nredo=restarts,
        seed=seed,
        min_points_per_centroid=1,
        max_points_per_centroid=len(points),
        verbose=False,
    )
    kmeans.train(points)
    found = kmeans.assign(points)[1]
    return {
        "nmi": float(normalized_mutual_info_score(truth, found, average_method="arithmetic")),
        "nmi_geometric": float(normalized_mutual_info_score(truth, found, average_method="geometric")),
        "ami": float(adjusted_mutual_info_score(truth, found)),
    }
