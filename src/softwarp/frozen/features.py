"""Features of images by a network that is not being trained: computed once, and then found in the cache.

A vector is kept by the content of the image's file, for a network with its weights and the preparation of
images; see `data/feature_cache.py`. What follows the pooling, layer norm and head, is computed each time.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from softwarp.data.decode import digest_of
from softwarp.data.feature_cache import FeatureCache
from softwarp.data.stores import ContentStore, FileStore
from softwarp.events import OnEvent, Work, part_of, tell
from softwarp.inference import BATCH, EmbeddingModel
from softwarp.metrics.threads import read_ahead

# Images that are embedded together, no fewer, as the last bits of a vector depend on how many there are: so
# it is the same whatever was found in the cache.
TOGETHER = 16
TOGETHER_ON_GPU = 64
MAKERS = ("pillow", "timm", "torchvision")  # packages whose versions may change a vector


class Readable(Protocol):
    """A file that was read: the digest of its content and, unless it is known or broken, its pixels."""

    @property
    def digest(self) -> bytes: ...
    @property
    def pixels(self) -> Tensor | None: ...


@dataclass(frozen=True)
class Content:
    """What is known of an image's file: a digest of its content and, if it was decoded, its pixels."""

    digest: bytes = b""
    pixels: Tensor | None = None
    broken: str = ""  # why it cannot be read


def frozen_features(
    model: EmbeddingModel,
    images: ContentStore | Sequence[Path | str],
    *,
    workers: int = 0,
    on_event: OnEvent | None = None,
) -> Tensor:
    """Return what `model.embed(images, skip_broken=True)` does, [N, D] on the CPU, through the cache.

    An image that cannot be read has a row of NaN. Several processes may work on the same images.

    Args:
        model: usually `softwarp.inference.pretrained(name)`; its weights' hash is part of the cache's key.
        workers: threads that decode; 0 for one per core.

    `frozen_features(pretrained("efficientnet_lite0"), sorted(Path("birds").rglob("*.jpg")))`
    """
    pooled, _ = pooled_features(model, images, workers=workers, on_event=on_event)
    return after_pooling(model, pooled)


def pooled_features(
    model: EmbeddingModel,
    images: ContentStore | Sequence[Path | str],
    *,
    items: Sequence[int] | None = None,
    workers: int = 0,
    work: str = "embedding",
    on_event: OnEvent | None = None,
) -> tuple[Tensor, dict[int, str]]:
    """Return the pooled features [N, channels] of images, before layer norm and head, through the cache.

    The second value says why some rows, which are of NaN, belong to images that cannot be read.

    Args:
        items: which images, and in which order; None for all.
        work: what its progress is called.
    """
    store: ContentStore = images if isinstance(images, ContentStore) else files_of(model, images)
    items = range(len(store)) if items is None else items
    workers = workers or os.cpu_count() or 1
    batches = read_ahead(items, lambda item: _digest(store, item), BATCH, workers)
    read = [each for batch in batches for each in batch]
    broken = {row: each.broken for row, each in enumerate(read) if each.broken}
    known = KnownFeatures(model, on_event=on_event)
    pooled = known.cache.find([each.digest for each in read])
    missing = [row for row in np.flatnonzero(np.isnan(pooled).any(1)).tolist() if row not in broken]
    with part_of(on_event) as listener:
        bar = Work(listener, work, total=len(items), done=len(items) - len(missing))
        rest = read_ahead(missing, lambda row: _decoded(model, store, items[row]), known.together, workers)
        for batch in rest:
            rows, missing = missing[: len(batch)], missing[len(batch) :]
            broken |= {row: each.broken for row, each in zip(rows, batch, strict=True) if each.broken}
            pooled[[row for row in rows if row not in broken]] = known.add(batch)
            bar.advance(len(batch))
    return torch.from_numpy(pooled), dict(sorted(broken.items()))


class KnownFeatures:
    """The pooled features of a network that are in the cache; `add` computes more, and puts them there."""

    def __init__(self, model: EmbeddingModel, *, on_event: OnEvent | None = None) -> None:
        self.model, self.on_event = model, on_event
        self.cache = FeatureCache(key_of(model), model.network.backbone.channels)
        self.together = TOGETHER if model.device.type == "cpu" else TOGETHER_ON_GPU
        self._kept = True

    def add(self, files: Sequence[Readable]) -> NDArray[np.float32]:
        """Return the features of those that have pixels."""
        new = [each for each in files if each.pixels is not None]
        parts = [new[start : start + self.together] for start in range(0, len(new), self.together)]
        none = np.empty((0, self.model.network.backbone.channels), np.float32)
        vectors = np.concatenate([none, *(_forward(self.model, part, self.together) for part in parts)])
        if self._kept and new:
            self._keep([each.digest for each in new], vectors)
        return vectors

    def _keep(self, digests: Sequence[bytes], vectors: NDArray[np.float32]) -> None:
        try:
            self.cache.add(digests, vectors)
        except OSError as error:
            self._kept = False
            tell(
                self.on_event,
                f"features are not kept: {error}; choose another folder with SOFTWARP_CACHE",
            )


@torch.no_grad()
def after_pooling(model: EmbeddingModel, pooled: Tensor) -> Tensor:
    """Return the embeddings of pooled features, on the CPU; rows of NaN stay so."""
    parts = [model.network.from_pooled(part.to(model.device)) for part in pooled.split(4096)]
    return torch.cat(parts).float().cpu()


def key_of(model: EmbeddingModel) -> str:
    """Return all that a pooled vector depends on, but the image's file: network, weights, preparation."""
    network, digest = model.network, hashlib.sha256()
    for name, tensor in network.state_dict().items():
        if name.startswith(("backbone.", "pool.")):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().data)
    about = {
        "network": network.name,
        "weights": digest.hexdigest(),
        "pooling": network.pooling,
        "pixels": [network.mean.flatten().tolist(), network.std.flatten().tolist()],
        "resize": model.resize,
        "crop": model.crop,
        "interpolation": model.interpolation,
        "crop_mode": model.crop_mode,
        "by": {name: version(name) for name in MAKERS},
    }
    return json.dumps(about)


def files_of(model: EmbeddingModel, paths: Sequence[Path | str]) -> FileStore:
    """Return files as a store that decodes them as `model.embed` does."""
    return FileStore(Path(), [str(path) for path in paths], shorter_side=model.resize)


def _digest(store: ContentStore, item: int) -> Content:
    try:
        return Content(digest_of(store.content(item)))
    except ValueError as error:
        return Content(broken=str(error))


def _decoded(model: EmbeddingModel, store: ContentStore, item: int) -> Content:
    """The file as it is now, digest and pixels of the same bytes."""
    try:
        content = store.content(item)
        return Content(digest_of(content), model.seen(store.decode(item, content)))
    except ValueError as error:
        return Content(broken=str(error))


@torch.no_grad()
def _forward(model: EmbeddingModel, files: Sequence[Readable], together: int) -> NDArray[np.float32]:
    """The pooled features of a batch, filled up with black images."""
    pixels = [each.pixels for each in files if each.pixels is not None]
    black = pixels[0].new_zeros(together - len(pixels), *pixels[0].shape)
    pooled: Tensor = model.network.pooled(torch.cat([torch.stack(pixels), black]).to(model.device))
    return pooled[: len(pixels)].float().cpu().numpy()
