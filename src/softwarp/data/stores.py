"""Where an item's pixels come from: files, packs, or memory. Caches (image_cache.py) are stores too."""

import typing
from collections.abc import Sequence
from pathlib import Path

from PIL import Image
from torch import Tensor

from softwarp.data.decode import decode_image, read_content, read_image
from softwarp.data.readers import Pack


class Store(typing.Protocol):
    """Images by item. For a broken one, `read` raises a ValueError that names the item and the cause."""

    def __len__(self) -> int: ...
    def read(self, item: int) -> Image.Image | Tensor: ...  # a tensor is uint8 [channels, height, width]
    def name(self, item: int) -> str: ...


@typing.runtime_checkable
class ContentStore(Store, typing.Protocol):
    """A store whose images are files, or parts of larger ones: all that an item's pixels depend on."""

    def content(self, item: int) -> bytes: ...
    def decode(self, item: int, content: bytes) -> Image.Image: ...


class FileStore:
    """Image files, decoded at every read.

    Args:
        root: the folder that `paths` start from.
        shorter_side: as in `read_image`.
    """

    def __init__(self, root: Path, paths: Sequence[str], *, shorter_side: int | None) -> None:
        self.root, self.paths, self.shorter_side = root, paths, shorter_side

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, item: int) -> Image.Image:
        return read_image(self.root / self.paths[item], shorter_side=self.shorter_side)

    def content(self, item: int) -> bytes:
        return read_content(self.root / self.paths[item])

    def decode(self, item: int, content: bytes) -> Image.Image:
        return decode_image(content, str(self.root / self.paths[item]), shorter_side=self.shorter_side)

    def name(self, item: int) -> str:
        return self.paths[item]


class PackStore:
    """Images out of few large files, decoded at every read.

    Args:
        positions: of the items in the pack.
        shorter_side: as in `read_image`.
    """

    def __init__(self, pack: Pack, positions: Sequence[int], *, shorter_side: int | None) -> None:
        self.pack, self.positions, self.shorter_side = pack, positions, shorter_side

    def __len__(self) -> int:
        return len(self.positions)

    def read(self, item: int) -> Image.Image:
        return self.decode(item, self.content(item))

    def content(self, item: int) -> bytes:
        return self.pack.read(self.positions[item])

    def decode(self, item: int, content: bytes) -> Image.Image:
        return decode_image(content, self.name(item), shorter_side=self.shorter_side)

    def name(self, item: int) -> str:
        return self.pack.name(self.positions[item])


class MemoryStore:
    """Images [N, channels, height, width] that are already in memory."""

    def __init__(self, images: Tensor, names: Sequence[str]) -> None:
        if len(images) != len(names):
            raise ValueError(f"{len(images)} images but {len(names)} names; give one name per image")
        self.images, self.names = images, names

    def __len__(self) -> int:
        return len(self.names)

    def read(self, item: int) -> Tensor:
        return self.images[item]

    def name(self, item: int) -> str:
        return self.names[item]


def causes(store: Store, items: Sequence[int]) -> str:
    """Return why these images cannot be read; each names its file."""
    found = []
    for item in items:
        try:
            store.read(item)
        except ValueError as error:
            found.append(str(error))
    return "; ".join(found)
