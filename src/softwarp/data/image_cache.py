"""Images decoded and resized once, kept in one flat file of bytes.

A cache is two files: `<key>.pixels`, all images [height, width, 3] one after the other, and `<key>.npz`, with
the start, shape and checksum of each, or why it could not be decoded. The key is a hash of the image
files and of the settings. The index is written last: pixels without an index are not a cache. Each use renews
its time; a cache unused for a month is removed when a new one is made.

The file is read, not memory-mapped: a truncated one would end the process with a bus error.
"""

import errno
import hashlib
import json
import os
import re
import time
import warnings
import zipfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchvision.transforms.v2 import functional

from softwarp.data.decode import FORMAT_OF, OF_THE_FILE, open_image, read_image, reads_heic
from softwarp.data.images import INTERPOLATIONS, slimmed
from softwarp.files import atomic_write, cache_folder

HEIC_SUFFIXES = frozenset(suffix for suffix, kind in FORMAT_OF.items() if kind == "HEIF")
FORMAT = 2  # raise it when the files or their pixels change
UNUSED = 30 * 24 * 3600  # seconds after which a cache is removed

CAUSES = {  # why an OSError was raised
    errno.ENOSPC: "no space",
    errno.EDQUOT: "no space",
    errno.EACCES: "no write permission",
    errno.EPERM: "no write permission",
    errno.EROFS: "no write permission",
}
# A cache, or what a killed process left of one.
OURS = re.compile(r"[0-9a-f]{32}\.(npz|pixels)|\.[0-9a-f]{32}\.(npz|pixels)\.\w+")

Value = TypeVar("Value")


class ImageCache:
    """A store of decoded images: what `read` returns is uint8 [3, height, width].

    A broken image raises the ValueError of `read_image`. If pixels are damaged, the image's file is decoded
    instead, and the cache is rebuilt the next time it is opened.
    """

    def __init__(
        self,
        pixels: Path,
        root: Path,
        paths: Sequence[str],
        index: dict[str, NDArray[Any]],
        *,
        shorter_side: int,
        interpolation: str,
    ) -> None:
        self.pixels, self.root, self.paths, self.index = pixels, root, paths, index
        self.shorter_side, self.interpolation = shorter_side, interpolation

    @staticmethod
    def open(
        root: Path,
        paths: Sequence[str],
        *,
        shorter_side: int,
        interpolation: str = "bilinear",
        folder: Path | None = None,
        workers: int | None = None,
        advance: Callable[[], None] | None = None,
    ) -> "ImageCache":
        """Return the cache of these images, built if it is not there.

        Every file is read for its hash, each time. Pixels are those of `test_transform` before its crop, with
        `resize=shorter_side`, except that smaller images are kept as they are.

        Args:
            root: the folder that `paths` start from.
            folder: where caches are; `images` in the user's cache folder if None.
            workers: threads that decode; one per core if None.
            advance: called after each image while the cache is built.
        """
        files = [root / path for path in paths]
        workers = workers or os.cpu_count() or 1
        folder = cache_folder() / "images" if folder is None else folder
        pixels = folder / f"{_key(files, shorter_side, workers, interpolation)}.pixels"
        with suppress(OSError):  # missing, or owned by another user
            os.utime(_index_path(pixels))
        index = _read_index(pixels)
        if index is None:
            _make(
                pixels,
                files,
                partial(_decode, shorter_side=shorter_side, interpolation=interpolation),
                workers,
                advance,
            )
            _remove_unused(folder)
            index = _read_index(pixels)
        if index is None:
            raise OSError(f"{pixels} was damaged or removed right after it was built; try again")
        return ImageCache(pixels, root, paths, index, shorter_side=shorter_side, interpolation=interpolation)

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, item: int) -> str:
        return self.paths[item]

    def read(self, item: int) -> Tensor:
        if cause := str(self.index["causes"][item]):
            raise ValueError(f"{self.root / self.paths[item]}: {cause}")
        image: NDArray[np.uint8] = np.empty((*self.index["shapes"][item], 3), np.uint8)
        whole = False
        with suppress(OSError), self.pixels.open("rb", buffering=0) as file:
            file.seek(self.index["starts"][item])
            whole = file.readinto(image.data.cast("B")) == image.size
        if not whole or checksum(image) != self.index["sums"][item]:
            image = self._decode_again(item)
        return torch.from_numpy(image).permute(2, 0, 1)

    def _decode_again(self, item: int) -> NDArray[np.uint8]:
        path = self.root / self.paths[item]
        warnings.warn(f"{self.pixels} is damaged or gone; decoding image files instead", stacklevel=2)
        with suppress(OSError):
            _index_path(self.pixels).unlink()
        image = _decode(path, shorter_side=self.shorter_side, interpolation=self.interpolation)
        if isinstance(image, str):
            raise ValueError(f"{path}: {image}")
        return image


def checksum(pixels: NDArray[np.uint8]) -> int:
    """Return the sum of all bytes, eight at a time: eight times as fast as a CRC, and it covers every bit.

    >>> checksum(np.array([1, 0, 0, 0, 0, 0, 0, 1, 5], np.uint8)) == 1 + (1 << 56) + 5
    True
    """
    flat = pixels.reshape(-1)
    whole = len(flat) // 8 * 8
    words = flat[:whole].view("<u8").sum(dtype=np.uint64)
    return (int(words) + int(flat[whole:].sum())) % (1 << 64)


def _key(files: Sequence[Path], shorter_side: int, workers: int, interpolation: str = "bilinear") -> str:
    settings: dict[str, Any] = {"format": FORMAT, "shorter_side": shorter_side, "pillow": version("pillow")}
    if interpolation != "bilinear":  # which caches made before do not name
        settings["interpolation"] = interpolation
    if any(path.suffix.lower() in HEIC_SUFFIXES for path in files):
        settings["heic"] = reads_heic()  # once pillow-heif is installed, these files are no longer broken
    whole = hashlib.blake2b(json.dumps(settings).encode(), digest_size=16)
    for digest in _in_order(_digest, files, workers):
        whole.update(digest)
    return whole.hexdigest()


def _digest(path: Path) -> bytes:
    try:
        with open_image(path) as file:
            return hashlib.file_digest(file, "blake2b").digest()
    except ValueError as error:  # a broken image
        cause = str(error).removeprefix(f"{path}: ")
    except OSError as error:
        if error.errno not in OF_THE_FILE:
            raise
        cause = str(error.errno)
    return hashlib.blake2b(f"cannot be read: {cause}".encode(errors="surrogateescape")).digest()


def _make(
    pixels: Path,
    files: Sequence[Path],
    decode: Callable[[Path], NDArray[np.uint8] | str],
    workers: int,
    advance: Callable[[], None] | None,
) -> None:
    try:
        with atomic_write(_index_path(pixels)) as index_file, atomic_write(pixels) as pixel_file:
            images = _in_order(decode, files, workers)
            index = _write_pixels(pixel_file, images, advance)
            np.savez(index_file, **index)  # type: ignore[arg-type]
            index_file.flush()  # a full disk is noticed before either file is in place
    except OSError as error:
        if error.errno not in CAUSES:
            raise
        cure = "choose another folder (SOFTWARP_CACHE) or turn it off (data.cache=false)"
        why = f"{CAUSES[error.errno]} for the image cache; {cure}"
        raise OSError(error.errno, why, str(pixels)) from error


def _remove_unused(folder: Path) -> None:
    for path in sorted(folder.iterdir()):  # an index sorts before its pixels, which stay as long as it does
        with suppress(OSError):  # another process may be removing it, or another user may own it
            used = max(path.stat().st_mtime, path.stat().st_atime)
            stays = path.suffix == ".pixels" and _index_path(path).exists()
            if OURS.fullmatch(path.name) and not stays and time.time() - used > UNUSED:
                path.unlink()


def _write_pixels(
    file: IO[bytes], images: Iterator[NDArray[np.uint8] | str], advance: Callable[[], None] | None
) -> dict[str, NDArray[Any]]:
    """Write the images one after the other; return their index, with the cause for a broken one."""
    rows: list[tuple[tuple[int, int], int, str]] = []
    for image in images:
        if isinstance(image, str):
            rows.append(((0, 0), 0, image))
        else:
            rows.append((image.shape[:2], checksum(image), ""))
            file.write(image.data)
        if advance is not None:
            advance()
    shapes = np.array([shape for shape, _, _ in rows], np.int64).reshape(-1, 2)
    sizes = shapes.prod(1) * 3
    return {
        "starts": sizes.cumsum() - sizes,
        "shapes": shapes,
        "sums": np.array([total for _, total, _ in rows], np.uint64),
        "causes": np.array([cause for _, _, cause in rows], np.str_),
    }


def _decode(path: Path, *, shorter_side: int, interpolation: str) -> NDArray[np.uint8] | str:
    """Return the pixels [height, width, 3], or why there are none."""
    try:
        image = read_image(path, shorter_side=shorter_side)
    except ValueError as error:
        return str(error).removeprefix(f"{path}: ")
    pixels = slimmed(functional.pil_to_tensor(image))
    if min(pixels.shape[-2:]) > shorter_side:
        pixels = functional.resize(pixels, [shorter_side], INTERPOLATIONS[interpolation], antialias=True)
    array: NDArray[np.uint8] = pixels.permute(1, 2, 0).contiguous().numpy()
    return array


def _in_order(function: Callable[[Path], Value], files: Sequence[Path], workers: int) -> Iterator[Value]:
    """Yield the function of each file, from threads that never run far ahead: memory is bounded."""
    pending: deque[Future[Value]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for path in files:
            pending.append(pool.submit(function, path))
            if len(pending) >= 4 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _index_path(pixels: Path) -> Path:
    return pixels.with_suffix(".npz")


def _read_index(pixels: Path) -> dict[str, NDArray[Any]] | None:
    """Return the index of these pixels; None if there is no complete cache."""
    try:
        with _index_path(pixels).open("rb") as file, np.load(file, allow_pickle=False) as archive:
            index = {name: archive[name] for name in ("starts", "shapes", "sums", "causes")}
        whole = pixels.stat().st_size == int(index["shapes"].prod(1).sum()) * 3
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile):
        return None
    return index if whole else None
