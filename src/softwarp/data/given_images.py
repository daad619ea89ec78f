"""What `load(run).embed` takes: files, bytes of files, PIL images, NumPy arrays; in one list, if you like."""

from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from softwarp.data.decode import as_rgb, decode_image, read_image

Picture = Path | str | bytes | bytearray | memoryview | Image.Image | NDArray[Any]
CHANNELS = (1, 3, 4)  # of arrays: grey, RGB, RGBA


class GivenImages:
    """Pictures as a store; several threads may read from it."""

    def __init__(self, pictures: Sequence[Picture], *, shorter_side: int, grey: bool) -> None:
        self.pictures, self.shorter_side, self.grey = pictures, shorter_side, grey
        self._loading = Lock()

    def __len__(self) -> int:
        return len(self.pictures)

    def read(self, item: int) -> Image.Image:
        image = self._read(item)
        return image.convert("L") if self.grey else image

    def _read(self, item: int) -> Image.Image:
        picture = self.pictures[item]
        if isinstance(picture, Image.Image):
            try:
                with self._loading:  # the same object may be there twice, and read by two threads
                    picture.load()
                return as_rgb(picture)
            except OSError as error:  # the file that it was opened from cannot be read
                raise ValueError(str(error)) from None
        if isinstance(picture, np.ndarray):
            return as_rgb(Image.fromarray(picture.squeeze(2) if picture.shape[2:] == (1,) else picture))
        if isinstance(picture, bytes | bytearray | memoryview):
            return decode_image(bytes(picture), self.name(item), shorter_side=self.shorter_side)
        try:
            return read_image(Path(picture), shorter_side=self.shorter_side)
        except OSError as error:  # missing, a folder, not readable
            raise ValueError(str(error)) from None

    def name(self, item: int) -> str:
        picture = self.pictures[item]
        return str(picture) if isinstance(picture, Path | str) else f"image {item}"


def listed(images: Picture | Sequence[Picture | Tensor]) -> list[Picture | Tensor]:
    """Return images as a list, each checked; an array [N, H, W, 3] holds N of them.

    >>> len(listed(np.zeros((5, 8, 8, 3), np.uint8))), len(listed("owl.jpg"))
    (5, 1)
    """
    if isinstance(images, np.ndarray):
        given: list[Picture | Tensor] = list(images) if images.ndim == 4 else [images]
    elif isinstance(images, Path | str | bytes | bytearray | memoryview | Image.Image):
        given = [images]
    else:
        given = list(images)
    for place, each in enumerate(given):
        _check(each, place)
    return given


def check_tensor(image: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return a tensor that stands in a list; it is used as it is, so it must have the shape of an input."""
    if image.dtype != torch.uint8 or tuple(image.shape) != shape:
        raise ValueError(
            f"a tensor in a list must be bytes (uint8) of shape {list(shape)}, not {image.dtype} of shape "
            f"{list(image.shape)}; give an array [H, W, 3] or a PIL image, which is resized"
        )
    return image


def _check(image: Any, place: int) -> None:
    if isinstance(image, np.ndarray):
        _check_array(image, place)
    elif not isinstance(image, Path | str | bytes | bytearray | memoryview | Image.Image | Tensor):
        raise ValueError(
            f"image {place} is a {type(image).__name__}; give a path, the bytes of a file, a PIL image, "
            "a NumPy array [H, W, 3] or a tensor"
        )


def _check_array(image: NDArray[Any], place: int) -> None:
    """Raise a ValueError that says how to turn an array into bytes [H, W, 3], unless it is that."""
    shape = list(image.shape)
    if image.dtype != np.uint8:
        scaled = "(255 * image).round()" if image.dtype.kind == "f" else "image"
        hint = "image >> 8" if image.dtype == np.uint16 else f"{scaled}.astype(numpy.uint8)"
        raise ValueError(
            f"image {place} is an array of {image.dtype}; give bytes 0..255 (uint8): {hint}, if it holds "
            + {"f": "0..1", "b": "0 and 1"}.get(image.dtype.kind, "whole numbers of that range")
        )
    if image.ndim == 3 and image.shape[2] not in CHANNELS and image.shape[0] in CHANNELS:
        raise ValueError(
            f"image {place} has shape {shape}, channels first; give [H, W, channels]: "
            "numpy.moveaxis(image, 0, -1)"
        )
    if image.ndim not in (2, 3) or 0 in shape or (image.ndim == 3 and image.shape[2] not in CHANNELS):
        raise ValueError(f"image {place} has shape {shape}; give [H, W], [H, W, 3] or [H, W, 4]")
