"""The thumbnail of an image, kept beside its vector."""

import io

from PIL import Image

THUMBNAIL = 160  # pixels of the longer side
QUALITY = 80


def thumbnail_of(image: Image.Image) -> bytes:
    """Return a JPEG of at most 160 pixels a side."""
    small = image.copy()
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=QUALITY, exif=b"")
    return buffer.getvalue()
