"""Image files -> batches of vectors, digests and thumbnails; files that are known already are only hashed."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from softwarp.data.decode import decode_image, digest_of, read_content
from softwarp.frozen.features import KnownFeatures, after_pooling
from softwarp.index.thumbnail import thumbnail_of
from softwarp.inference import BATCH, EmbeddingModel
from softwarp.metrics.threads import read_ahead


@dataclass(frozen=True)
class PreparedFile:
    """A file that was read: its content's digest, and its pixels unless they are known already."""

    path: Path
    digest: bytes = b""  # empty if not even its bytes can be read
    pixels: Tensor | None = None
    features: NDArray[np.float32] | None = None  # pooled, if the cache has them
    thumbnail: bytes | None = None
    broken: str = ""  # why it cannot be read

    @property
    def embedded(self) -> bool:
        return self.pixels is not None or self.features is not None


@dataclass(frozen=True)
class Embedded:
    """A batch: the files that were embedded, a vector for each, and those that cannot be read."""

    files: list[PreparedFile]
    vectors: NDArray[np.float32]
    broken: list[PreparedFile]
    seen: int  # files, also those that are known


def embed_files(
    model: EmbeddingModel,
    paths: Sequence[Path],
    *,
    known: Callable[[Path], bytes | None] = lambda path: None,
    thumbnails: bool = False,
    batch_size: int = BATCH,
) -> Iterator[Embedded]:
    """Yield the vectors of these files batch by batch, in their order.

    Args:
        known: the digest that a file had when it was embedded before; it is skipped if that is still so.
        thumbnails: make a small JPEG of each image.
    """

    features = KnownFeatures(model) if model.untrained else None

    def prepare(path: Path) -> PreparedFile:
        return _prepare(model, path, known(path), thumbnails, features)

    batches = (
        model.embed_ahead(paths, prepare, batch_size=batch_size)
        if features is None
        else _looked_up(features, paths, prepare, batch_size)
    )
    for files, vectors in batches:
        yield Embedded(
            [file for file in files if file.embedded],
            vectors.numpy(),
            [file for file in files if file.broken],
            len(files),
        )


def _looked_up(
    features: KnownFeatures, paths: Sequence[Path], prepare: Callable[[Path], PreparedFile], batch_size: int
) -> Iterator[tuple[list[PreparedFile], Tensor]]:
    """Batches like those of `embed_ahead`; what the cache has is not computed."""
    for files in read_ahead(paths, prepare, batch_size, os.cpu_count()):
        computed = iter(features.add(files))
        pooled = [
            file.features if file.features is not None else next(computed) for file in files if file.embedded
        ]
        width = features.model.network.backbone.channels
        rows = np.array(pooled, np.float32).reshape(-1, width)  # there may be none
        yield files, after_pooling(features.model, torch.from_numpy(rows))


def _prepare(
    model: EmbeddingModel,
    path: Path,
    known: bytes | None,
    thumbnails: bool,
    features: KnownFeatures | None,
) -> PreparedFile:
    digest = b""
    try:
        # The digest comes first: a file that changes in between has a digest that is out of date, and is
        # embedded again next time.
        content = read_content(path)
        digest = digest_of(content)
        if digest == known:
            return PreparedFile(path, digest)
        found = None if features is None else features.cache.get(digest)
        if found is not None and not thumbnails:
            return PreparedFile(path, digest, features=found)
        image = decode_image(content, str(path), shorter_side=model.resize)
    except (ValueError, OSError) as error:
        return PreparedFile(path, digest, broken=str(error))
    thumbnail = thumbnail_of(image) if thumbnails else None
    if found is not None:
        return PreparedFile(path, digest, features=found, thumbnail=thumbnail)
    return PreparedFile(path, digest, model.seen(image), thumbnail=thumbnail)
