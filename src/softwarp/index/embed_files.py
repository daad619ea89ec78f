"""Image files -> batches of vectors: decoded by threads while the model works on the batch before."""

import hashlib
import io
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from softwarp.data.decode import read_content
from softwarp.inference import EmbeddingModel
from softwarp.metrics.threads import use_one_core

BATCH = 64
AHEAD = 2  # batches that are decoded while one is embedded
THUMBNAIL = 160  # pixels of the longer side
QUALITY = 80


@dataclass(frozen=True)
class PreparedFile:
    """A file that was read: its content's digest, and its pixels unless they are known already."""

    path: Path
    digest: bytes = b""  # empty if not even its bytes can be read
    pixels: Tensor | None = None
    thumbnail: bytes | None = None
    broken: str = ""  # why it cannot be read


@dataclass(frozen=True)
class Embedded:
    """A batch: the files that were embedded, a vector for each, and those that cannot be read."""

    pictures: list[PreparedFile]
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

    def prepare(path: Path) -> PreparedFile:
        return _prepare(model, path, known(path), thumbnails)

    todo = iter(paths)
    with ThreadPoolExecutor(os.cpu_count(), initializer=use_one_core) as pool:
        waiting: deque[list[Future[PreparedFile]]] = deque()
        try:
            while True:
                while len(waiting) <= AHEAD and (batch := list(islice(todo, batch_size))):
                    waiting.append([pool.submit(prepare, path) for path in batch])
                if not waiting:
                    return
                yield _embed(model, [future.result() for future in waiting.popleft()])
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def digest_of(content: bytes) -> bytes:
    """Return 16 bytes that differ if the content does."""
    return hashlib.blake2b(content, digest_size=16).digest()


def thumbnail_of(image: Image.Image) -> bytes:
    """Return a JPEG of at most 160 pixels a side."""
    small = image.copy()
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=QUALITY, exif=b"")
    return buffer.getvalue()


def _prepare(model: EmbeddingModel, path: Path, known: bytes | None, thumbnails: bool) -> PreparedFile:
    digest = b""
    try:
        # The digest comes first: a file that changes in between has a digest that is out of date, and is
        # embedded again next time.
        digest = digest_of(read_content(path))
        if digest == known:
            return PreparedFile(path, digest)
        image = model.read(path)
    except (ValueError, OSError) as error:
        return PreparedFile(path, digest, broken=str(error))
    return PreparedFile(path, digest, model.transform(image), thumbnail_of(image) if thumbnails else None)


def _embed(model: EmbeddingModel, pictures: Sequence[PreparedFile]) -> Embedded:
    pixels = [picture.pixels for picture in pictures if picture.pixels is not None]
    size = model.network.embedding_size
    vectors = model.embed(torch.stack(pixels)) if pixels else torch.empty(0, size)
    return Embedded(
        [picture for picture in pictures if picture.pixels is not None],
        vectors.numpy(),
        [picture for picture in pictures if picture.broken],
        len(pictures),
    )
