"""How the losses of pytorch-metric-learning (PML) are made and called here.

`from_pml_*.py` hold the losses: PML's class, our names, the defaults of the paper that introduced each. PML
takes seconds to import, so it is imported when a loss is built. A loss without parameters of its own has
`call_pml` as its `forward`.

Parameters are ours, class first ([C, ...]), and PML's class gets them for one call as wide temporaries:
it casts its parameters in place to the type of the embeddings, which would leave half-precision proxies.
They start as in the code of each loss's authors, where PML mostly draws from N(0, 1).
"""

import math
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from softwarp.losses.distances import check_finite, check_input, euclidean_distances, widen

Indices = tuple[Tensor, ...]


def call_pml(
    loss: Any, embeddings: Tensor, labels: Tensor, *, indices: Indices | None = None, **parameters: Tensor
) -> Tensor:
    """Return the value of `loss.pml` with these parameters, checked, in at least float32.

    Args:
        loss: one of our modules, with num_classes, embedding_size, card, pml and perhaps a miner.
        indices: the pairs or triplets to use; by default those that the miner finds, or all.
    """
    check_input(embeddings, labels, loss.num_classes, loss.embedding_size)
    loss.card.check_counts(labels)
    labels = labels.long()
    with torch.autocast(embeddings.device.type, enabled=False):
        wide, *values = widen(embeddings, *parameters.values())
        check_finite(wide.abs().amax(), wide)  # miners and reducers ignore NaN
        if indices is None and hasattr(loss, "miner"):
            indices = loss.miner(wide, labels)
        arguments = (wide, labels, indices)
        value: Tensor = functional_call(loss.pml, dict(zip(parameters, values, strict=True)), arguments)
    check_finite(value, embeddings, getattr(loss, "proxies", None))
    return value


def pml_loss(name: str, *sizes: int, **settings: Any) -> Any:
    """Return PML's loss of that name."""
    from pytorch_metric_learning import losses

    return getattr(losses, name)(*sizes, **settings)


def pml_classifier(name: str, *sizes: int, **settings: Any) -> Any:
    """Return PML's classifier of that name without its weights `W`: `init_proxies` draws ours instead."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # SciPy's of tensors
        pml = pml_loss(name, *sizes, weight_init_func=leave_undrawn, **settings)
    pml.W = None
    return pml


def leave_undrawn(_: Tensor) -> None:
    """Let PML's class allocate its weights without drawing them."""


def take_parameter(pml: Any, name: str) -> Tensor:
    """Return the tensor that PML's module starts with, and leave the module without it."""
    start: Tensor = getattr(pml, name).detach()
    setattr(pml, name, None)
    return start


def lp_distance(**settings: Any) -> Any:
    """Return PML's Euclidean distance, made of direct differences.

    PML's own takes matrix products beyond 25 rows, and in float32 those lose half the digits of small
    distances.
    """
    from pytorch_metric_learning.distances import LpDistance

    distance = LpDistance(**settings)
    distance.compute_mat = euclidean_distances
    return distance


def angles_of(cosines: Tensor) -> Tensor:
    """Return arccos, with gradient zero where it would be infinite: at 1 and -1.

    PML clamps instead, which guards the value; whether it guards the gradient depends on torch's version.

    >>> angles_of(torch.tensor([1.0, 0.0, -1.0]))
    tensor([0.0000, 1.5708, 3.1416])
    """
    inside = cosines.abs() < 1
    angles = torch.acos(torch.where(inside, cosines, 0.0))
    return torch.where(inside, angles, math.pi * (cosines < 0))
