"""The images of a run's items, as small data URIs; an image that is gone has none."""

import io
from collections.abc import Callable
from functools import cache

import numpy as np
from PIL import Image, ImageOps

from softwarp.data.glyphs import glyph_images
from softwarp.data.sources import store_of
from softwarp.data.tables import find_root, read_table
from softwarp.report.page import data_uri
from softwarp.runs.run import EvaluatedImage, Run

QUALITY = 75

Show = Callable[[EvaluatedImage, int], str]  # an item and the side of a square in pixels -> a data URI, or ""


def pictures_of(run: Run) -> tuple[Show, bool]:
    """Return a function that shows an item of the run, and whether its data is where the recipe says."""
    try:
        read, there = _reader(run), True
    except (ValueError, OSError, KeyError):  # glyphs of another version have other names
        read, there = _nothing, False

    @cache
    def show(item: EvaluatedImage, side: int) -> str:
        try:
            return thumbnail(read(item.file), side)
        except (ValueError, OSError, KeyError):
            return ""

    return show, there


def _reader(run: Run) -> Callable[[str], Image.Image]:
    data = run.recipe().data
    if data.name == "glyphs":
        names = [item.file for item in (*run.items(), *run.items(gallery=True))]
        images = dict(zip(names, 255 - glyph_images(names), strict=True))  # dark on white
        return lambda name: Image.fromarray(images[name][0].numpy())
    table = read_table(data.name, find_root(data.name, data.root), depth=data.depth)
    places = {path: place for place, path in enumerate(table.paths)}
    store = store_of(table, np.arange(len(places)), shorter_side=data.resize)

    def read(name: str) -> Image.Image:
        image = store.read(places[name])
        assert isinstance(image, Image.Image)
        return image

    return read


def _nothing(name: str) -> Image.Image:
    raise FileNotFoundError(name)


def thumbnail(image: Image.Image, side: int) -> str:
    """Return the image, cut to a square at its centre, as a data URI."""
    small = ImageOps.fit(image, (min(side, min(image.size)),) * 2)
    buffer = io.BytesIO()
    small.save(buffer, "WEBP", quality=QUALITY, method=6)
    return data_uri(buffer.getvalue(), "webp")
