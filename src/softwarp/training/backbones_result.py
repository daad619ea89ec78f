"""What is found when networks are compared on images: rows that show themselves."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from softwarp.tables import Cell, Table


@dataclass(frozen=True)
class JudgedBackbone:
    """A network on a folder of images; figures are None without labels, or if it cannot be had.

    Intervals are 95%, over classes. `milliseconds` is the time of an image in the network, `megabytes` its
    size in memory, `seconds` what the row took, with whatever was in the cache already.
    """

    name: str
    recall_at_1: float | None = None
    recall_low: float | None = None
    recall_high: float | None = None
    map_at_r: float | None = None
    map_low: float | None = None
    map_high: float | None = None
    milliseconds: float | None = None
    megabytes: float | None = None
    dimensions: int | None = None
    crop: int | None = None
    licence: str = ""
    broken: int = 0  # images that cannot be read
    seconds: float = 0.0
    problem: str = ""  # why there are no figures


@dataclass(frozen=True)
class Backbones:
    """Networks compared on a folder of images, the best first; made by `softwarp.backbones`.

    >>> rows = (JudgedBackbone("a", map_at_r=0.5), JudgedBackbone("b", problem="no weights"))
    >>> Backbones(rows, "4 images", 4)
    Backbones: 4 images
    a  MAP@R 50.0
    b  no weights
    """

    rows: tuple[JudgedBackbone, ...]
    about: str  # which images were judged
    images: int
    seconds: float = 0.0

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[JudgedBackbone]:
        return iter(self.rows)

    def __getitem__(self, place: int) -> JudgedBackbone:
        return self.rows[place]

    @property
    def best(self) -> str:
        """The name of the first network; a ValueError if there are no figures to say so."""
        first = self.rows[0]
        if first.map_at_r is None:
            why = first.problem or "the images have no classes"
            raise ValueError(f"no network can be chosen: {why}; name one instead, like efficientnet_lite0")
        return first.name

    def choice(self) -> str:
        """Return in a line which network is best, and by how much."""
        named = [each for each in self.rows if each.map_at_r is not None]
        others = ", ".join(f"{each.name} {_percent(each.map_at_r)}" for each in named[1:4])
        then = "the only network at hand" if len(named) == 1 else f"then {others}"
        value = _percent(named[0].map_at_r)
        return f"backbone: {self.best}, MAP@R {value} before training ({then}); {self.about}"

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame with a line per network."""
        try:
            import pandas
        except ImportError:
            raise ImportError("a data frame needs pandas: pip install pandas") from None
        return pandas.DataFrame([asdict(row) for row in self.rows])

    def table(self) -> Table:
        """Return a row per network that could be had, and what is judged as the title."""
        heads = ("network", "licence", "Recall@1", "MAP@R", "ms", "MB", "px")
        labelled = any(row.map_at_r is not None for row in self.rows)
        rows = tuple(
            _cells(row, best=labelled and row is self.rows[0]) for row in self.rows if not row.problem
        )
        if labelled:
            return Table(heads, rows, title=self.about, words=2)
        return Table((*heads[:2], *heads[4:]), tuple((*row[:2], *row[4:]) for row in rows), self.about, 2)

    def problems(self) -> list[str]:
        """Return a line for each network that could not be had."""
        return [f"{row.name}: {row.problem}" for row in self.rows if row.problem]

    def __repr__(self) -> str:
        width = max(len(row.name) for row in self.rows)
        lines = (f"{row.name:{width}}  {_line(row)}" for row in self.rows)
        return "\n".join([f"Backbones: {self.about}", *lines])

    def _repr_html_(self) -> str:
        return self.table().html()


def _line(row: JudgedBackbone) -> str:
    if row.problem:
        return row.problem
    figures = {
        "Recall@1": row.recall_at_1 and _percent(row.recall_at_1),
        "MAP@R": row.map_at_r and _percent(row.map_at_r),
        "ms an image": row.milliseconds and f"{row.milliseconds:,.0f}",
        "MB": row.megabytes and f"{row.megabytes:,.0f}",
    }
    return ", ".join(f"{name} {value}" for name, value in figures.items() if value)


def _cells(row: JudgedBackbone, *, best: bool) -> tuple[Cell, ...]:
    recall = _with_interval(row.recall_at_1, row.recall_low, row.recall_high)
    mean = _with_interval(row.map_at_r, row.map_low, row.map_high)
    rest = (f"{row.milliseconds or 0:,.0f}", f"{row.megabytes or 0:,.0f}", str(row.crop or ""))
    figures = (Cell(recall, best), Cell(mean, best))
    return (Cell(row.name), Cell(row.licence), *figures, *(Cell(text) for text in rest))


def _with_interval(value: float | None, low: float | None, high: float | None) -> str:
    if value is None:
        return ""
    return f"{_percent(value)} ({_percent(low)}–{_percent(high)})"


def _percent(value: float | None) -> str:
    return f"{100 * (value or 0.0):.1f}"
