"""One style for every figure, drawn by matplotlib without a display; a figure as SVG, its numbers as CSV."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from softwarp.files import write_text

COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7")  # safe for colour-blind readers


class Drawing(NamedTuple):
    """A figure and the numbers that it shows: one mapping from column to value per row."""

    figure: Figure
    rows: Sequence[Mapping[str, object]]


def write_drawing(path: Path, drawing: Drawing) -> None:
    """Write the figure as SVG and its numbers as CSV; `path` has no suffix."""
    write_text(path.with_name(f"{path.name}.svg"), svg(drawing.figure))
    write_text(path.with_name(f"{path.name}.csv"), as_csv(drawing.rows))


def svg(figure: Figure) -> Markup:
    """Return the figure as an <svg> element, the same for the same figure."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "softwarp"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return Markup(text[text.index("<svg") :])


def as_csv(rows: Sequence[Mapping[str, object]]) -> str:
    r"""Return rows as CSV with a line of column names; a value that a row lacks is empty.

    >>> as_csv([{"alpha": 1.5, "recall@1": 0.9}, {"alpha": 3.0}])
    'alpha,recall@1\n1.5,0.9\n3.0,\n'
    """
    columns = list(dict.fromkeys(column for row in rows for column in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def tidy(*panels: Axes) -> None:
    """Give panels the house style: no frame above and on the right, a faint grid."""
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
