"""The functions f1 and f2 of Eq. 6: what is applied to a distance before the softmax.

Each maker returns a function of a tensor of distances t >= 0, so that any pair can be handed to
`softmax_loss(..., own=f1, other=f2)`. The paper's Table 3 compares them all.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from softwarp.losses.checks import check_positive

Warp = Callable[[Tensor], Tensor]


def identity(t: Tensor) -> Tensor:
    """Return t: f2 of the paper's loss, and both functions of Eq. 4.

    >>> identity(torch.tensor([2.0]))
    tensor([2.])
    """
    return t


def power(exponent: float) -> Warp:
    """Return t -> t^exponent: convex above 1 (separates), concave below 1 (compacts).

    The gradient at t = 0 is zero, where that of sqrt(t) would be infinite.

    >>> power(2.0)(torch.tensor([3.0]))
    tensor([9.])
    """
    check_positive(exponent=exponent)

    def raised(t: Tensor) -> Tensor:
        zero = t == 0  # not t > 0, which would turn NaN into zero
        return torch.where(zero, 0.0, torch.where(zero, 1.0, t) ** exponent)

    return raised


def scaled(factor: float) -> Warp:
    """Return t -> factor * t: the "half warps" of Table 3, outward below 1, inward above.

    >>> scaled(0.5)(torch.tensor([3.0]))
    tensor([1.5000])
    """
    check_positive(factor=factor)
    return lambda t: factor * t


def piecewise(
    *,
    alpha: float | Tensor,
    k1: float | Tensor,
    k2: float | Tensor,
    delta: float = 1.0,
    labels: Tensor | None = None,
) -> Warp:
    """Return the warp of Eq. 7: slope k1 inside the radius alpha, slope k2 beyond it.

        f1(t) = k1 t + delta * stopgrad((1 - k1) t)    for t < alpha
                k2 t + (1 - k2) alpha                  for t >= alpha

    With delta = 1 (the paper's Delta) the value is t itself below alpha while the gradient is k1:
    embeddings feel the warp, but the value of the loss does not.

    Args:
        labels: the class of each distance, where alpha, k1 or k2 are tensors [C] with one value per class.

    >>> piecewise(alpha=2.0, k1=0.5, k2=2.0)(torch.tensor([1.0, 3.0]))
    tensor([1., 4.])
    """
    if labels is not None:
        alpha, k1, k2 = (per_sample(value, labels) for value in (alpha, k1, k2))

    def warp(t: Tensor) -> Tensor:
        inside = k1 * t + delta * ((1 - k1) * t).detach()
        outside = k2 * t + (1 - k2) * alpha
        return torch.where(t < alpha, inside, outside)

    return warp


def per_sample(value: float | Tensor, labels: Tensor) -> float | Tensor:
    """Return each sample's value of those of the classes; a single value as it is."""
    return value[labels] if isinstance(value, Tensor) and value.dim() else value


def check_warp(num_classes: int, **warp: float | Tensor) -> None:
    """Raise a ValueError unless all are finite, slopes and scale positive, alpha and delta not negative."""
    for name, value in warp.items():
        tensor = torch.as_tensor(value)
        per_class = name in ("alpha", "k1", "k2") and tensor.shape == (num_classes,)
        if tensor.dim() and not per_class:
            raise ValueError(
                f"{name} must be a number or a tensor [{num_classes}] with one value per class, "
                f"got shape {list(tensor.shape)}"
            )
        least, good = "positive", tensor > 0
        if name in ("alpha", "delta"):
            least, good = "at least 0", tensor >= 0
        if not bool((good & torch.isfinite(tensor)).all()):
            raise ValueError(f"{name} must be {least} and finite, got {value}")
