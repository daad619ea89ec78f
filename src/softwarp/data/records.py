"""insightface's face records: `train.rec` and `train.idx`, read at random places without mxnet.

A record is one or more parts, each `magic, kind << 29 | length` (two little-endian uint32), then `length`
bytes, padded to a multiple of four. Kind 0 is a whole record; 1, 2 and 3 are the first, a middle and the
last part of one whose content held the magic number, which was cut out there. The content is a header `flag,
label, id, id2` (`IfQQ`), `flag` more labels (float32) if flag is not 0, then the image file. Lines of the
index are `key<tab>offset`. If record 0 has a flag, it is not an image: keys 1 to its first label, exclusive,
are.

Every read names its place in the file itself (`pread`), so forked workers can share the handle. The file is
not memory-mapped: a truncated one would end the process with a bus error.
"""

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softwarp.data.readers import ImageTable

MAGIC = 0xCED7230A
LENGTH_BITS = 29
LARGEST_LABEL = 1 << 24  # float32 holds all whole numbers up to here
HEADER = struct.Struct("<IfQQ")
PART = struct.Struct("<II")


class RecordFile:
    """The images of a record file, by position: `read` returns the bytes of an image file.

    Args:
        path: the `.rec` file; its index lies beside it as `.idx`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        keys, offsets = _read_index(path)
        self._open()
        self.size = os.fstat(self._handle).st_size
        self.keys, self.offsets = keys, offsets
        flag, last = self._header(0) if keys[0] == 0 else (0, 0.0)
        kept = (keys >= 1) & (keys < last) if flag else np.ones(len(keys), np.bool_)
        if not kept.any():
            raise ValueError(f"{path} lists no images; copy it and its index again")
        if flag and kept.sum() != last - 1:
            index = path.with_suffix(".idx")
            raise ValueError(f"{index} lists {kept.sum()} of {last - 1:.0f} images; copy it again")
        self.keys, self.offsets = keys[kept], offsets[kept]

    def __len__(self) -> int:
        return len(self.keys)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_handle"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            os.close(self._handle)

    def name(self, position: int) -> str:
        return f"{self.path.name}/{self.keys[position]}"

    def read(self, position: int) -> bytes:
        """Return the image file in a record; a ValueError names the record if it is damaged."""
        flag, _ = self._header(position)
        content, start = self._content(position), HEADER.size + 4 * flag
        if start > len(content):
            raise self._damaged(position, f"its header promises {flag} labels in {len(content)} bytes")
        return content[start:]

    def labels(self) -> NDArray[np.int64]:
        """Return the class of each image: the first label of its record."""
        found = np.empty(len(self), np.int64)
        for position in range(len(self)):
            _, label = self._header(position)
            if not (0 <= label < LARGEST_LABEL and label == int(label)):
                raise self._damaged(position, f"its label is {label}, no number of a class")
            found[position] = int(label)
        return found

    def _open(self) -> None:
        self._handle = os.open(self.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))

    def _header(self, position: int) -> tuple[int, float]:
        """Return the flag and the first label of a record, without reading its image: records are many."""
        start = int(self.offsets[position])
        kind, length = self._part(position, start)
        content = self._bytes(position, start + PART.size, min(length, HEADER.size + 4))
        if kind != 0 and length < HEADER.size + 4:  # the magic number lies within the header
            content = self._content(position)
        if len(content) < HEADER.size:
            raise self._damaged(position, f"{len(content)} bytes hold no header")
        flag, label, _, _ = HEADER.unpack_from(content)
        if flag and len(content) < HEADER.size + 4:
            raise self._damaged(position, f"its header promises {flag} labels, and none follows")
        return flag, struct.unpack_from("<f", content, HEADER.size)[0] if flag else label

    def _content(self, position: int) -> bytes:
        start, parts = int(self.offsets[position]), list[bytes]()
        while True:
            kind, length = self._part(position, start)
            if kind > 3 or (kind in (0, 1)) == bool(parts):
                raise self._damaged(position, f"a part of kind {kind} at byte {start} is out of place")
            parts.append(self._bytes(position, start + PART.size, length))
            if kind in (0, 3):
                return struct.pack("<I", MAGIC).join(parts)
            start += PART.size + (length + 3) // 4 * 4

    def _part(self, position: int, start: int) -> tuple[int, int]:
        magic, word = PART.unpack(self._bytes(position, start, PART.size))
        if magic != MAGIC:
            raise self._damaged(position, f"no record begins at byte {start}")
        return word >> LENGTH_BITS, word & (1 << LENGTH_BITS) - 1

    def _bytes(self, position: int, start: int, length: int) -> bytes:
        if start + length > self.size:
            raise self._damaged(position, f"it ends beyond the file, which has {self.size} bytes")
        content = os.pread(self._handle, length, start)
        if len(content) < length:
            raise self._damaged(position, "the file became shorter")
        return content

    def _damaged(self, position: int, why: str) -> ValueError:
        return ValueError(f"{self.path}: record {self.keys[position]} is damaged: {why}; copy the file again")


def _read_index(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return keys and offsets in the order of keys."""
    index = path.with_suffix(".idx")
    for file in (path, index):
        if not file.is_file():
            raise FileNotFoundError(f"{file} is missing; records need {path.name} and {index.name} together")
    rows = []
    for number, line in enumerate(index.read_bytes().split(b"\n"), start=1):
        words = line.split()
        if words:
            if len(words) != 2 or not all(word.isdigit() and len(word) < 19 for word in words):
                raise ValueError(f"{index}, line {number}: expected a key and an offset; copy it again")
            rows.append((int(words[0]), int(words[1])))
    if not rows:
        raise ValueError(f"{index} is empty; copy it again")
    table = np.array(sorted(rows), np.int64)
    twice = np.flatnonzero(np.diff(table[:, 0]) == 0)
    if len(twice):
        raise ValueError(f"{index} lists record {table[twice[0], 0]} twice; copy it again")
    return table[:, 0], table[:, 1]


def read_records(root: Path) -> ImageTable:
    """Return the faces of a folder with `train.rec`, `train.idx` and, to check the classes, `property`."""
    path = root / "train.rec" if root.is_dir() else root
    records = RecordFile(path)
    classes, numbers = np.unique(records.labels(), return_inverse=True)
    known = path.parent / "property"
    if known.is_file():
        words = known.read_text(errors="replace").split(",")
        promised = int(words[0]) if words[0].strip().isdigit() else 0
        if classes[-1] >= promised:
            raise ValueError(f"{known} promises {promised} people, but {path} has number {classes[-1]}")
    names = tuple(str(label) for label in classes.tolist())
    paths = tuple(records.name(position) for position in range(len(records)))
    return ImageTable(path.parent, paths, numbers, names, None, pack=records)
