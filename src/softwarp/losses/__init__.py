"""Losses by name: made from `(num_classes, embedding_size, ...)`, called with `(embeddings, labels)`."""

from difflib import get_close_matches
from typing import Any

from torch import nn

from softwarp.losses.proxy_nca_pp import ProxyNCAppLoss, proxy_nca_pp_loss
from softwarp.losses.warped_softmax import (
    EuclideanSoftmaxLoss,
    WarpedSoftmaxLoss,
    fused_warped_softmax_loss,
    softmax_loss,
    warped_softmax_loss,
)

LOSSES: dict[str, type[nn.Module]] = {
    "warped_softmax": WarpedSoftmaxLoss,
    "euclidean_softmax": EuclideanSoftmaxLoss,
    "proxy_nca_pp": ProxyNCAppLoss,
}


def build_loss(name: str, num_classes: int, embedding_size: int, **settings: Any) -> nn.Module:
    """Return the loss of that name; a name that is not there is answered with the nearest ones.

    >>> build_loss("euclidean_softmax", 10, 4, scale=2.0)
    EuclideanSoftmaxLoss(num_classes=10, embedding_size=4, scale=2.0)
    """
    if name not in LOSSES:
        near = get_close_matches(name, LOSSES, n=3) or list(LOSSES)
        raise ValueError(f"no loss is called {name!r}; did you mean {' or '.join(near)}?")
    return LOSSES[name](num_classes, embedding_size, **settings)


__all__ = [
    "LOSSES",
    "EuclideanSoftmaxLoss",
    "ProxyNCAppLoss",
    "WarpedSoftmaxLoss",
    "build_loss",
    "fused_warped_softmax_loss",
    "proxy_nca_pp_loss",
    "softmax_loss",
    "warped_softmax_loss",
]
