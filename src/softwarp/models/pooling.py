"""Pooling: a map of features [N, channels, height, width] in, one vector per image [N, channels] out."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def max_and_average(features: Tensor) -> Tensor:
    """Return the maximum plus the average of each channel."""
    return features.amax(dim=(2, 3)) + features.mean(dim=(2, 3))


def average(features: Tensor) -> Tensor:
    """Return the average of each channel."""
    return features.mean(dim=(2, 3))


def maximum(features: Tensor) -> Tensor:
    """Return the maximum of each channel."""
    return features.amax(dim=(2, 3))


class GeneralisedMean(nn.Module):
    """GeM, mean(x^p)^(1/p), with one learned p >= 1: the average at 1, towards the maximum as p grows.

    F. Radenovic, G. Tolias and O. Chum, Fine-tuning CNN image retrieval with no human annotation (2018).

    >>> GeneralisedMean(power=2.0)(torch.tensor([[[[3.0, 4.0]]]])).square()
    tensor([[12.5000]], grad_fn=<PowBackward0>)
    """

    def __init__(self, *, power: float = 3.0, floor: float = 1e-6) -> None:
        super().__init__()
        self.power = nn.Parameter(torch.tensor(power))
        self.floor = floor

    def forward(self, features: Tensor) -> Tensor:
        exact = features.to(torch.promote_types(features.dtype, torch.float32)).clamp(min=self.floor)
        power = self.power.clamp(min=1)
        largest = exact.detach().amax(dim=(2, 3), keepdim=True)  # scaled by it, no power overflows
        scaled = (exact / largest).pow(power).mean(dim=(2, 3)).pow(1 / power)
        return scaled * largest.flatten(1)


BEFORE = "max+avg"  # the pooling of runs and models that do not name theirs
VECTORS = ("native", "token+mean")  # what a timm model does itself (timm_backbone.py)
POOLINGS: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
    "max+avg": lambda: max_and_average,
    "avg": lambda: average,
    "max": lambda: maximum,
    "gem": GeneralisedMean,
}
