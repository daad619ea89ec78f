"""softwarp: deep metric learning with Realigned Softmax Warping.

    model = softwarp.train("my_images", budget="10m")
    index = softwarp.Index.build(model, "photos", "photos.index")
    index.search("query.jpg", k=10)

Names are imported when they are first used, so that `import softwarp` is free of torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softwarp import losses, metrics
    from softwarp.evaluation import evaluate
    from softwarp.faces.verify import verify
    from softwarp.fair.compare import benchmark
    from softwarp.index.index import Index
    from softwarp.inference import EmbeddingModel, load
    from softwarp.losses import LOSSES, EuclideanSoftmaxLoss, WarpedSoftmaxLoss, build_loss
    from softwarp.recipe.load import load_recipe
    from softwarp.recipe.schema import Recipe
    from softwarp.training.backbones import backbones
    from softwarp.training.entry import train
    from softwarp.tuning.entry import tune

_HOMES = {
    "LOSSES": "softwarp.losses",
    "EmbeddingModel": "softwarp.inference",
    "EuclideanSoftmaxLoss": "softwarp.losses",
    "Index": "softwarp.index.index",
    "Recipe": "softwarp.recipe.schema",
    "WarpedSoftmaxLoss": "softwarp.losses",
    "backbones": "softwarp.training.backbones",
    "benchmark": "softwarp.fair.compare",
    "build_loss": "softwarp.losses",
    "evaluate": "softwarp.evaluation",
    "load": "softwarp.inference",
    "load_recipe": "softwarp.recipe.load",
    "train": "softwarp.training.entry",
    "tune": "softwarp.tuning.entry",
    "verify": "softwarp.faces.verify",
}
_ROOMS = ("losses", "metrics")

__all__ = [
    "LOSSES",
    "EmbeddingModel",
    "EuclideanSoftmaxLoss",
    "Index",
    "Recipe",
    "WarpedSoftmaxLoss",
    "backbones",
    "benchmark",
    "build_loss",
    "evaluate",
    "load",
    "load_recipe",
    "losses",
    "metrics",
    "train",
    "tune",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"softwarp.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'softwarp' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
