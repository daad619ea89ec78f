"""Whitening within classes: a linear layer, in closed form, that makes a frozen space a calibrated one.

Directions in which images of one class scatter say little about the class. With the within-class covariance
`Sw` of training images [N, D] and a shrinkage `lambda`, the layer is

    x -> (Sw / t + lambda I)^(-1/2) (x - mean) sqrt(1 + lambda),    t = trace(Sw) / D

and its output is compared by cosine. At infinite shrinkage only the mean is subtracted.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ClassScatter:
    """The mean of features [D], and their covariance within classes as eigenvalues [D] and vectors [D, D].

    >>> features = torch.tensor([[0.0, 9.0], [2.0, 9.0], [0.0, -9.0], [2.0, -9.0]])
    >>> scatter = ClassScatter.of(features, torch.tensor([0, 0, 1, 1]))
    >>> weight, bias = scatter.whitened(0.1)
    >>> (weight @ torch.tensor([2.0, 9.0]) + bias).abs().round(decimals=1)  # the second axis tells them apart
    tensor([ 0.7000, 29.8000])
    """

    mean: Tensor
    values: Tensor
    directions: Tensor

    @staticmethod
    def of(features: Tensor, labels: Tensor) -> "ClassScatter":
        """Return the scatter of features [N, D]; single images of a class say nothing of it."""
        wide, places = features.double(), labels.unique(return_inverse=True)[1]
        counts = places.bincount().clamp_min(1)
        sums = wide.new_zeros(len(counts), wide.shape[1]).index_add_(0, places, wide)
        within = wide - (sums / counts[:, None])[places]
        freedom = max(1, len(wide) - len(counts))
        values, directions = torch.linalg.eigh(within.T @ within / freedom)
        return ClassScatter(wide.mean(0), values.clamp_min(0), directions)

    def stretch(self, shrinkage: float) -> Tensor:
        """Return the factor [D] of each direction."""
        unit = self.values.mean()
        if not math.isfinite(shrinkage) or unit <= 0:
            return torch.ones_like(self.values)
        return ((1 + shrinkage) / (self.values / unit + shrinkage)).sqrt()

    def turned(self, features: Tensor) -> Tensor:
        """Return features [N, D] in the coordinates that `stretch` is about, in float32.

        >>> scatter = ClassScatter.of(torch.eye(3), torch.tensor([0, 0, 1]))
        >>> turned = scatter.turned(torch.eye(3)) * scatter.stretch(0.5).float()
        >>> weight, bias = scatter.whitened(0.5)
        >>> bool(torch.allclose(turned.norm(dim=1), (weight + bias[:, None]).norm(dim=0)))
        True
        """
        return (features - self.mean.float()) @ self.directions.float()

    def whitened(self, shrinkage: float) -> tuple[Tensor, Tensor]:
        """Return weight [D, D] and bias [D] of the layer, in float32."""
        weight = torch.eye(len(self.mean), dtype=torch.float64)
        stretch = self.stretch(shrinkage)
        if bool((stretch != 1).any()):
            weight = (self.directions * stretch) @ self.directions.T
        return weight.float(), -(weight @ self.mean).float()
