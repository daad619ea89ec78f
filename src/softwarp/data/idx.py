"""idx files, in which MNIST and its relatives come."""

import gzip
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Return the bytes of an idx file in their shape; if only `path`.gz is there, that is read.

    Raises:
        FileNotFoundError: if neither is there.
        ValueError: if the file is not an idx file of bytes, or is cut short.
    """
    packed = path.with_name(f"{path.name}.gz")
    try:
        content = path.read_bytes() if path.is_file() else gzip.decompress(packed.read_bytes())
    except EOFError:
        raise ValueError(f"{packed} is cut short: fetch it again") from None
    if content[:3] != b"\0\0\x08":
        raise ValueError(f"{path} is not an idx file of bytes")
    sizes = np.frombuffer(content, ">i4", content[3], offset=4)
    pixels = np.frombuffer(content, np.uint8, offset=4 + 4 * len(sizes))
    if pixels.size != sizes.prod():
        raise ValueError(f"{path} is cut short: {pixels.size} of {sizes.prod()} bytes; fetch it again")
    return pixels.reshape(sizes)
