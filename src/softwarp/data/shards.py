"""Image files packed into tar files that stream well, in the layout of webdataset, and read back by position.

    pack.json          how many images and shards, the names of the classes
    index.npz          shard, offset, size, checksum, label and split of each image; written last
    shard-000000.tar   000000000.jpg (the file as it was), 000000000.cls (its label), 000000001.png, ...

Images are shuffled once, when they are packed, so that a shard holds a mixture of classes. Any tool that
reads webdataset can read the shards; the index is ours, and makes every image a single read at a known
place.
"""

import io
import json
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from softwarp.data.readers import SPLITS, ImageTable
from softwarp.files import atomic_write, write_json

INDEX, ABOUT = "index.npz", "pack.json"
SHARD_SIZE = 256 << 20  # bytes: large enough to stream, small enough to shuffle several
COLUMNS = {
    "shard": np.int32,
    "offset": np.int64,
    "size": np.int64,
    "crc32": np.uint32,
    "label": np.int32,
    "split": np.int8,  # its place in SPLITS; -1 if there are no splits
    "suffix": np.int8,  # its place in the list in pack.json
}
SEED = 0  # shuffles the images
HANDLES = 64  # shards that are kept open


class Shards:
    """The images of packed shards, by position: `read` returns the bytes of an image file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        about, columns = _read_index(root)
        self.classes: list[str] = about["classes"]
        self.suffixes: list[str] = about["suffixes"]
        self.columns = columns
        self._opened = lru_cache(HANDLES)(_Opened)

    def __len__(self) -> int:
        return len(self.columns["shard"])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_opened"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _opened=lru_cache(HANDLES)(_Opened))

    def name(self, position: int) -> str:
        suffix = self.suffixes[self.columns["suffix"][position]]
        return f"{shard_name(self.columns['shard'][position])}/{position:09d}{suffix}"

    def read(self, position: int) -> bytes:
        """Return an image file; a ValueError names it if it is damaged."""
        offset, size, checksum = (int(self.columns[name][position]) for name in ("offset", "size", "crc32"))
        path = self.root / shard_name(self.columns["shard"][position])
        try:
            file = self._opened(path)
            content = os.pread(file.handle, size, offset)
        except OSError as error:
            raise ValueError(f"{self.root}: {self.name(position)}: {error.strerror}; pack again") from None
        if len(content) != size or zlib.crc32(content) != checksum:
            raise ValueError(f"{self.root}: {self.name(position)} is damaged; copy the shard or pack again")
        return content


class _Opened:
    """An open file. It closes when nobody holds it any more: another thread may still be reading it."""

    def __init__(self, path: Path) -> None:
        self.handle = os.open(path, os.O_RDONLY)

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            os.close(self.handle)


def shard_name(number: int) -> str:
    return f"shard-{number:06d}.tar"


def read_shards(root: Path) -> ImageTable:
    """Return the images that `write_shards` packed, with the splits that they had."""
    pack = Shards(root)
    splits = None
    if (pack.columns["split"] >= 0).all():
        splits = tuple(SPLITS[number] for number in pack.columns["split"].tolist())
    paths = tuple(pack.name(position) for position in range(len(pack)))
    labels = pack.columns["label"].astype(np.int64)
    return ImageTable(
        root, paths, labels, tuple(pack.classes), splits, pack=pack, shards=pack.columns["shard"]
    )


def check_free(root: Path) -> None:
    """Refuse a folder that holds a finished pack, or shards of another tool."""
    if (root / INDEX).exists():
        raise ValueError(f"{root} holds packed images already; choose another folder")
    left = sorted(root.glob("shard-*.tar"))
    if left and not (root / ABOUT).exists():
        raise ValueError(f"{left[0]} may come from another tool: there is no {ABOUT}; choose another folder")


def write_shards(
    root: Path,
    table: ImageTable,
    positions: Sequence[int],
    splits: Sequence[str],
    *,
    shard_size: int = SHARD_SIZE,
    advance: Callable[[], None] | None = None,
) -> dict[str, int]:
    """Pack the images at these positions of a table into `root`; return how many images, bytes and shards.

    Images are shuffled. What a killed attempt left is replaced; a finished pack is refused.

    Args:
        splits: one of SPLITS per image of the table.
    """
    check_free(root)
    for each in (*root.glob("shard-*.tar"), *root.glob(".shard-*.tar.*")):
        each.unlink()
    write_json(root / ABOUT, {"schema": 1})  # the shards are ours
    found: dict[str, list[int]] = {name: [] for name in COLUMNS}
    suffixes: dict[str, int] = {}
    shard = position = 0
    order = np.random.default_rng(SEED).permutation(positions).tolist()
    while position < len(order):
        with atomic_write(root / shard_name(shard)) as file, tarfile.open(fileobj=file, mode="w") as tar:
            while position < len(order) and file.tell() < shard_size:
                item = order[position]
                content, label = table.content(item), int(table.labels[item])
                suffix = PurePosixPath(table.paths[item]).suffix.lower() or ".jpg"
                row = {
                    "shard": shard,
                    "offset": _add(tar, file, f"{position:09d}{suffix}", content),
                    "size": len(content),
                    "crc32": zlib.crc32(content),
                    "label": label,
                    "split": SPLITS.index(splits[item]),
                    "suffix": suffixes.setdefault(suffix, len(suffixes)),
                }
                for name, value in row.items():
                    found[name].append(value)
                _add(tar, file, f"{position:09d}.cls", str(label).encode())
                position += 1
                if advance is not None:
                    advance()
        shard += 1
    about = {"schema": 1, "images": len(order), "shards": shard, "seed": SEED, "suffixes": list(suffixes)}
    write_json(root / ABOUT, about | {"classes": list(table.names)})
    columns = {name: np.array(found[name], kind) for name, kind in COLUMNS.items()}
    with atomic_write(root / INDEX) as file:
        np.savez(file, **columns)  # type: ignore[arg-type]
    return {"images": len(order), "bytes": int(columns["size"].sum()), "shards": shard}


def _add(tar: tarfile.TarFile, file: IO[bytes], name: str, content: bytes) -> int:
    """Add a file to the tar; return where its content begins."""
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))
    return file.tell() - -(-len(content) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def _read_index(root: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    cure = "pack the images again"
    for name in (INDEX, ABOUT):
        if not (root / name).is_file():
            raise FileNotFoundError(
                f"{root / name} is missing: {root} was not packed, or packing did not finish; "
                "run `softwarp faces pack`, or train on class folders with data.name=folder"
            )
    try:
        about = json.loads((root / ABOUT).read_bytes())
        with np.load(io.BytesIO((root / INDEX).read_bytes()), allow_pickle=False) as found:
            columns = {name: found[name] for name in COLUMNS}
        count, classes = about["images"], len(about["classes"])
        label, suffix = columns["label"], columns["suffix"]
        fits = (
            all(columns[name].shape == (count,) and columns[name].dtype == COLUMNS[name] for name in COLUMNS)
            and count > 0
            and 0 <= int(label.min()) <= int(label.max()) < classes
            and 0 <= int(suffix.min()) <= int(suffix.max()) < len(about["suffixes"])
            and int(columns["split"].max()) < len(SPLITS)
            and min(int(columns[name].min()) for name in ("shard", "offset", "size")) >= 0
        )
    except (ValueError, KeyError, TypeError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{root}: {INDEX} or {ABOUT} is damaged ({error}); {cure}") from None
    if not fits:
        raise ValueError(f"{root}: {INDEX} and {ABOUT} do not belong together; {cure}")
    return about, columns
