"""What the conformance suite needs to know of each loss: a slow reference, and mutants it must kill."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """How one entry of LOSSES is tried.

    `reference(embeddings, labels, state, **settings)` returns the scalar that the module's forward must
    return, written as loops in float64 from the equations; `state` is the module's state dict as arrays.
    `mutants` are (old, new) replacements in the loss's source file, each of which must change the value.
    """

    reference: Callable[..., float]
    mutants: tuple[tuple[str, str], ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    classes: int = 4  # in the trial batch
    samples: int = 3  # of each class
    surrogate: Callable[..., float] | None = None  # whose derivative is the gradient, where not the value's
    order: str = ""  # why the order of samples within a class counts, where it does
    renaming: str = ""  # why a class cannot take another's number, where it cannot
    training: bool = True  # False where training mode is random beyond a seed: tried in eval mode


def derivative(function: Callable[[Array], float], at: Array, direction: Array, step: float = 1e-5) -> float:
    """Return the function's derivative along a direction, by central differences.

    Numbers far below 1, such as class vectors from N(0, 0.01), get a step in proportion.
    """
    step *= min(1.0, float(np.sqrt(np.mean(at**2))) or 1.0)
    return (function(at + step * direction) - function(at - step * direction)) / (2 * step)


def arrays_of(loss: nn.Module) -> dict[str, Array]:
    """Return the tensors of the loss's state dict in double precision, as references take them."""
    state = loss.state_dict().items()
    return {name: tensor.double().numpy() for name, tensor in state if isinstance(tensor, Tensor)}
