"""Principal directions as a linear layer, and class means: a first embedding that is the frozen one."""

import torch
from torch import Tensor
from torch.nn.functional import normalize


def principal_head(features: Tensor, size: int, *, centre: bool) -> tuple[Tensor, Tensor]:
    """Return weight [size, F] and bias [size] that turn features onto their `size` principal directions.

    The directions are orthonormal, so that distances stay what they were but for what lies in the directions
    left out. With `centre` the mean of the features lands on the origin, as suits Euclidean distance; without
    it the origin stays, and with it every cosine. Rows beyond F are zero: those coordinates start empty.

    >>> weight, bias = principal_head(torch.tensor([[1.0, 5.0], [1.0, 9.0]]), 1, centre=True)
    >>> weight, bias
    (tensor([[0., 1.]]), tensor([-7.]))
    """
    wide = features.double()
    mean = wide.mean(0) if centre else torch.zeros(wide.shape[1], dtype=wide.dtype)
    directions = torch.linalg.eigh((wide - mean).T @ (wide - mean)).eigenvectors.T.flip(0)[:size]
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    directions = directions * largest.sign()  # an eigenvector's sign is whatever the library makes it
    weight = torch.zeros(size, wide.shape[1], dtype=wide.dtype)
    weight[: len(directions)] = directions
    return weight.to(features.dtype), -(weight @ mean).to(features.dtype)


def class_means(embeddings: Tensor, labels: Tensor, classes: range, *, unit: bool) -> Tensor:
    """Return the mean embedding of each of these classes, [C, D]; a class without any has that of all.

    With `unit` it is the mean of directions, of length 1.

    >>> class_means(torch.tensor([[1.0], [3.0]]), torch.tensor([1, 1]), range(2), unit=False)
    tensor([[2.],
            [2.]])
    """
    points = normalize(embeddings) if unit else embeddings
    here = (labels >= classes.start) & (labels < classes.stop)
    places = labels[here] - classes.start
    counts = places.bincount(minlength=len(classes))[:, None]
    sums = points.new_zeros(len(classes), points.shape[1]).index_add_(0, places, points[here])
    means = torch.where(counts > 0, sums / counts.clamp_min(1), points.mean(0))
    return normalize(means) if unit else means
