"""Image files -> batches of vectors, digests and thumbnails; files that are known already are only hashed."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from softwarp.data.decode import digest_of, read_content
from softwarp.index.thumbnail import thumbnail_of
from softwarp.inference import BATCH, EmbeddingModel


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

    def prepare(path: Path) -> PreparedFile:
        return _prepare(model, path, known(path), thumbnails)

    for files, vectors in model.embed_ahead(paths, prepare, batch_size=batch_size):
        yield Embedded(
            [file for file in files if file.pixels is not None],
            vectors.numpy(),
            [file for file in files if file.broken],
            len(files),
        )


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
