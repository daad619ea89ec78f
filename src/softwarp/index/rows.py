"""The files of an index that hold a row per vector: they only grow, and are mapped, not read."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softwarp.files import open_shared

BLOCK = 65536  # rows that are copied at a time

Rows = NDArray[np.int64]
Vectors = NDArray[np.float32]
Distances = NDArray[np.float64]
Mask = NDArray[np.bool_]


def write_rows(path: Path, start: int, array: NDArray[Any]) -> None:
    """Write rows from that one on, in place of what a failure may have left there."""
    try:
        with path.open("r+b") as file:
            file.seek(start * array.itemsize * int(np.prod(array.shape[1:])))
            file.truncate()
            file.write(array.data if array.size else b"")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(
            f"{path} cannot be written ({error.strerror}); make room, then run the same command again"
        ) from None


def copy_rows(array: NDArray[Any], rows: Rows, path: Path) -> None:
    """Write these rows of an array to a new file."""
    path.write_bytes(b"")
    for start in range(0, len(rows), BLOCK):
        write_rows(path, start, array[rows[start : start + BLOCK]])


def map_rows(path: Path, kind: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return the rows of a file as an array of that kind; the mapping shares the file's lock."""
    size = int(np.prod(shape)) * np.dtype(kind).itemsize
    with open_shared(path) as file:
        there = os.fstat(file.fileno()).st_size
        if there < size:
            raise ValueError(f"{path} is cut off at {there:,} of {size:,} bytes; build the index again")
        return np.memmap(file, kind, "r", shape=shape) if size else np.empty(shape, kind)


def map_whole(path: Path, size: int) -> NDArray[np.uint8] | None:
    """Return the bytes of a file, mapped so that it stays; None if it is missing or shorter than `size`."""
    try:
        with open_shared(path) as file:
            whole = os.fstat(file.fileno()).st_size >= size
            return np.memmap(file, np.uint8, "r") if whole else None
    except FileNotFoundError:
        return None
