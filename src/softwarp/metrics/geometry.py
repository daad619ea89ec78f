"""The shape of an embedding space, as numbers."""

from __future__ import annotations

import torch

from softwarp.metrics.checks import Array, check_embeddings, check_labels


def average_distance_to_proxy(embeddings: Array, labels: Array, proxies: Array) -> float:
    """AvgDTP: the mean over classes of the mean distance |e - p_c| of a class's embeddings to its proxy.

    Classes without embeddings are left out.

    >>> embeddings, proxies = torch.tensor([[0.0], [2.0]]), torch.tensor([[0.0], [9.0]])
    >>> average_distance_to_proxy(embeddings, torch.tensor([0, 0]), proxies)
    1.0
    """
    points = check_embeddings(embeddings)
    targets = check_embeddings(proxies, "proxies").to(points.device)
    truth = check_labels(labels, len(points), points.device)
    if points.shape[1] != targets.shape[1]:
        raise ValueError(
            f"embeddings have {points.shape[1]} dimensions and proxies {targets.shape[1]}; they must agree"
        )
    if int(truth.min()) < 0 or int(truth.max()) >= len(targets):
        raise ValueError(
            f"labels run from {int(truth.min())} to {int(truth.max())} but there are {len(targets)} proxies"
        )
    distances = (points.double() - targets.double()[truth]).norm(dim=1)
    sums = torch.zeros(len(targets), dtype=torch.float64, device=points.device).index_add_(
        0, truth, distances
    )
    counts = torch.bincount(truth, minlength=len(targets))
    return float((sums[counts > 0] / counts[counts > 0]).mean())
