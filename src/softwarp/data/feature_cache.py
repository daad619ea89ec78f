"""Vectors of images, kept by the content of their files: what a frozen network says is computed once.

A cache is one file per network and preparation of images, of records that are only appended: the digest
of an image's file, its vector, and a checksum of both. A record that was cut off by a crash, or is damaged,
is as good as none. Each use renews the file's time; a cache unused for a month is removed when a new one is
made, and one that has grown to a gibibyte takes no more.
"""

import hashlib
import os
import re
import time
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from softwarp.data.decode import DIGEST_SIZE
from softwarp.files import cache_folder, locked_file

FORMAT = 1  # raise it when the records change
UNUSED = 30 * 24 * 3600  # seconds after which a cache is removed
LARGEST = 1 << 30  # bytes of a cache
OURS = re.compile(r"[0-9a-f]{32}\.features")


class FeatureCache:
    """Vectors by digest; several processes may read and add at a time.

    >>> import tempfile
    >>> from softwarp.data.decode import digest_of
    >>> cache = FeatureCache("network", 2, folder=Path(tempfile.mkdtemp()))
    >>> cache.add([digest_of(b"a.jpg")], np.ones((1, 2), np.float32))
    >>> cache.find([digest_of(b"a.jpg"), digest_of(b"b.jpg")])
    array([[ 1.,  1.],
           [nan, nan]], dtype=float32)

    Args:
        key: says which network made the vectors, and from which pixels.
        dimensions: of a vector.
        folder: where caches are; `features` in the user's cache folder if None.
    """

    def __init__(self, key: str, dimensions: int, *, folder: Path | None = None) -> None:
        folder = cache_folder() / "features" if folder is None else folder
        name = hashlib.blake2b(f"{FORMAT} {dimensions} {key}".encode(), digest_size=16).hexdigest()
        self.path = folder / f"{name}.features"
        self.record = np.dtype(
            [("digest", "u1", DIGEST_SIZE), ("sum", "<u4"), ("vector", "<f4", (dimensions,))], align=False
        )

        self._rows: dict[bytes, int] = {}
        self._seen: NDArray[np.void] = np.empty(0, self.record)
        self.refresh()

    def find(self, digests: Sequence[bytes]) -> NDArray[np.float32]:
        """Return the vectors [N, D] of these digests; a row of NaN for each that is not there."""
        self.refresh()
        found = np.full((len(digests), *self._seen["vector"].shape[1:]), np.nan, np.float32)
        for place, digest in enumerate(digests):
            vector = self.get(digest)
            if vector is not None:
                found[place] = vector
        return found

    def get(self, digest: bytes) -> NDArray[np.float32] | None:
        """Return a vector if it was there at the last `refresh`, `find` or `add`; any thread may ask."""
        row, records = self._rows.get(digest), self._seen
        if row is None or row >= len(records):
            return None
        vector: NDArray[np.float32] = records["vector"][row]
        return vector if _sum(digest, vector) == records["sum"][row] else None

    def refresh(self) -> None:
        """Take notice of what was added since, also by others."""
        records, seen = self._records(), len(self._seen)
        if len(records) < seen:  # it was removed, and begun again
            self._rows, seen = {}, 0
        self._seen = records
        for row in range(seen, len(records)):
            self._rows[records["digest"][row].tobytes()] = row

    def add(self, digests: Sequence[bytes], vectors: NDArray[np.float32]) -> None:
        """Append vectors; those of NaN, of images that could not be read, are left out."""
        kept = [place for place in range(len(digests)) if not np.isnan(vectors[place]).any()]
        records = np.empty(len(kept), self.record)
        for row, place in enumerate(kept):
            vector = np.ascontiguousarray(vectors[place], "<f4")
            digest = np.frombuffer(digests[place], np.uint8)
            records[row] = (digest, _sum(digests[place], vector), vector)
        if not self.path.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _remove_unused(self.path.parent)
        with locked_file(self.path), self.path.open("r+b") as file:
            end = file.seek(0, os.SEEK_END)
            if end + records.nbytes > LARGEST:
                return
            file.truncate(end - end % self.record.itemsize)  # of a record that was cut off
            file.seek(0, os.SEEK_END)
            file.write(records.tobytes())
            file.flush()
            os.fsync(file.fileno())
        self.refresh()

    def _records(self) -> NDArray[np.void]:
        """All whole records, mapped; they stay there, as records are never removed from a file."""
        with suppress(OSError):
            os.utime(self.path)
            count = self.path.stat().st_size // self.record.itemsize
            if count:
                return np.memmap(self.path, self.record, "r", shape=(count,))
        return np.empty(0, self.record)


def _sum(digest: bytes, vector: NDArray[np.float32]) -> int:
    return zlib.crc32(vector.tobytes(), zlib.crc32(digest))


def _remove_unused(folder: Path) -> None:
    for path in folder.iterdir():
        with suppress(OSError):  # another process may be removing it, or another user may own it
            if OURS.fullmatch(path.name) and time.time() - path.stat().st_mtime > UNUSED:
                path.unlink()
