"""What the frozen network of a recipe says of images: once, for all that is made from it."""

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from softwarp import processes
from softwarp.data.sources import Images, Source
from softwarp.data.stores import ContentStore
from softwarp.evaluation import embed_images
from softwarp.events import OnEvent, part_of
from softwarp.frozen.features import pooled_features
from softwarp.inference import EmbeddingModel
from softwarp.models.embedder import Embedder
from softwarp.recipe.schema import Recipe

MOST = 20_000  # images that a head is calibrated on; of more, as many of each class as there is room for
PER_CLASS = 32
PART = 4096  # rows that a head sees at a time


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


def may_know(recipe: Recipe) -> bool:
    """Return whether features are kept: random weights never return, and several processes share the work."""
    return bool(recipe.model.pretrained) and not recipe.data.strict and processes.count() == 1


@torch.no_grad()
def pooled_of(
    network: Embedder,
    images: Images,
    recipe: Recipe,
    *,
    device: torch.device,
    items: Tensor | None = None,
    workers: int = 0,
    on_event: OnEvent | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the pooled features of images, [N, F] on the CPU, and the items that could be read.

    They come through the cache where images are files.
    """
    network.eval()
    store, data = getattr(images, "store", None), recipe.data
    if not isinstance(store, ContentStore) or not may_know(recipe):
        return embed_images(network.pooled, images, device=device, items=items, workers=workers)
    chosen = torch.arange(len(images)) if items is None else items
    model = EmbeddingModel(
        network,
        distance="cosine",
        resize=data.resize,
        crop=data.crop,
        device=device,
        interpolation=data.interpolation,
        crop_mode=data.crop_mode,
    )
    pooled, broken = pooled_features(model, store, items=chosen.tolist(), workers=workers, on_event=on_event)
    kept = [row for row in range(len(chosen)) if row not in broken]
    return pooled[kept], chosen[kept]


def in_parts(after: Callable[[Tensor], Tensor], pooled: Tensor, device: torch.device) -> Tensor:
    """Return what a network makes of pooled features, [N, D] on the CPU."""
    with torch.no_grad():
        return torch.cat([after(part.to(device)).float().cpu() for part in pooled.split(PART)])


class TrainingFeatures:
    """Features of training images by file, computed when they are first asked for."""

    def __init__(
        self, recipe: Recipe, source: Source, device: torch.device, on_event: OnEvent | None = None
    ) -> None:
        self.recipe, self.source, self.device, self.on_event = recipe, source, device, on_event

    @cached_property
    def found(self) -> tuple[Tensor, dict[str, int]]:
        """The features, and the row of each file."""
        recipe = self.recipe
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)  # random weights are those that training begins with
            plain = recipe.model.model_dump() | {"adapter": None}  # which starts at the frozen network
            network = Embedder(**plain).to(self.device)
        items = items_to_calibrate(self.source.labels, seed=recipe.seed)
        with part_of(self.on_event) as listener:
            pooled, kept = pooled_of(
                network,
                self.source.plain,
                recipe,
                device=self.device,
                items=items,
                on_event=listener,
            )
        features = in_parts(network.norm, pooled, self.device)
        files = self.source.train_items.files
        return features, {files[item]: row for row, item in enumerate(kept.tolist())}
