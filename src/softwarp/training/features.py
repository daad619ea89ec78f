"""What the frozen network of a recipe says of images: once, for all that is made from it."""

from functools import cached_property

import torch
from torch import Tensor

from softwarp.data.sources import Images, Source
from softwarp.evaluation import embed_images
from softwarp.models.embedder import Embedder
from softwarp.recipe.schema import DataPart, Recipe

MOST = 20_000  # images that a head is calibrated on; of more, as many of each class as there is room for
PER_CLASS = 32


def sampled_items(labels: Tensor, *, seed: int) -> Tensor:
    """Return items in ascending order: of each class as many as the sample has room for, at least one.

    >>> sampled_items(torch.tensor([0, 1, 0, 1]), seed=0)
    tensor([0, 1, 2, 3])
    """
    most = min(PER_CLASS, max(1, MOST // int(labels.max() + 1)))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    order = order[labels[order].argsort(stable=True)]
    counts = labels.bincount()
    place = torch.arange(len(labels)) - (counts.cumsum(0) - counts)[labels[order]]
    return order[place < most].sort().values


def items_to_calibrate(labels: Tensor, *, seed: int) -> Tensor:
    """Return all items, or of very many a sample."""
    return torch.arange(len(labels)) if len(labels) <= MOST else sampled_items(labels, seed=seed)


@torch.no_grad()
def inputs_of_head(
    network: Embedder,
    images: Images,
    data: DataPart,
    *,
    device: torch.device,
    items: Tensor | None = None,
    workers: int = 0,
) -> tuple[Tensor, Tensor]:
    """Return what the head sees of images, [N, F] on the CPU, and the items that could be read."""
    network.eval()
    return embed_images(network.head_input, images, device=device, items=items, workers=workers)


class TrainingFeatures:
    """Features of training images by file, computed when they are first asked for."""

    def __init__(self, recipe: Recipe, source: Source, device: torch.device) -> None:
        self.recipe, self.source, self.device = recipe, source, device

    @cached_property
    def found(self) -> tuple[Tensor, dict[str, int]]:
        """The features, and the row of each file."""
        recipe = self.recipe
        network = Embedder(**recipe.model.model_dump()).to(self.device)
        items = items_to_calibrate(self.source.labels, seed=recipe.seed)
        features, kept = inputs_of_head(
            network, self.source.plain, recipe.data, device=self.device, items=items
        )
        files = self.source.train_items.files
        return features, {files[item]: row for row, item in enumerate(kept.tolist())}
