"""A file -> an upright RGB image; errors name the file and the cause."""

import errno
import io
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

# System errors caused by the file itself: missing, not allowed, a folder, a link to itself, bad sectors.
OF_THE_FILE = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EACCES,
    errno.EPERM,
    errno.EISDIR,
    errno.ELOOP,
    errno.EIO,
)
ORIENTATION = 0x0112  # the EXIF tag
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def read_image(path: Path, *, shorter_side: int | None = None) -> Image.Image:
    """Return the image as RGB, upright by its EXIF orientation, transparency laid on white.

    Sixteen-bit grey keeps its high byte, as Pillow does for sixteen-bit colour; floats must be in 0..1 and
    are scaled to 0..255. A file that is missing, unreadable or cannot be fully decoded is a ValueError that
    names path and cause; other system errors pass through.

    Args:
        path: a file in any format that Pillow reads; of several frames, the first is used.
        shorter_side: decode a JPEG at 1/2, 1/4 or 1/8 as long as its shorter side keeps this length: faster,
            but a small random crop is then enlarged from fewer pixels. None decodes at full size.
    """
    return _decoded(path, str(path), shorter_side)


def decode_image(content: bytes, name: str, *, shorter_side: int | None = None) -> Image.Image:
    """Return the image that these bytes are a file of, as `read_image` does; errors say `name`."""
    return _decoded(io.BytesIO(content), name, shorter_side)


def _decoded(source: Path | IO[bytes], name: str, shorter_side: int | None) -> Image.Image:
    try:
        with Image.open(source) as image:
            if shorter_side is not None:
                image.draft(None, (shorter_side, shorter_side))  # a square, so rotation does not matter
            image.load()
            return as_rgb(image)
    except MemoryError:
        raise
    except Exception as error:  # decoders raise anything: OSError, SyntaxError, struct.error, ...
        if isinstance(error, OSError) and error.errno not in (None, *OF_THE_FILE):
            raise
        raise ValueError(f"{name}: {_cause(source, error)}") from error


def as_rgb(image: Image.Image) -> Image.Image:
    """Return an open image as RGB, upright by its EXIF orientation, transparency laid on white."""
    return _upright(_to_rgb(image), image)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # sixteen-bit grey; Pillow's own conversion clips at 255
        grey = np.asarray(image).clip(0, 65535) >> 8
        return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    if image.mode == "F":  # Pillow's own conversion clips at 255 and turns 0..1 nearly black
        return _from_floats(np.asarray(image)).convert("RGB")
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def _from_floats(pixels: NDArray[np.float32]) -> Image.Image:
    if not bool(((pixels >= 0) & (pixels <= 1)).all()):
        raise ValueError(
            f"float pixels from {pixels.min():g} to {pixels.max():g}; scale them to 0..1, or save bytes"
        )
    return Image.fromarray((pixels * 255).round().astype(np.uint8))


def _upright(image: Image.Image, source: Image.Image) -> Image.Image:
    try:
        turn = UPRIGHT.get(source.getexif().get(ORIENTATION, 1))
    except Exception:  # damaged EXIF raises anything, but the pixels are good
        return image
    return image if turn is None else image.transpose(turn)


def _cause(source: Path | IO[bytes], error: Exception) -> str:
    """Return why decoding failed, without the path: a cache keeps it, and files move."""
    if isinstance(error, UnidentifiedImageError):
        size = source.stat().st_size if isinstance(source, Path) else source.seek(0, io.SEEK_END)
        return "not an image of a known kind" if size else "the file is empty"
    if isinstance(error, OSError) and error.strerror:
        return "the file is missing" if error.errno == errno.ENOENT else error.strerror
    return str(error) or type(error).__name__
