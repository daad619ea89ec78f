"""An image of an index, and one that is to be added: for Python, and as the table stores them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

StoredImage = tuple[int, bytes, bytes | None, bytes]  # id, path, label and digest; names as the disk has them


@dataclass(frozen=True)
class IndexedImage:
    """An image of an index. Names that are not UTF-8 are as `os.fsdecode` returns them."""

    id: int
    path: str  # relative to the index's root, with forward slashes; absolute outside of it
    label: str | None  # the name of its class
    digest: str  # a hash of the file's content

    @classmethod
    def of(cls, row: StoredImage) -> "IndexedImage":
        """Return the image that a row of the table stores."""
        number, path, label, digest = row
        return cls(number, os.fsdecode(path), None if label is None else os.fsdecode(label), digest.hex())


@dataclass(frozen=True)
class NewImage:
    """What `append` needs of an image besides its vector; it replaces the item of the same path."""

    path: str
    label: str | None = None
    digest: bytes = b""
    thumbnail: bytes | None = None

    def stored(self, number: int, corrected: Mapping[bytes, bytes]) -> StoredImage:
        """Return it as a row of the table with that id; the label of a path that was corrected stays."""
        path, label = os.fsencode(self.path), None if self.label is None else os.fsencode(self.label)
        return number, path, corrected.get(path, label), self.digest
