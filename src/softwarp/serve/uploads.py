"""An uploaded file -> the pixels that the model reads; refusals say why."""

import re
from io import BytesIO

from fastapi import HTTPException
from PIL import Image, ImageFile, UnidentifiedImageError
from torch import Tensor

from softwarp.data.crops import crop_box, parse_box
from softwarp.data.decode import FORMAT_OF, NO_HEIC, as_rgb, is_heic, make_ready, reads_heic
from softwarp.inference import EmbeddingModel
from softwarp.serve.limits import Limits

FORMATS = tuple(dict.fromkeys(FORMAT_OF.values()))  # those of training and indexes
LONGEST_NAME = 255
ODD = re.compile(r"[/\\\x00-\x1f\x7f\ud800-\udfff]")  # separators, control characters, broken Unicode


def check_name(name: str | None) -> None:
    """Refuse names that no browser sends: with folders or control characters. No name is ever used."""
    if not name:
        raise HTTPException(400, "the image has no file name")
    if len(name) > LONGEST_NAME or name in (".", "..") or ODD.search(name):
        raise HTTPException(400, "the file name is not a plain name")


def pixels_of(content: bytes, model: EmbeddingModel, limits: Limits, box: str | None = None) -> Tensor:
    """Return an uploaded image as the bytes [channels, crop, crop] that the model reads.

    Args:
        content: a whole file; its kind and size are looked at before anything is decoded.
        box: search with this part, x,y,width,height in pixels of the upright image.
    """
    image = _opened(content, limits)
    try:
        if box is None:
            image.draft(None, (model.resize, model.resize))
            return model.transform(model.read(image))
        return model.transform(model.read(crop_box(as_rgb(image), parse_box(box))))
    except MemoryError:
        raise
    except Exception as error:  # decoders raise anything: OSError, SyntaxError, struct.error, ...
        raise _unreadable(error) from error


def _opened(content: bytes, limits: Limits) -> ImageFile.ImageFile:
    """The image with nothing but its header read, if it is of a known kind and size."""
    file = BytesIO(content)
    if is_heic(file) and not reads_heic():
        raise HTTPException(415, NO_HEIC)
    make_ready(file)
    try:
        image = Image.open(file, formats=_known())
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise HTTPException(413, _too_many(limits)) from None
    except UnidentifiedImageError:
        raise HTTPException(415, f"not an image of a known kind: {', '.join(FORMATS)}") from None
    except Exception as error:
        raise _unreadable(error) from error
    if image.width * image.height > limits.pixels:
        raise HTTPException(413, _too_many(limits))
    if image.width * image.height == 0:
        raise HTTPException(400, "the image has no pixels")
    return image


def _unreadable(error: Exception) -> HTTPException:
    return HTTPException(400, f"the image cannot be read: {str(error) or type(error).__name__}")


def _known() -> list[str]:
    """Those of the formats that this Pillow was built with."""
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def _too_many(limits: Limits) -> str:
    return f"an image may have {limits.pixels:,} pixels"
