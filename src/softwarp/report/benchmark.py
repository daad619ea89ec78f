"""A benchmark's table, intervals and the galleries of its best losses in one HTML file."""

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, select_autoescape
from PIL import Image
from torch import Tensor

from softwarp.comparisons import Pair
from softwarp.data.glyphs import glyph_images
from softwarp.data.sources import store_of
from softwarp.data.tables import find_root, read_table
from softwarp.files import write_text
from softwarp.report.demo import NEIGHBOURS, gallery, picture
from softwarp.report.figures import differences
from softwarp.runs import Item, Run
from softwarp.tables import Table

THUMBNAIL = 96  # pixels


def write_page(
    path: Path,
    table: Table,
    *,
    text: str,
    seeds: Mapping[str, Sequence[float]],
    behind: Mapping[str, Pair],
    best: Mapping[str, Run],
    about: Mapping[str, Any],
) -> None:
    """Write the page; nothing in it is loaded from elsewhere.

    Args:
        text: what was done, in words.
        seeds: by loss, the values that were compared.
        behind: by loss, how far it is behind the best.
        best: runs whose answers are shown, by title.
        about: lines for the foot, by title.
    """
    first = next(iter(best.values()))
    spaces: dict[str, tuple[Tensor, Tensor, str]] = {}
    for title, run in best.items():
        arrays = run.load_embeddings()
        if "gallery" in arrays:
            continue  # queries are not searched among themselves
        spaces[title] = (arrays["embeddings"], arrays["labels"], run.result().distance)
    page = Environment(loader=PackageLoader("softwarp.report"), autoescape=select_autoescape(["jinja"]))
    html = page.get_template("benchmark.html.jinja").render(
        table=table,
        text=text,
        figure=differences(seeds, behind),
        neighbours=NEIGHBOURS,
        gallery=gallery(_shown(first, first.items()), spaces) if spaces else [],
        about=about,
    )
    write_text(path, html)


def _shown(run: Run, items: Sequence[Item]) -> Callable[[int], str]:
    """A function from an item to its image as a data URI."""
    data = run.recipe().data
    if data.name == "glyphs":
        images = glyph_images([item.file for item in items])
        return lambda item: picture(images[item])
    table = read_table(data.name, find_root(data.name, data.root), depth=data.depth)
    places = {path: position for position, path in enumerate(table.paths)}
    positions = np.array([places[item.file] for item in items])
    store = store_of(table, positions, shorter_side=THUMBNAIL)

    def show(item: int) -> str:
        image = store.read(item)
        assert isinstance(image, Image.Image)
        image.thumbnail((THUMBNAIL, THUMBNAIL))
        return as_uri(image)

    return show


def as_uri(image: Image.Image) -> str:
    """Return a photograph as a data URI."""
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
