"""What is kept of an image besides its vector: a digest of its file, and a thumbnail."""

import hashlib
import io

from PIL import Image

THUMBNAIL = 160  # pixels of the longer side
QUALITY = 80


def digest_of(content: bytes) -> bytes:
    """Return 16 bytes that differ if the content does."""
    return hashlib.blake2b(content, digest_size=16).digest()


def thumbnail_of(image: Image.Image) -> bytes:
    """Return a JPEG of at most 160 pixels a side."""
    small = image.copy()
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=QUALITY, exif=b"")
    return buffer.getvalue()
