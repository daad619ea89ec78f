"""The random generators that training draws from, as a checkpoint keeps them."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def random_state() -> dict[str, Any]:
    """Return the state of every random generator that training may use, ready for a checkpoint."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002 - other libraries draw from it
    cuda = [torch.cuda.get_rng_state()] if torch.cuda.is_available() else []  # every process draws alike
    return {
        "torch": torch.get_rng_state(),
        "cuda": cuda,
        "numpy": [kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest],
        "python": list(random.getstate()),
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Put every generator back to a state that `random_state` returned."""
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and state["cuda"]:
        torch.cuda.set_rng_state(state["cuda"][0])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
