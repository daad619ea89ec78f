"""A file -> an upright RGB image; errors name the file and the cause."""

import errno
import hashlib
import io
import os
import stat
from functools import cache
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

# The images that are taken from folders and uploads: suffix in lower case -> Pillow's name of the format.
FORMAT_OF = {
    ".avif": "AVIF",
    ".bmp": "BMP",
    ".gif": "GIF",
    ".heic": "HEIF",
    ".heif": "HEIF",
    ".jfif": "JPEG",
    ".jpeg": "JPEG",
    ".jpg": "JPEG",
    ".pgm": "PPM",
    ".png": "PNG",
    ".ppm": "PPM",
    ".tif": "TIFF",
    ".tiff": "TIFF",
    ".webp": "WEBP",
}
SUFFIXES = frozenset(FORMAT_OF)
DIGEST_SIZE = 16  # bytes
LARGEST_FILE = 1 << 30  # bytes; whatever Pillow agrees to decode is smaller, even uncompressed
HEIC = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")  # brands in a file's head
NO_HEIC = "a HEIC image; to read it: pip install 'softwarp[heic]'"
# System errors caused by the file itself: missing, not allowed, a folder, a link to itself, bad sectors.
OF_THE_FILE = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EACCES,
    errno.EPERM,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
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


def open_image(path: Path) -> io.BufferedReader:
    """Return an image file, opened for reading: the one place that does so.

    A FIFO, a socket or a device, which could be waited for or read for ever, is a ValueError that names path
    and cause. So are a file that is larger than any image, a folder, and one that is missing or unreadable;
    other system errors pass through.
    """
    try:
        _check_kind(path, path.stat())  # before it is opened, which alone may set a device to work
        file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115  # Path.open takes no opener
    except OSError as error:
        if error.errno not in OF_THE_FILE:
            raise
        raise ValueError(f"{path}: {_cause(error)}") from error
    try:
        _check_kind(path, os.fstat(file.fileno()))  # it may be another file by now
    except ValueError:
        file.close()
        raise
    return file


def digest_of(content: bytes) -> bytes:
    """Return 16 bytes that differ if the content does."""
    return hashlib.blake2b(content, digest_size=DIGEST_SIZE).digest()


def read_content(path: Path) -> bytes:
    """Return the bytes of an image file; errors are those of `open_image`."""
    with open_image(path) as file:
        return file.read()


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
    with open_image(path) as file:
        return _decoded(file, str(path), shorter_side)


def decode_image(content: bytes, name: str, *, shorter_side: int | None = None) -> Image.Image:
    """Return the image that these bytes are a file of, as `read_image` does; errors say `name`."""
    return _decoded(io.BytesIO(content), name, shorter_side)


def image_size(source: IO[bytes]) -> tuple[int, int]:
    """Return width and height by the head of a file alone; errors are Pillow's."""
    make_ready(source)
    with Image.open(source) as image:
        return image.size


def make_ready(source: IO[bytes]) -> None:
    """Let Pillow read HEIC if that is what a file is, and if pillow-heif is there."""
    if is_heic(source):
        reads_heic()


def is_heic(source: IO[bytes]) -> bool:
    """Return whether a file begins like HEIC."""
    head = source.read(12)
    source.seek(0)
    return head[4:8] == b"ftyp" and head[8:12] in HEIC


@cache
def reads_heic() -> bool:
    """Return whether HEIC can be read, by the package pillow-heif, which is loaded when first needed."""
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        return False
    register_heif_opener()
    return True


def _check_kind(path: Path, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path}: not a regular file, but a pipe, socket or device; remove it")
    if status.st_size > LARGEST_FILE:
        raise ValueError(
            f"{path}: {status.st_size / 2**30:,.1f} GiB; image files may have {LARGEST_FILE >> 30} GiB"
        )


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; one that turns out to be a pipe is not waited for."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _decoded(source: IO[bytes], name: str, shorter_side: int | None) -> Image.Image:
    try:
        make_ready(source)
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
        raise ValueError(f"{name}: {_unknown(source, error) or _cause(error)}") from error


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


def _unknown(source: IO[bytes], error: Exception) -> str:
    """Why no decoder takes a file; empty if one did."""
    if not isinstance(error, UnidentifiedImageError):
        return ""
    if not source.seek(0, io.SEEK_END):
        return "the file is empty"
    source.seek(0)
    return NO_HEIC if is_heic(source) and not reads_heic() else "not an image of a known kind"


def _cause(error: Exception) -> str:
    """Return why decoding failed, without the path: a cache keeps it, and files move."""
    if isinstance(error, OSError) and error.strerror:
        return "the file is missing" if error.errno == errno.ENOENT else error.strerror
    return str(error) or type(error).__name__
