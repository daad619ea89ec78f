"""Groups of thumbnails -> one self-contained HTML page."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, select_autoescape

from softwarp.files import printable, write_text


@dataclass(frozen=True)
class Tile:
    """An image with what is written below it."""

    jpeg: bytes
    name: str
    label: str = ""
    distance: float | None = None

    def source(self) -> str:
        return "data:image/jpeg;base64," + base64.b64encode(self.jpeg).decode()


@dataclass(frozen=True)
class Group:
    """An image and those that belong to it."""

    head: Tile
    tiles: Sequence[Tile]
    title: str = ""


def write_gallery(path: Path, title: str, groups: Sequence[Group], *, note: str = "") -> None:
    """Write the page; nothing in it is loaded from elsewhere."""
    page = Environment(loader=PackageLoader("softwarp.report"), autoescape=select_autoescape(["jinja"]))
    page.filters["printable"] = printable
    html = page.get_template("gallery.html.jinja").render(title=title, groups=groups, note=note)
    write_text(path, html)
