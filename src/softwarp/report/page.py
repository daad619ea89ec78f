"""Parts -> one self-contained HTML page; beside it every figure as SVG and its numbers as CSV."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, PackageLoader, select_autoescape

from softwarp.figures import as_csv
from softwarp.files import printable, write_text
from softwarp.tables import Table


@dataclass(frozen=True)
class Illustration:
    """A figure as SVG, the numbers that it shows, and what is written below it.

    Args:
        name: of its files beside the page.
        rows: none if the numbers are in a file already; then no files are written.
    """

    name: str
    svg: str
    rows: Sequence[Mapping[str, object]] = ()
    caption: str = ""

    def source(self) -> str:
        """Return it as an image: whatever the SVG holds, no script in it runs."""
        return data_uri(self.svg.encode(), "svg+xml")

    def has_photographs(self) -> bool:
        """Return whether its colours must stay as they are on a dark page."""
        return "<image" in self.svg


@dataclass(frozen=True)
class Tile:
    """An image with what is written below it; `source` is empty where the image is gone."""

    source: str
    name: str
    label: str = ""
    distance: float | None = None
    right: bool | None = None  # whether the answer is of the query's class; None if it is no answer


@dataclass(frozen=True)
class Group:
    """An image and rows of those that belong to it, by the title of the row."""

    head: Tile
    rows: Mapping[str, Sequence[Tile]]
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading and what stands below it, in this order."""

    title: str
    text: str = ""
    tables: Sequence[Table] = ()
    figures: Sequence[Illustration] = ()
    side_by_side: bool = False  # puts figures side by side where the page is wide
    groups: Sequence[Group] = ()
    small: bool = True  # pictures of groups stand in rows, without words below them
    pairs: bool = False  # the two pictures of a group stand side by side at any width
    note: str = ""
    folded: Mapping[str, str] = field(default_factory=dict)  # long texts by title
    level: int = 2


def write_page(path: Path, title: str, parts: Sequence[Section], *, note: str = "") -> None:
    """Write the page, in which nothing is loaded from elsewhere, and its figures into NAME-figures."""
    page = Environment(
        loader=PackageLoader("softwarp.report"),
        autoescape=select_autoescape(["jinja"]),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page.filters["printable"] = printable
    html = page.get_template("page.html.jinja").render(title=title, parts=parts, note=note)
    write_text(path, html)
    folder = path.with_name(f"{path.stem}-figures")
    for figure in (figure for part in parts for figure in part.figures if figure.rows):
        write_text(folder / f"{figure.name}.svg", figure.svg)
        write_text(folder / f"{figure.name}.csv", as_csv(figure.rows))


def write_gallery(path: Path, title: str, groups: Sequence[Group], *, note: str = "") -> None:
    """Write a page of groups alone, their pictures large and with words below them."""
    write_page(path, title, [Section(title="", groups=groups, small=False)], note=note)


def data_uri(content: bytes, kind: str) -> str:
    """Return the bytes of an image as an address that needs no file.

    >>> data_uri(b"<svg/>", "svg+xml")
    'data:image/svg+xml;base64,PHN2Zy8+'
    """
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
