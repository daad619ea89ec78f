"""Clustering metrics: how well k-means finds the classes again.

NMI divides the mutual information of classes and clusters by a mean of their entropies, and papers differ in
the mean: `nmi` takes the arithmetic one (scikit-learn, pytorch-metric-learning), `nmi_geometric` the
geometric one (the authors, ProxyNCA++, HIST). AMI corrects for chance, which NMI rewards when there are many
clusters.
"""

from collections.abc import Callable

import numpy as np
import torch

from softwarp.metrics.checks import (
    Array,
    Labels,
    check_distance,
    check_embeddings,
    check_labels,
    numbered,
    on_unit_sphere,
)
from softwarp.metrics.scaling import unit_of

Points = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
Numbers = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


def clustering_metrics(
    embeddings: Array,
    labels: Labels,
    *,
    seed: int = 0,
    iterations: int = 20,
    restarts: int = 1,
    distance: str = "euclidean",
    advance: Callable[[float], None] | None = None,
) -> dict[str, float]:
    """`nmi` (arithmetic), `nmi_geometric` and `ami` of seeded k-means with as many clusters as classes.

    Args:
        seed: runs with the same seed agree to the digit on the same machine.
        iterations: of Lloyd's algorithm (faiss), from random points as first centroids; 20 as in PML.
        restarts: the run with the smallest sum of squared distances counts; its seed is `seed` + its number.
        distance: "cosine" clusters the embeddings on the unit sphere.
        advance: called with the share of the work just done.

    >>> points = torch.tensor([[0.0], [0.1], [5.0], [5.1]])
    >>> round(clustering_metrics(points, torch.tensor([0, 0, 1, 1]))["nmi"], 6)
    1.0
    """
    from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score  # seconds to import

    check_distance(distance)
    tensor = check_embeddings(embeddings)
    truth = check_labels(numbered(labels)[0], len(tensor), torch.device("cpu")).numpy()
    if iterations < 1 or restarts < 1:
        raise ValueError(f"k-means needs at least 1 iteration and 1 restart; got {iterations} and {restarts}")
    if not 0 <= seed <= 2**31 - restarts:  # what faiss takes
        raise ValueError(f"seed is {seed}; k-means takes 0 to {2**31 - restarts}")
    tensor = on_unit_sphere(tensor) if distance == "cosine" else tensor / unit_of(tensor)
    points = np.ascontiguousarray(tensor.float().cpu().numpy())
    clusters = len(np.unique(truth))

    def step() -> None:
        if advance:
            advance(1 / iterations / restarts)

    runs = [_kmeans(points, clusters, seed + restart, iterations, step) for restart in range(restarts)]
    found = min(runs, key=lambda run: run[0])[1]
    return {
        "nmi": float(normalized_mutual_info_score(truth, found, average_method="arithmetic")),
        "nmi_geometric": float(normalized_mutual_info_score(truth, found, average_method="geometric")),
        "ami": float(adjusted_mutual_info_score(truth, found)),
    }


def _kmeans(
    points: Points, clusters: int, seed: int, iterations: int, step: Callable[[], None]
) -> tuple[float, Numbers]:
    """The sum of squared distances and each point's cluster; a faiss call per iteration, each a step."""
    import faiss

    centroids = None
    for _ in range(iterations):
        kmeans = faiss.Kmeans(
            points.shape[1],
            clusters,
            niter=1,
            seed=seed,
            min_points_per_centroid=1,  # no warning for small classes
            max_points_per_centroid=len(points),  # no silent subsampling
        )
        kmeans.train(points, init_centroids=centroids)
        centroids = kmeans.centroids
        step()
    distances, found = kmeans.assign(points)
    return float(distances.sum()), found
