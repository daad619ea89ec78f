"""The rungs that need no more than features of a frozen network: frozen, calibrated, head alone.

Each half of the training classes judges what was made from the other half.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor
from torch.nn import functional as F

from softwarp.data.sources import Source
from softwarp.evaluation import map_at_r_per_class
from softwarp.models.whitening import ClassScatter
from softwarp.recipe.schema import StartPart
from softwarp.training.choice import FROZEN, Values, Way, mean_of
from softwarp.training.head import embed, trained_heads, whitened_head

SHRINKAGES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, None)  # None: the mean alone
RATES = {  # of the losses that train a head; those over distances overfit sooner
    "normalized_softmax": 1e-4,
    "proxy_nca_pp": 1e-4,
    "euclidean_softmax": 3e-5,
    "warped_softmax": 3e-5,
}
FIRST_LOOK = 15  # steps; each further look comes after twice as many

Embed = Callable[[Tensor], Tensor]
Seen = tuple[Values, Values]  # MAP@R by class: of held-out classes and, in a closed set, of held-out images


@dataclass(frozen=True)
class Half:
    """Features of the images that one half trains on, and of those that judge it."""

    trained: Tensor
    labels: Tensor
    names: Sequence[str]
    judged: Tensor
    judged_labels: Tensor
    judged_names: Sequence[str]
    kept: Tensor | None = None  # in a closed set: held-out images of the classes that train
    kept_labels: Tensor | None = None

    @staticmethod
    def of(source: Source, rows: Mapping[str, int], features: Tensor) -> "Half":
        """Return the half that a source describes, by the rows of the features of files."""

        def side(files: Sequence[str], labels: Tensor) -> tuple[Tensor, Tensor]:
            found = [place for place, file in enumerate(files) if file in rows]
            return features[[rows[files[place]] for place in found]], labels[found]

        kept: tuple[Tensor | None, Tensor | None] = None, None
        if source.kept_items is not None and source.kept_labels is not None:
            kept = side(source.kept_items.files, source.kept_labels)
        return Half(
            *side(source.train_items.files, source.labels),
            source.names,
            *side(source.query_items.files, source.query_labels),
            source.evaluated_names,
            *kept,
        )

    def look(self, make: Embed) -> tuple[dict[str, float], dict[str, float]]:
        """Return the MAP@R of held-out classes, and of held-out images among those that train."""
        judged = {"embeddings": make(self.judged), "labels": self.judged_labels}
        classes = map_at_r_per_class(judged, self.judged_names, distance="cosine")
        if self.kept is None or self.kept_labels is None:
            return classes, {}
        kept = {"embeddings": make(self.kept), "labels": self.kept_labels}
        kept |= {"gallery": make(self.trained), "gallery_labels": self.labels}
        return classes, map_at_r_per_class(kept, self.names, distance="cosine")


def frozen(halves: Sequence[Half]) -> Seen:
    """Return what the halves say of the features as they are."""
    return _joined({FROZEN: [half.look(lambda each: F.layer_norm(each, each.shape[1:])) for half in halves]})


def calibrated(halves: Sequence[Half], scatters: Sequence[ClassScatter], size: int) -> Seen:
    """Return what the halves say of each shrinkage."""

    def making(half: Half, scatter: ClassScatter, start: StartPart) -> Embed:
        if size != len(scatter.mean):
            head = whitened_head(scatter, half.trained, start, size)
            return lambda each: embed(head, each)
        stretch = scatter.stretch(math.inf if start.shrinkage is None else start.shrinkage).float()
        return lambda each: scatter.turned(each) * stretch  # the same cosines, without a D x D matrix

    starts = [StartPart(shrinkage=each) for each in SHRINKAGES]
    pairs = list(zip(halves, scatters, strict=True))
    return _joined(
        {
            Way(start=start): [half.look(making(half, scatter, start)) for half, scatter in pairs]
            for start in starts
        }
    )


def head_alone(
    halves: Sequence[Half],
    scatters: Sequence[ClassScatter],
    size: int,
    *,
    loss: str,
    shrinkage: float | None,
    start_value: float,
    seed: int,
) -> Seen:
    """Return what the halves say of a head trained by a loss, at looks for as long as they improve.

    Args:
        start_value: what they said of the calibrated features that it begins with.
    """
    first = StartPart.model_validate(
        {"shrinkage": shrinkage, "loss": loss, "steps": FIRST_LOOK, "learning_rate": RATES[loss]}
    )
    heads = [
        trained_heads(
            half.trained,
            half.labels,
            whitened_head(scatter, half.trained, first, size),
            first,
            looks=_looks(),
            seed=seed,
        )
        for half, scatter in zip(halves, scatters, strict=True)
    ]
    found: tuple[dict[Way, Mapping[str, float]], dict[Way, Mapping[str, float]]] = ({}, {})
    before = start_value
    for steps in _looks():
        way = Way(start=first.model_copy(update={"steps": steps}))
        seen = _joined({way: [_look(half, next(head)) for half, head in zip(halves, heads, strict=True)]})
        for all_of_them, new in zip(found, seen, strict=True):
            all_of_them.update(new)
        now = mean_of((seen[1] or seen[0])[way])
        if now <= before:
            return found
        before = now
    raise AssertionError


def _look(half: Half, head: tuple[Tensor, Tensor]) -> tuple[dict[str, float], dict[str, float]]:
    with torch.no_grad():
        return half.look(lambda each: embed(head, each))


def _looks() -> Iterator[int]:
    return (FIRST_LOOK * 2**number for number in count())


def _joined(looks: Mapping[Way, Sequence[tuple[dict[str, float], dict[str, float]]]]) -> Seen:
    """The classes of all halves put together."""
    classes = {way: {name: v for each, _ in seen for name, v in each.items()} for way, seen in looks.items()}
    images = {way: {name: v for _, each in seen for name, v in each.items()} for way, seen in looks.items()}
    return classes, images if any(images.values()) else {}
