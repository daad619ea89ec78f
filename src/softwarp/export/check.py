"""An exported model beside torch's: the difference, the neighbours, the recall, on images of the run."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from softwarp.data.sources import load_source
from softwarp.export.formats import Forward
from softwarp.metrics import nearest_neighbours, retrieval_metrics
from softwarp.runs.run import Run

if TYPE_CHECKING:
    from softwarp.inference import EmbeddingModel

NEIGHBOURS = 10
BATCH = 64
TOLERANCE = 1e-4  # of the largest coordinate, or of one; float32 differs by 1e-6 to 1e-5


@dataclass(frozen=True)
class SampledImages:
    """Bytes [N, channels, crop, crop], their classes, and where they come from; random ones have no class."""

    pixels: Tensor
    labels: Tensor | None
    origin: str


@dataclass(frozen=True)
class Check:
    """An export compared with torch."""

    images: int
    origin: str
    difference: float  # the largest of all coordinates of all embeddings
    largest: float  # coordinate of torch's embeddings
    same_neighbours: int  # images whose nearest, in order, are the same
    recall: tuple[float, float] | None  # recall@1 by torch and by the export; None for random images

    def figures(self) -> str:
        """Return the difference in words."""
        return f"largest difference {self.difference:.1e} (of embeddings up to {self.largest:.1f})"

    def close(self) -> bool:
        """Return whether the difference is rounding."""
        return self.difference <= TOLERANCE * max(1.0, self.largest)


def images_to_check(run: Path | str, model: "EmbeddingModel", *, count: int) -> SampledImages:
    """Return images of the run's evaluated classes, about `count` in whole classes; else random ones."""
    try:
        return _of_run(Run(Path(run)), count)
    except (OSError, ValueError) as error:
        shape = (count, model.network.backbone.in_channels, model.crop, model.crop)
        random = torch.randint(256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        return SampledImages(random, None, f"random images, because {str(error).splitlines()[0]}")


def _of_run(run: Run, count: int) -> SampledImages:
    recipe = run.recipe()
    source = load_source(recipe.data.uncached(), recipe.evaluation.plan())
    if not len(source.query_labels):
        raise ValueError("the run trained on all classes")
    items = _whole_classes(source.query_labels, count)
    batch = source.queries.__getitems__([(item, 0) for item in items.tolist()])
    return SampledImages(batch.images, batch.labels, f"{source.query_items.role} images of the run's data")


def _whole_classes(labels: Tensor, count: int) -> Tensor:
    """Return the items of the first classes that hold `count` images together, or of all.

    >>> _whole_classes(torch.tensor([1, 0, 1, 2]), 2).tolist()
    [0, 1, 2]
    """
    reached = labels.sort().values[: max(1, count)][-1]
    return (labels <= reached).nonzero().flatten()


@torch.no_grad()
def compare_with_torch(forward: Forward, model: "EmbeddingModel", images: SampledImages) -> Check:
    """Return how far the embeddings of `forward` are from the model's; batches of 1 and more are tried."""
    expected = model.embed(images.pixels)
    batches = [images.pixels[:1], *images.pixels[1:].split(BATCH)]
    found = torch.cat([forward(batch).float() for batch in batches if len(batch)])
    k = min(NEIGHBOURS, len(found) - 1)
    ours, theirs = (nearest_neighbours(each, k, distance=model.distance)[1] for each in (expected, found))
    return Check(
        images=len(found),
        origin=images.origin,
        difference=float((found - expected).abs().max()),
        largest=float(expected.abs().max()),
        same_neighbours=int((ours == theirs).all(dim=1).sum()),
        recall=_recalls(expected, found, images.labels, model.distance),
    )


def _recalls(
    expected: Tensor, found: Tensor, labels: Tensor | None, distance: str
) -> tuple[float, float] | None:
    if labels is None:
        return None
    ours, theirs = (
        retrieval_metrics(each, labels, ks=(1,), distance=distance)["recall@1"] for each in (expected, found)
    )
    return ours, theirs
