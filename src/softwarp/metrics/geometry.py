"""The shape of an embedding space in numbers, where papers argue with scatter plots."""

import torch
from torch import Tensor

from softwarp.metrics.checks import (
    Array,
    Labels,
    check_distance,
    check_embeddings,
    check_labels,
    numbered,
    on_unit_sphere,
)
from softwarp.metrics.neighbours import nearest_neighbours
from softwarp.metrics.scaling import exact_distances, row_lengths, unit_of

CLASS_ROWS = 2048  # rows of a class whose distances to the whole class are held at once


def average_distance_to_proxy(embeddings: Array, labels: Array, proxies: Array) -> float:
    """AvgDTP: the mean over classes of the mean distance |e - p_c| of a class's embeddings to its proxy.

        AvgDTP = 1/|C| sum_c 1/N_c sum_{e of class c} |e - p_c|

    Classes without embeddings are left out.

    Args:
        labels: rows of `proxies`, 0 to len(proxies) - 1.

    >>> embeddings, proxies = torch.tensor([[0.0], [2.0]]), torch.tensor([[0.0], [9.0]])
    >>> average_distance_to_proxy(embeddings, torch.tensor([0, 0]), proxies)
    1.0
    """
    points = check_embeddings(embeddings)
    targets = check_embeddings(proxies, "proxies").to(points.device)
    truth = check_labels(labels, len(points), points.device)
    if points.shape[1] != targets.shape[1]:
        raise ValueError(f"embeddings have {points.shape[1]} dimensions and proxies {targets.shape[1]}")
    if int(truth.min()) < 0 or int(truth.max()) >= len(targets):
        low, high = int(truth.min()), int(truth.max())
        raise ValueError(f"labels must be rows of the {len(targets)} proxies; got {low} to {high}")
    distances = row_lengths(points.double() - targets.double()[truth])
    sums, counts = _sum_by_class(distances[:, None], truth, len(targets))
    return float((sums[counts > 0, 0] / counts[counts > 0]).mean())


def geometry_metrics(embeddings: Array, labels: Labels, *, distance: str = "euclidean") -> dict[str, float]:
    """What separates classes, which directions are used, how long embeddings are, and who is a hub.

    - compactness: the mean over classes of two or more of the mean distance between two of its embeddings;
    - separability: the mean over classes of the distance from its mean to the nearest mean of another class;
    - separability_ratio: separability / compactness, larger is better and free of scale;
    - spectral_decay: KL(uniform || s / sum s) of the singular values s, 0 when all directions are used alike;
    - effective_rank: exp(entropy(s / sum s)), the number of directions in use;
    - between_share: the share of the squared distances to the mean that lies between class means;
    - norm, norm_deviation: mean and standard deviation of the lengths of embeddings, whatever the distance;
    - hubness: the skewness of how often an embedding is among the ten nearest of others, 0 without hubs.

    What a single class or classes of one embedding leave undefined is NaN. "cosine" measures all but the
    lengths on the unit sphere.

    >>> points = torch.tensor([[0.0, 1.0], [0.0, -1.0], [4.0, 1.0], [4.0, -1.0]])
    >>> geometry_metrics(points, torch.tensor([0, 0, 1, 1]))["separability_ratio"]
    2.0
    """
    check_distance(distance)
    given = check_embeddings(embeddings)
    points = given
    unit = 1.0 if distance == "cosine" else unit_of(points)
    points = on_unit_sphere(points) if distance == "cosine" else points.double() / unit
    truth = check_labels(numbered(labels)[0], len(points), points.device)
    _, truth = torch.unique(truth, return_inverse=True)
    compactness, separability = _compactness(points, truth), _separability(points, truth)
    decay, rank = _spectrum(points)
    lengths = row_lengths(given)
    longest = lengths.max().clamp_min(torch.finfo(lengths.dtype).tiny)  # squares of lengths may overflow
    return {
        "compactness": compactness * unit,
        "separability": separability * unit,
        "separability_ratio": separability / compactness if compactness else torch.nan,
        "spectral_decay": decay,
        "effective_rank": rank,
        "between_share": _between_share(points, truth),
        "norm": float((lengths / longest).mean() * longest),
        "norm_deviation": float((lengths / longest).std(correction=0) * longest),
        "hubness": hubness(given, distance=distance),
    }


def hubness(embeddings: Array, *, k: int = 10, distance: str = "euclidean") -> float:
    """Return the skewness of how often each embedding is among the k nearest of others.

    >>> hubness(torch.tensor([[0.0], [1.0], [-1.1], [1.2]]), k=1)
    0.0
    """
    counts = occurrences(embeddings, k=k, distance=distance).double()
    if len(counts) < 2:
        return torch.nan
    apart = counts - counts.mean()
    return float((apart**3).mean() / apart.square().mean().clamp_min(1e-300) ** 1.5)


def occurrences(embeddings: Array, *, k: int = 10, distance: str = "euclidean") -> Tensor:
    """Return [N], how often each embedding is among the k nearest of others; fewer if there are fewer."""
    points = check_embeddings(embeddings)
    if len(points) < 2:
        return torch.zeros(len(points), dtype=torch.int64)
    found = nearest_neighbours(points, min(k, len(points) - 1), distance=distance)[1]
    return torch.bincount(found.flatten(), minlength=len(points))


def _sum_by_class(values: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    sums = values.new_zeros(num_classes, values.shape[1]).index_add_(0, labels, values)
    return sums, torch.bincount(labels, minlength=num_classes)


def _compactness(points: Tensor, labels: Tensor) -> float:
    order = labels.argsort(stable=True)
    means = []
    for rows in torch.split(order, torch.bincount(labels).tolist()):
        parts = [exact_distances(points[part], points[rows]).sum() for part in torch.split(rows, CLASS_ROWS)]
        if len(rows) > 1:
            means.append(float(torch.stack(parts).sum()) / (len(rows) * (len(rows) - 1)))
    return sum(means) / len(means) if means else torch.nan


def _separability(points: Tensor, labels: Tensor) -> float:
    sums, counts = _sum_by_class(points, labels, int(labels.max()) + 1)
    means = sums / counts[:, None]
    means = means - means.mean(dim=0)  # far from the origin the product below would have no digits left
    nearest = []
    for start in range(0, len(means), CLASS_ROWS):
        distances = torch.cdist(means[start : start + CLASS_ROWS], means)
        distances.diagonal(start).fill_(torch.inf)
        nearest.append(distances.amin(dim=1))
    return float(torch.cat(nearest).mean()) if len(means) > 1 else torch.nan


def _between_share(points: Tensor, labels: Tensor) -> float:
    centred = points - points.mean(dim=0)
    sums, counts = _sum_by_class(centred, labels, int(labels.max()) + 1)
    between = (sums.square().sum(1) / counts).sum()
    return float(between / centred.square().sum()) if len(counts) > 1 else torch.nan


def _spectrum(points: Tensor) -> tuple[float, float]:
    singular = torch.linalg.svdvals(points)
    share = singular / singular.sum()
    decay = -(share * len(share)).log().mean()
    entropy = -torch.special.xlogy(share, share).sum()
    return float(decay), float(entropy.exp())
