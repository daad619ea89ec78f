"""What an index answers: rows that show themselves, in a terminal, in a notebook and as a data frame."""

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from markupsafe import Markup

from softwarp.files import printable

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from softwarp.index.images import IndexedImage

SHOWN = 10  # rows in a terminal
DRAWN = 50  # rows in a notebook

Finding = TypeVar("Finding", bound="DataclassInstance")
Thumbnails = Callable[[Sequence[int]], Mapping[int, bytes]]  # ids -> a JPEG each, as far as there are any


@dataclass(frozen=True)
class Neighbour:
    """An image that a query has found."""

    query: int  # its number among the queries
    rank: int  # 1 is the nearest
    distance: float
    label: str | None
    path: str  # relative to the index's root
    id: int
    digest: str = field(repr=False)  # a hash of the file's content


@dataclass(frozen=True)
class ImageGroup:
    """Images that belong together, by id, with the distance of each to the first."""

    ids: list[int]
    distances: list[float]


@dataclass(frozen=True)
class Member:
    """An image of a group, and how far it is from the group's first one."""

    group: int  # its number, from 1
    distance: float
    label: str | None
    path: str
    id: int


@dataclass(frozen=True)
class Outlier:
    """An image, the class that most of its neighbours have, and by how much that one outvotes its label."""

    score: float  # the share of votes for `suggested` minus that for `label`: 1 if all say otherwise
    label: str
    suggested: str
    path: str
    id: int


@dataclass(frozen=True)
class Answer:
    """The class of a query, and what it rests on."""

    query: str  # its file, or its number
    label: str | None  # the best guess if it is accepted; None: none of the classes
    guess: str  # the class with the most votes
    confidence: float  # how often such a guess is right, 0 to 1; NaN without a calibration
    share: float  # its share of the votes
    distance: float  # to the nearest image that voted so, as `search` gives it
    sureness: float = field(repr=False)
    ids: list[int] = field(repr=False)  # those of the neighbours
    distances: list[float] = field(repr=False)


class Findings(Generic[Finding]):
    """A sequence of dataclasses, `rows`, that shows itself.

    A column is shown unless its field says `repr=False`; a row with an `id` is drawn with its thumbnail.
    """

    rows: Sequence[Finding]
    thumbnails: Thumbnails | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.rows)

    @overload
    def __getitem__(self, place: int) -> Finding: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Finding]: ...
    def __getitem__(self, place: int | slice) -> Finding | Sequence[Finding]:
        return self.rows[place]

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame with a line per row."""
        try:
            import pandas
        except ImportError:
            raise ImportError("a data frame needs pandas: pip install pandas") from None
        return pandas.DataFrame([asdict(row) for row in self.rows])

    def __repr__(self) -> str:
        name = type(self).__name__
        if not self.rows:
            return f"{name}: nothing found"
        lines = [_heads(self.rows[0]), *(_cells(row) for row in self.rows[:SHOWN])]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        padded = ("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
        return "\n".join([f"{name}: {_count(len(self))}", *padded, *_more(len(self), SHOWN)])

    def _repr_html_(self) -> str:
        shown = self.rows[:DRAWN]
        ids = [number for row in shown if (number := getattr(row, "id", None)) is not None]
        jpegs = self.thumbnails(ids) if self.thumbnails and ids else {}
        lines = [_line("th", ["", *_heads(row)]) for row in shown[:1]]
        lines += [_line("td", [_picture(jpegs.get(getattr(row, "id", 0))), *_cells(row)]) for row in shown]
        count = " ".join([f"{type(self).__name__}: {_count(len(self))}", *_more(len(self), DRAWN)])
        return str(Markup("<table><caption>{}</caption>{}</table>").format(count, Markup("").join(lines)))


@dataclass(frozen=True, repr=False)
class Neighbours(Findings[Neighbour]):
    """The nearest images of each query; as rows, those of all queries one after the other."""

    rows: tuple[Neighbour, ...]
    queries: tuple[tuple[Neighbour, ...], ...]
    thumbnails: Thumbnails | None = field(default=None, compare=False)

    @classmethod
    def of(
        cls, answers: "Sequence[Sequence[tuple[IndexedImage, float]]]", thumbnails: Thumbnails | None = None
    ) -> "Neighbours":
        """Return the images and distances that each query has found, nearest first."""
        queries = tuple(
            tuple(
                Neighbour(query, rank, distance, image.label, image.path, image.id, image.digest)
                for rank, (image, distance) in enumerate(answer, start=1)
            )
            for query, answer in enumerate(answers)
        )
        return cls(tuple(chain.from_iterable(queries)), queries, thumbnails)

    @property
    def ids(self) -> list[list[int]]:
        """The ids that each query has found, nearest first."""
        return [[each.id for each in found] for found in self.queries]

    @property
    def distances(self) -> list[list[float]]:
        """Their distances."""
        return [[each.distance for each in found] for found in self.queries]

    @property
    def paths(self) -> list[list[str]]:
        """Their paths, relative to the index's root."""
        return [[each.path for each in found] for found in self.queries]

    @property
    def labels(self) -> list[list[str | None]]:
        """Their classes."""
        return [[each.label for each in found] for found in self.queries]


@dataclass(frozen=True, repr=False)
class Groups(Findings[Member]):
    """Groups of images, near-duplicates or clusters; as rows, the images of all groups."""

    rows: tuple[Member, ...]
    groups: tuple[ImageGroup, ...]
    threshold: float | None = None  # the distance up to which two images are near-duplicates
    thumbnails: Thumbnails | None = field(default=None, compare=False)


@dataclass(frozen=True, repr=False)
class Outliers(Findings[Outlier]):
    """Images that their neighbours would label otherwise, the surest first."""

    rows: tuple[Outlier, ...]
    thumbnails: Thumbnails | None = field(default=None, compare=False)


@dataclass(frozen=True, repr=False)
class Answers(Findings[Answer]):
    """The classes of queries."""

    rows: tuple[Answer, ...]


def _count(rows: int) -> str:
    return "1 row" if rows == 1 else f"{rows:,} rows"


def _more(rows: int, shown: int) -> list[str]:
    return [f"... and {rows - shown:,} more"] if rows > shown else []


def _heads(row: Any) -> list[str]:
    return [each.name for each in fields(row) if each.repr]


def _cells(row: Any) -> list[str]:
    return [_text(getattr(row, name)) for name in _heads(row)]


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else printable(str(value)).replace("\n", "\\n")


def _line(tag: str, cells: Sequence[str]) -> Markup:
    return Markup("<tr>{}</tr>").format(
        Markup("").join(Markup(f"<{tag}>{{}}</{tag}>").format(each) for each in cells)
    )


def _picture(jpeg: bytes | None) -> Markup:
    content = base64.b64encode(jpeg or b"").decode()
    return Markup('<img src="data:image/jpeg;base64,{}">').format(content) if jpeg else Markup("")
