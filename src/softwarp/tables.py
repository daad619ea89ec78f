"""Rows -> tables for the terminal, Markdown, LaTeX and HTML.

Metrics are percentages, the best is bold, a second best may be underlined.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from markupsafe import Markup

from softwarp.files import printable

if TYPE_CHECKING:
    from rich.table import Table as RichTable

TITLES = {
    "map@r": "MAP@R",
    "nmi": "NMI",
    "nmi_geometric": "NMI geometric",
    "ami": "AMI",
    "avg_dtp": "AvgDTP",
    "r_precision": "R-precision",
}
COUNTS = ("queries", "queries_without_positives")
# No shares of one: distances, their ratios, and what describes a spectrum.
LENGTHS = (
    "avg_dtp",
    "compactness",
    "separability",
    "separability_ratio",
    "spectral_decay",
    "effective_rank",
)
LATEX = str.maketrans(
    {letter: f"\\{letter}" for letter in "&%$#_{}"}
    | {"\\": r"\textbackslash ", "^": r"\^{}", "±": r"$\pm$", "−": "$-$"}
)


@dataclass(frozen=True)
class Cell:
    text: str
    best: bool = False
    second: bool = False


@dataclass(frozen=True)
class Table:
    """Columns of words on the left, columns of figures on the right.

    Args:
        words: number of columns of words.
        groups: title and width of each group of figures, from the left; together as wide as all figures.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    words: int = 1
    groups: tuple[tuple[str, int], ...] = ()

    def terminal(self) -> "RichTable":
        """Return the table for rich to print; words wrap if there is no room, figures do not."""
        from rich.table import Column
        from rich.table import Table as RichTable
        from rich.text import Text

        columns = [
            Column(head, overflow="fold", min_width=min(12, max(len(row[place].text) for row in self.rows)))
            if place < self.words
            else Column(head, justify="right", no_wrap=True)
            for place, head in enumerate(self._whole_heads())
        ]
        table = RichTable(*columns, title=self.title or None)
        for row in self.rows:
            table.add_row(*(Text(printable(cell.text), style=_style(cell)) for cell in row))
        return table

    def markdown(self) -> str:
        """Return the table in GitHub Markdown, one line per row."""
        rules = ["---" if place < self.words else "---:" for place in range(len(self.heads))]
        rows = [[_wrapped(cell, "**{}**", "<ins>{}</ins>") for cell in row] for row in self.rows]
        lines = [list(self._whole_heads()), rules, *rows]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def latex(self) -> str:
        """Return the table as a LaTeX tabular."""
        figures = len(self.heads) - self.words
        widths = [width for _, width in self.groups] or [figures]
        columns = " | ".join(["l" * self.words, *("c" * width for width in widths)])
        heads = [[_latex(head) for head in self.heads]]
        if self.groups:
            titles = (rf"\multicolumn{{{width}}}{{c}}{{{_latex(title)}}}" for title, width in self.groups)
            heads.insert(0, ["" for _ in range(self.words)] + list(titles))
        rows = [[_latex_cell(cell) for cell in row] for row in self.rows]
        lines = [rf"\begin{{tabular}}{{{columns}}}", r"\hline"]
        lines += [" & ".join(line) + r" \\" for line in heads] + [r"\hline"]
        lines += [" & ".join(line) + r" \\" for line in rows] + [r"\hline", r"\end{tabular}"]
        return "\n".join(lines) + "\n"

    def html(self) -> Markup:
        """Return a <table> element; cells have the class `best` or `second`."""
        heads = Markup("").join(Markup("<th>{}</th>").format(head) for head in self._whole_heads())
        rows = (
            Markup("").join(
                Markup("<td{}>{}</td>").format(
                    Markup(' class="best"' if cell.best else ' class="second"' if cell.second else ""),
                    cell.text,
                )
                for cell in row
            )
            for row in self.rows
        )
        return Markup("<table><tr>{}</tr>{}</table>").format(
            heads, Markup("").join(Markup("<tr>{}</tr>").format(row) for row in rows)
        )

    def _whole_heads(self) -> tuple[str, ...]:
        """The heads, each with the title of its group."""
        titles = [title for title, width in self.groups for _ in range(width)]
        titles = [""] * (len(self.heads) - len(titles)) + titles
        return tuple(f"{title} {head}".strip() for title, head in zip(titles, self.heads, strict=True))


def _style(cell: Cell) -> str:
    return "bold" if cell.best else "underline" if cell.second else ""


def _wrapped(cell: Cell, best: str, second: str) -> str:
    return (best if cell.best else second if cell.second else "{}").format(cell.text)


def _latex_cell(cell: Cell) -> str:
    text = _latex(cell.text)
    return rf"\textbf{{{text}}}" if cell.best else rf"\underline{{{text}}}" if cell.second else text


def _latex(text: str) -> str:
    """Text with LaTeX's own characters escaped."""
    return text.translate(LATEX)


def metric_title(name: str) -> str:
    """Return a metric's name as a table heading.

    >>> metric_title("recall@1"), metric_title("map@r")
    ('Recall@1', 'MAP@R')
    """
    return TITLES.get(name, name[:1].upper() + name[1:].replace("_", " "))


def figure(name: str, value: float, deviation: float | None = None) -> str:
    """Return a metric as tables show it: in percent, except for distances and counts.

    >>> figure("recall@1", 0.94637, 0.0061), figure("avg_dtp", 10.634), figure("queries", 75)
    ('94.6 ± 0.6', '10.63', '75')
    """
    if name in COUNTS:
        return f"{value:g}"
    factor, digits = (1, 2) if name in LENGTHS else (100, 1)
    spread = "" if deviation is None else f" ± {factor * deviation:.{digits}f}"
    return f"{factor * value:.{digits}f}{spread}"


@dataclass(frozen=True)
class Row:
    """The data of a row of `metric_table`; a missing metric leaves an empty cell."""

    words: tuple[str, ...]
    mean: Mapping[str, float]
    deviation: Mapping[str, float] = field(default_factory=dict)
    ranked: bool = True  # whether it may be the best


def metric_table(
    rows: Sequence[Row], metrics: Sequence[str], heads: Sequence[str], *, title: str = ""
) -> Table:
    """Return a column per metric, the best mean in bold; except AvgDTP, which has no best value."""
    ranked = [row.mean for row in rows if row.ranked]
    best = {name: max(mean[name] for mean in ranked if name in mean) for name in metrics if name != "avg_dtp"}

    def cell(row: Row, name: str) -> Cell:
        if name not in row.mean:
            return Cell("")
        text = figure(name, row.mean[name], row.deviation.get(name))
        return Cell(text, best=len(ranked) > 1 and row.ranked and row.mean[name] == best.get(name))

    cells = ((*map(Cell, row.words), *(cell(row, name) for name in metrics)) for row in rows)
    return Table((*heads, *map(metric_title, metrics)), tuple(cells), title=title, words=len(heads))
