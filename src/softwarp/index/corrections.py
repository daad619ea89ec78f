"""Corrected labels of an index: a CSV file beside it; `softwarp serve` writes it, `index apply` reads it."""

import csv
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from softwarp.data.trees import absolute, name_of
from softwarp.files import locked_file, write_csv
from softwarp.index.index import Index

COLUMNS = ("path", "label")
LOCK = "labels.lock"  # a file in the folder of the index


@dataclass(frozen=True)
class Applied:
    """What `apply` did."""

    changed: int
    unchanged: int
    unknown: list[str]  # paths of no image of the index


class Corrections:
    """The corrections beside an index. Several processes and threads may write; a crash loses none."""

    def __init__(self, folder: Path) -> None:
        self.path = beside(folder)
        self._lock = folder / LOCK

    def read(self) -> dict[str, str]:
        """Return the label of every path that was corrected."""
        return read_corrections(self.path) if self.path.exists() else {}

    def put(self, path: str, label: str | None) -> None:
        """Correct the label of an image; None takes the correction back."""
        with locked_file(self._lock):
            labels = self.read()
            labels.pop(path, None)
            labels |= {} if label is None else {path: label}
            # Quoted, as names may hold a \r.
            write_csv(self.path, [COLUMNS, *labels.items()], quoting=csv.QUOTE_ALL)


def beside(folder: Path) -> Path:
    """Return where the corrections of an index are.

    >>> beside(Path("/data/photos.index")).as_posix()
    '/data/photos.index.labels.csv'
    """
    place = absolute(folder)
    return place.with_name(f"{place.name}.labels.csv")


def apply(index: Index, file: Path) -> Applied:
    """Give images the labels of a CSV file with the columns path and label; nothing is embedded again.

    Paths are those of the index's items, or of their files. The labels stay when `refresh` finds that a file
    has changed.
    """
    rows = read_corrections(file)
    with index.store.writing():
        exact = index.store.labels_of(rows)
        names = {path: path if path in exact else name_of(Path(path), index.root) for path in rows}
        known = index.store.labels_of(names.values())
        found = {name: rows[path] for path, name in names.items() if name in known}
        unknown = [path for path, name in names.items() if name not in known]
        changed = index.store.relabel(found) if found else 0
    index.__dict__.pop("items", None)  # read again when they are next asked for
    return Applied(changed, len(found) - changed, unknown)


def read_corrections(file: Path) -> dict[str, str]:
    """Return the label of each path in a CSV file; other columns are left alone."""
    number = 1
    labels: dict[str, str] = {}
    try:
        with file.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as lines:
            head = lines.readline()
            separator = ";" if head.count(";") > head.count(",") else ","
            reader = csv.DictReader(chain([head], lines), delimiter=separator, strict=True)
            columns = {name.strip().lower(): name for name in reader.fieldnames or ()}
            if not set(COLUMNS) <= set(columns):
                raise ValueError(f"{file}, line 1: the columns must be path,label; got {head.strip()}")
            for row in reader:
                number = reader.line_num
                _add(labels, row[columns["path"]], row[columns["label"]], f"{file}, line {number}")
    except csv.Error as error:
        raise ValueError(
            f"{file} cannot be read after line {number}: {error}; close every quote and save it as CSV"
        ) from None
    return labels


def _add(labels: dict[str, str], path: str | None, label: str | None, place: str) -> None:
    if not path or not label or not label.strip():
        raise ValueError(f"{place}: path and label must not be empty")
    if labels.setdefault(path, label.strip()) != label.strip():
        raise ValueError(f"{place}: {path} has another label further up; keep one of them")
