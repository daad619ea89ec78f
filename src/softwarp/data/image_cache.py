"""Images decoded and resized once, kept in one flat file of bytes that is mapped into memory.

A cache is two files: `<key>.pixels`, every image [height, width, 3] after the other, and `<key>.npz`, where
each starts, its shape, and why it could not be decoded if so. The key is a hash of the images' files and of
the settings. The index takes its place last: pixels without an index are no cache. Each use renews its time;
what nobody has used for a month goes when a new cache is made.
"""

import errno
import hashlib
import json
import os
import re
import time
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

from softwarp.data.decode import read_image
from softwarp.data.images import slimmed
from softwarp.files import atomic_write, cache_folder

FORMAT = 1  # count up when the files or their pixels change
UNUSED = 30 * 24 * 3600  # seconds after which a cache goes

CAUSES = {  # of an OSError
    errno.ENOSPC: "no space",
    errno.EDQUOT: "no space",
    errno.EACCES: "no right to write",
    errno.EPERM: "no right to write",
    errno.EROFS: "no right to write",
}
OURS = re.compile(
    r"[0-9a-f]{32}\.(npz|pixels)|\.[0-9a-f]{32}\.(npz|pixels)\.\w+"
)  # or what a killed process left

Value = TypeVar("Value")


class ImageCache:
    """A store of decoded images: what `read` returns is uint8 [3, height, width] in the file's own memory.

    Do not write into it. A broken image raises the ValueError of `read_image`. A cache can be pickled, and
    maps its file at the first use in each process.
    """

    def __init__(
        self, pixels: Path, root: Path, paths: Sequence[str], index: dict[str, NDArray[Any]]
    ) -> None:
        self.pixels, self.root, self.paths, self.index = pixels, root, paths, index
        self._map: NDArray[np.uint8] | None = None

    @staticmethod
    def open(
        root: Path,
        paths: Sequence[str],
        *,
        shorter_side: int,
        folder: Path | None = None,
        workers: int | None = None,
        advance: Callable[[], None] | None = None,
    ) -> "ImageCache":
        """Return the cache of these images, made if it is not there.

        Every file is read for its hash, each time. Pixels are those that `test_transform` makes before its
        crop, had it `resize=shorter_side`; only that smaller images are kept as they are.

        Args:
            root: the folder that `paths` start from.
            folder: where caches are; `images` in the user's cache folder if None.
            workers: threads that decode; one for each core if None.
            advance: called after each image while the cache is made.
        """
        files = [root / path for path in paths]
        workers = workers or os.cpu_count() or 1
        folder = cache_folder() / "images" if folder is None else folder
        pixels = folder / f"{_key(files, shorter_side, workers)}.pixels"
        with suppress(OSError):  # not there, or others own it
            os.utime(_index_path(pixels))
        index = _read_index(pixels)
        if index is None:
            _make(pixels, files, shorter_side, workers, advance)
            _remove_unused(folder)
            index = _read_index(pixels)
        if index is None:
            raise OSError(f"{pixels} was damaged or removed as soon as it was made; try again")
        return ImageCache(pixels, root, paths, index)

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, item: int) -> str:
        return self.paths[item]

    def read(self, item: int) -> Tensor:
        if cause := str(self.index["causes"][item]):
            raise ValueError(f"{self.root / self.paths[item]}: {cause}")
        if self._map is None:
            # Copy on write: torch warns of memory it must not write to, and the file stays as it is.
            self._map = np.memmap(self.pixels, np.uint8, mode="c")
        height, width = self.index["shapes"][item]
        start = self.index["starts"][item]
        image = self._map[start : start + height * width * 3].reshape(height, width, 3)
        return torch.from_numpy(image).permute(2, 0, 1)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_map": None}


def _key(files: Sequence[Path], shorter_side: int, workers: int) -> str:
    settings = {"format": FORMAT, "shorter_side": shorter_side, "pillow": version("pillow")}
    whole = hashlib.blake2b(json.dumps(settings).encode(), digest_size=16)
    for digest in _in_order(_digest, files, workers):
        whole.update(digest)
    return whole.hexdigest()


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").digest()


def _make(
    pixels: Path, files: Sequence[Path], shorter_side: int, workers: int, advance: Callable[[], None] | None
) -> None:
    try:
        with atomic_write(_index_path(pixels)) as index_file, atomic_write(pixels) as pixel_file:
            images = _in_order(partial(_decode, shorter_side=shorter_side), files, workers)
            index = _write_pixels(pixel_file, images, advance)
            np.savez(index_file, starts=index["starts"], shapes=index["shapes"], causes=index["causes"])
            index_file.flush()  # so that a full disk is noticed before either takes its place
    except OSError as error:
        if error.errno not in CAUSES:
            raise
        cause, cure = (
            CAUSES[error.errno],
            "choose another folder (SOFTWARP_CACHE) or do without (data.cache=false)",
        )
        raise OSError(error.errno, f"{cause} for the image cache; {cure}", str(pixels)) from error


def _remove_unused(folder: Path) -> None:
    for path in sorted(folder.iterdir()):  # an index comes before its pixels, which stay as long as it does
        with suppress(OSError):  # another process may be at it, or may own it
            used = max(path.stat().st_mtime, path.stat().st_atime)
            stays = path.suffix == ".pixels" and _index_path(path).exists()
            if OURS.fullmatch(path.name) and not stays and time.time() - used > UNUSED:
                path.unlink()


def _write_pixels(
    file: IO[bytes], images: Iterator[NDArray[np.uint8] | str], advance: Callable[[], None] | None
) -> dict[str, NDArray[Any]]:
    """Return the index of the images, written one after the other; a broken one is its cause."""
    shapes: list[tuple[int, int]] = []
    causes: list[str] = []
    for image in images:
        if isinstance(image, str):
            causes.append(image)
            shapes.append((0, 0))
        else:
            causes.append("")
            shapes.append(image.shape[:2])
            file.write(image.data)
        if advance is not None:
            advance()
    table = np.array(shapes, np.int64).reshape(-1, 2)
    sizes = table.prod(1) * 3
    return {"starts": sizes.cumsum() - sizes, "shapes": table, "causes": np.array(causes, np.str_)}


def _decode(path: Path, *, shorter_side: int) -> NDArray[np.uint8] | str:
    """Return the pixels [height, width, 3], or why there are none."""
    try:
        image = read_image(path, shorter_side=shorter_side)
    except ValueError as error:
        return str(error).removeprefix(f"{path}: ")
    pixels = slimmed(functional.pil_to_tensor(image))
    if min(pixels.shape[-2:]) > shorter_side:
        pixels = functional.resize(pixels, [shorter_side], antialias=True)
    array: NDArray[np.uint8] = pixels.permute(1, 2, 0).contiguous().numpy()
    return array


def _in_order(function: Callable[[Path], Value], files: Sequence[Path], workers: int) -> Iterator[Value]:
    """Yield the function of each file, computed by threads that never run far ahead: memory is bounded."""
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
    """Return the index of these pixels; None if there is no whole cache."""
    try:
        with _index_path(pixels).open("rb") as file, np.load(file, allow_pickle=False) as archive:
            index = {name: archive[name] for name in ("starts", "shapes", "causes")}
        whole = pixels.stat().st_size == int(index["shapes"].prod(1).sum()) * 3
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile):
        return None
    return index if whole else None
