"""One style for every figure, drawn by matplotlib without a display; a figure as SVG, its numbers as CSV."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from markupsafe import Markup
from matplotlib.artist import Artist
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


def panels_of(
    count: int, columns: int, *, height: float, sharex: bool = False, sharey: bool = True
) -> tuple[Figure, list[Axes]]:
    """Return a figure as wide as a page with so many panels, row by row, each row of this height."""
    rows = -(-count // columns)
    figure = Figure(figsize=(10, height * rows), layout="constrained")
    panels = figure.subplots(rows, columns, sharex=sharex, sharey=sharey, squeeze=False).flatten()
    for spare in panels[count:]:
        spare.set_visible(False)
    return figure, list(panels[:count])


def draw_seeds(axes: Axes, values: Mapping[str, Sequence[float]], colours: Iterable[str]) -> None:
    """Draw a line for each title: a point for each seed, and a bar at their mean."""
    for place, (seeds, colour) in enumerate(zip(values.values(), colours, strict=False)):
        axes.plot(seeds, [place] * len(seeds), "o", color=colour, markersize=4)
        axes.plot([sum(seeds) / len(seeds)], [place], "|", color="black", markersize=12)
    axes.set_yticks(range(len(values)), list(values))
    axes.invert_yaxis()


def legend_below(figure: Figure, lines: Iterable[Artist], titles: Iterable[str], columns: int = 4) -> None:
    """Give a figure a legend below its panels."""
    look: dict[str, Any] = {"loc": "outside lower center", "frameon": False, "fontsize": 9}
    figure.legend(lines, [plain(title) for title in titles], ncols=columns, **look)


def plain(title: str) -> str:
    """Return a title in which matplotlib looks for no mathematics."""
    return title.replace("$", r"\$")


def tidy(*panels: Axes) -> None:
    """Give panels the house style: no frame above and on the right, a faint grid."""
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
