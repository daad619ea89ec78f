"""softwarp: deep metric learning with Realigned Softmax Warping.

Names are imported when they are first used, so that the command line starts without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softwarp.inference import load
    from softwarp.losses import (
        LOSSES,
        EuclideanSoftmaxLoss,
        ProxyNCAppLoss,
        WarpedSoftmaxLoss,
        build_loss,
        softmax_loss,
        warped_softmax_loss,
    )
    from softwarp.metrics import average_distance_to_proxy, clustering_metrics, retrieval_metrics

_HOMES = {
    "LOSSES": "softwarp.losses",
    "EuclideanSoftmaxLoss": "softwarp.losses",
    "ProxyNCAppLoss": "softwarp.losses",
    "WarpedSoftmaxLoss": "softwarp.losses",
    "average_distance_to_proxy": "softwarp.metrics",
    "build_loss": "softwarp.losses",
    "clustering_metrics": "softwarp.metrics",
    "load": "softwarp.inference",
    "retrieval_metrics": "softwarp.metrics",
    "softmax_loss": "softwarp.losses",
    "warped_softmax_loss": "softwarp.losses",
}

__all__ = [
    "LOSSES",
    "EuclideanSoftmaxLoss",
    "ProxyNCAppLoss",
    "WarpedSoftmaxLoss",
    "average_distance_to_proxy",
    "build_loss",
    "clustering_metrics",
    "load",
    "retrieval_metrics",
    "softmax_loss",
    "warped_softmax_loss",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'softwarp' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
