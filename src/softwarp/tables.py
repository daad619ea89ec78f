"""Rows -> tables for the terminal, Markdown, LaTeX and HTML.

Metrics are percentages, the best is bold, a second best may be underlined.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from markupsafe import Markup

from softwarp.files import printable, write_text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table as RichTable

LATEX = str.maketrans(
    {letter: f"\\{letter}" for letter in "&%$#_{}"}
    | {letter: f"${letter}$" for letter in "<>|"}
    | {"\\": r"\textbackslash ", "^": r"\^{}", "~": r"\~{}", "±": r"$\pm$", "−": "$-$"}
)


@dataclass(frozen=True)
class Metric:
    """What tables, figures and searches need to know of a metric.

    Args:
        title: as people print it; K or F stands for the number in its name.
        family: what measures it, a file of metrics/ or, for the whole gallery, evaluation.py.
        unit: a share of one, shown in percent; a length (or a ratio, or a deviation of one), or a count.
        better: which of two values is; neither where spaces cannot be compared by it.
    """

    title: str
    family: str
    unit: Literal["percent", "length", "count"] = "percent"
    better: Literal["higher", "lower", "neither"] = "higher"


METRICS = {
    "recall@K": Metric("Recall@K", "retrieval"),
    "precision@1": Metric("Precision@1", "retrieval"),
    "r_precision": Metric("R-precision", "retrieval"),
    "map@r": Metric("MAP@R", "retrieval"),
    "map@K": Metric("MAP@K", "retrieval"),
    "ndcg@K": Metric("NDCG@K", "retrieval"),
    "queries": Metric("Queries", "retrieval", "count", "neither"),
    "queries_without_positives": Metric("Queries without positives", "retrieval", "count", "neither"),
    "whole_gallery_recall@K": Metric("Recall@K, whole gallery", "whole gallery"),
    "whole_gallery_map@r": Metric("MAP@R, whole gallery", "whole gallery"),
    "knn@K": Metric("K-NN accuracy", "votes"),
    "nmi": Metric("NMI", "clustering"),
    "nmi_geometric": Metric("NMI geometric", "clustering"),
    "ami": Metric("AMI", "clustering"),
    "avg_dtp": Metric("AvgDTP", "geometry", "length", "neither"),
    "compactness": Metric("Compactness", "geometry", "length", "neither"),
    "separability": Metric("Separability", "geometry", "length", "neither"),
    "separability_ratio": Metric("Separability ratio", "geometry", "length", "neither"),
    "spectral_decay": Metric("Spectral decay", "geometry", "length", "neither"),
    "effective_rank": Metric("Effective rank", "geometry", "length", "neither"),
    "between_share": Metric("Between share", "geometry"),
    "norm": Metric("Norm", "geometry", "length", "neither"),
    "norm_deviation": Metric("Norm deviation", "geometry", "length", "neither"),
    "hubness": Metric("Hubness", "geometry", "length", "lower"),
    "accuracy": Metric("Accuracy", "verification"),
    "accuracy_std": Metric("Accuracy std", "verification", better="neither"),
    "tar@far=F": Metric("TAR@FAR=F", "verification"),
    "fold_tar@far=F": Metric("Fold TAR@FAR=F", "verification"),
    "fold_tar_std@far=F": Metric("Fold TAR std@FAR=F", "verification", better="neither"),
    "auc": Metric("AUC", "verification"),
    "best_threshold": Metric("Best threshold", "verification", "length", "neither"),
    "best_accuracy": Metric("Best accuracy", "verification"),
    "rank@K": Metric("Rank@K", "identification"),
    "tpir@fpir=F": Metric("TPIR@FPIR=F", "identification"),
    "mated": Metric("Mated", "identification", "count", "neither"),
    "others": Metric("Others", "identification", "count", "neither"),
}
NUMBER = re.compile(r"(?<=[@=])[0-9][0-9.e+-]*$")  # K or F in a metric's name


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

    def terminal(self) -> "Terminal":
        """Return the table for rich to print: as wide as it is, or in parts below each other."""
        return Terminal(self)

    def markdown(self) -> str:
        """Return the table in GitHub Markdown, one line per row."""
        rules = ["---" if place < self.words else "---:" for place in range(len(self.heads))]
        rows = [[_wrapped(cell, "**{}**", "<ins>{}</ins>") for cell in row] for row in self.rows]
        lines = [[_in_markdown(head) for head in self.whole_heads()], rules, *rows]
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
        """Return a <table> element; cells have the class `words`, `best` or `second`."""
        heads = tuple(Cell(head) for head in self.whole_heads())
        rows = [self._html_row(heads, "th"), *(self._html_row(row, "td") for row in self.rows)]
        return Markup("<table>{}</table>").format(Markup("").join(rows))

    def _html_row(self, row: tuple[Cell, ...], tag: str) -> Markup:
        cells = (
            Markup("<{0}{1}>{2}</{0}>").format(tag, self._class(place, cell), cell.text)
            for place, cell in enumerate(row)
        )
        return Markup("<tr>{}</tr>").format(Markup("").join(cells))

    def _class(self, place: int, cell: Cell) -> Markup:
        kinds = ["words"] * (place < self.words) + ["best"] * cell.best + ["second"] * cell.second
        return Markup(f' class="{" ".join(kinds)}"' if kinds else "")

    def whole_heads(self) -> tuple[str, ...]:
        """The heads, each with the title of its group."""
        titles = [title for title, width in self.groups for _ in range(width)]
        titles = [""] * (len(self.heads) - len(titles)) + titles
        return tuple(f"{title} {head}".strip() for title, head in zip(titles, self.heads, strict=True))


def _style(cell: Cell) -> str:
    return "bold" if cell.best else "underline" if cell.second else ""


def _wrapped(cell: Cell, best: str, second: str) -> str:
    return (best if cell.best else second if cell.second else "{}").format(_in_markdown(cell.text))


def _in_markdown(text: str) -> str:
    """Text that ends neither its cell nor its row."""
    return text.replace("|", r"\|").replace("\n", " ")


def _latex_cell(cell: Cell) -> str:
    text = _latex(cell.text)
    return rf"\textbf{{{text}}}" if cell.best else rf"\underline{{{text}}}" if cell.second else text


@dataclass(frozen=True)
class Terminal:
    """A table that rich prints: words wrap if there is no room, figures go into further parts below."""

    table: Table

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[RichTable]":
        for number, places in enumerate(self._parts(options.max_width)):
            yield self._part(places, self.table.title if number == 0 else "")

    def _parts(self, width: int) -> list[list[int]]:
        """The columns of figures of each part."""
        words = range(self.table.words)
        taken = sum(min(12, self._width(place)) + 3 for place in words) + 1
        parts: list[list[int]] = [[]]
        room = width - taken
        for place in range(self.table.words, len(self.table.heads)):
            needed = self._width(place) + 3
            if parts[-1] and needed > room:
                parts.append([])
                room = width - taken
            parts[-1].append(place)
            room -= needed
        return parts

    def _width(self, place: int) -> int:
        texts = [printable(row[place].text) for row in self.table.rows]
        return max(map(len, [*texts, self.table.whole_heads()[place]]))

    def _part(self, places: list[int], title: str) -> "RichTable":
        from rich.table import Column
        from rich.table import Table as RichTable
        from rich.text import Text

        shown, heads = [*range(self.table.words), *places], self.table.whole_heads()
        columns = [
            Column(heads[place], overflow="fold", min_width=min(12, self._width(place)))
            if place < self.table.words
            else Column(heads[place], justify="right", no_wrap=True)
            for place in shown
        ]
        part = RichTable(*columns, title=title or None)
        for row in self.table.rows:
            part.add_row(*(Text(printable(row[place].text), style=_style(row[place])) for place in shown))
        return part


def _latex(text: str) -> str:
    """Text with LaTeX's own characters escaped."""
    return text.translate(LATEX)


def from_markdown(text: str) -> Table:
    """Return the table that `Table.markdown` wrote, with the groups in its heads.

    >>> from_markdown(Table(("loss", "MAP@R"), ((Cell("hist"), Cell("9.0", best=True)),)).markdown()).rows
    ((Cell(text='hist', best=False, second=False), Cell(text='9.0', best=True, second=False)),)
    """
    lines = [
        [cell.strip().replace(r"\|", "|") for cell in line.removeprefix("|").removesuffix("|").split(" | ")]
        for line in text.splitlines()
    ]
    heads, rules, *rows = lines
    cells = tuple(tuple(_read(cell) for cell in row) for row in rows)
    return Table(tuple(heads), cells, words=sum(not rule.endswith(":") for rule in rules))


def _read(text: str) -> Cell:
    for mark, (start, end) in {"best": ("**", "**"), "second": ("<ins>", "</ins>")}.items():
        if text.startswith(start) and text.endswith(end):
            inner = text[len(start) : -len(end)]
            return Cell(inner, best=mark == "best", second=mark == "second")
    return Cell(text)


def metric_of(name: str) -> Metric:
    """Return the row of METRICS for a metric's name; one that has none is shown as a share of one.

    >>> metric_of("knn@5").title, metric_of("avg_dtp").unit
    ('5-NN accuracy', 'length')
    """
    if name in METRICS:
        return METRICS[name]
    for letter in "KF":
        if row := METRICS.get(NUMBER.sub(letter, name)):
            number = name[NUMBER.search(name).start() :]  # type: ignore[union-attr]
            return replace(row, title=re.sub(rf"\b{letter}\b", number, row.title))
    return Metric(name[:1].upper() + name[1:].replace("_", " "), "")


def names_of(family: str) -> list[str]:
    """Return the metrics of a family that have no number of their own and are shares of one.

    >>> names_of("clustering")
    ['nmi', 'nmi_geometric', 'ami']
    """
    return [
        name
        for name, row in METRICS.items()
        if row.family == family and row.unit == "percent" and name[-2:] not in ("@K", "=F")
    ]


def metric_title(name: str) -> str:
    """Return a metric's name as a table heading.

    >>> metric_title("recall@1"), metric_title("map@r"), metric_title("knn@5")
    ('Recall@1', 'MAP@R', '5-NN accuracy')
    """
    return metric_of(name).title


def factor_of(name: str) -> float:
    """Return what a metric is multiplied by where it is shown: 100 for shares of one."""
    return 100.0 if metric_of(name).unit == "percent" else 1.0


def counted(number: int, name: str, several: str = "") -> str:
    """Return a number and what it counts.

    >>> counted(1, "loss", "losses"), counted(1200, "image")
    ('1 loss', '1,200 images')
    """
    return f"{number:,} {name if number == 1 else several or name + 's'}"


def figure(name: str, value: float, deviation: float | None = None) -> str:
    """Return a metric as tables show it: in percent, except for distances and counts.

    >>> figure("recall@1", 0.94637, 0.0061), figure("avg_dtp", 10.634), figure("queries", 75)
    ('94.6 ± 0.6', '10.63', '75')
    """
    unit, factor = metric_of(name).unit, factor_of(name)
    if unit == "count":
        return f"{value:g}"
    digits = 1 if unit == "percent" else 2
    spread = "" if deviation is None else f" ± {factor * deviation:.{digits}f}"
    return f"{factor * value:.{digits}f}{spread}"


@dataclass(frozen=True)
class Row:
    """The data of a row of `metric_table`; a missing metric leaves an empty cell."""

    words: tuple[str, ...]
    mean: Mapping[str, float]
    deviation: Mapping[str, float] = field(default_factory=dict)
    ranked: bool = True  # whether it may be the best


def figures_table(
    mean: Mapping[str, float],
    deviation: Mapping[str, float],
    before: Mapping[str, float],
    *,
    head: str = "value",
    title: str = "",
) -> Table:
    """Return a row per metric: its value, its deviation if there is one, and its value before training."""
    rows = []
    for name, value in mean.items():
        if name == "precision@1" or (name == "queries_without_positives" and not value):
            continue  # the same as recall@1; nothing to report
        trained = figure(name, value, deviation.get(name) if name != "queries" else None)
        untrained = figure(name, before[name]) if name in before else ""
        rows.append((Cell(metric_title(name)), Cell(trained), Cell(untrained)))
    width = 3 if before else 2
    return Table(("metric", head, "before")[:width], tuple(row[:width] for row in rows), title=title)


def write_table(stem: Path, shown: Table) -> None:
    """Write a table as Markdown and LaTeX: STEM.md and STEM.tex."""
    write_text(stem.with_name(f"{stem.name}.md"), shown.markdown())
    write_text(stem.with_name(f"{stem.name}.tex"), shown.latex())


def metric_table(
    rows: Sequence[Row], metrics: Sequence[str], heads: Sequence[str], *, title: str = ""
) -> Table:
    """Return a column per metric, the best mean in bold; except for those that have no better value."""
    ranked = [row.mean for row in rows if row.ranked]
    choose: dict[str, Callable[..., float | None]] = {"higher": max, "lower": min}
    best = {
        name: choose[better]((mean[name] for mean in ranked if name in mean), default=None)
        for name in metrics
        if (better := metric_of(name).better) in choose
    }

    def cell(row: Row, name: str) -> Cell:
        if name not in row.mean:
            return Cell("")
        text = figure(name, row.mean[name], row.deviation.get(name))
        return Cell(text, best=len(ranked) > 1 and row.ranked and row.mean[name] == best.get(name))

    cells = ((*map(Cell, row.words), *(cell(row, name) for name in metrics)) for row in rows)
    return Table((*heads, *map(metric_title, metrics)), tuple(cells), title=title, words=len(heads))
