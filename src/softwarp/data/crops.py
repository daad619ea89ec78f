"""A part of an image, cut out by a box."""

import numpy as np
from PIL import Image

Box = tuple[int, int, int, int]  # x, y, width, height in pixels


def parse_box(text: str) -> Box:
    """Return the box that a text names.

    >>> parse_box("10,20,30,40")
    (10, 20, 30, 40)
    """
    try:
        x, y, width, height = (int(word) for word in text.split(","))
    except ValueError:
        raise ValueError(f"a box is x,y,width,height in pixels, like 10,20,300,200; got {text!r}") from None
    return x, y, width, height


def crop_box(image: Image.Image, box: Box) -> Image.Image:
    """Return the part of an upright image inside a box, which must be within it."""
    x, y, width, height = box
    if x < 0 or y < 0 or width < 1 or height < 1 or x + width > image.width or y + height > image.height:
        raise ValueError(
            f"the box {x},{y},{width},{height} is not inside the image of {image.width} x {image.height}"
        )
    # Through an array, so that no EXIF orientation comes along and turns it once more.
    return Image.fromarray(np.asarray(image)[y : y + height, x : x + width])
