"""Vectors, items and thumbnails in a folder, whole after a crash at any moment.

`vectors-G.f32` and `ids-G.i64` hold a row per vector and only grow; `items.sqlite` holds everything else. A
batch is appended to the two files first and confirmed by one transaction, which also says how many rows
count. What a crash leaves beyond them is cut off by the next writer. Removed rows stay until `compact`
writes the next generation G of both files.
"""

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softwarp.files import locked_folder

TABLE = "items.sqlite"
SCHEMA = """
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE items (id INTEGER PRIMARY KEY, path BLOB NOT NULL UNIQUE, label BLOB, digest BLOB NOT NULL);
CREATE INDEX labels ON items (label);
CREATE TABLE thumbnails (id INTEGER PRIMARY KEY, jpeg BLOB NOT NULL);
CREATE TABLE removed (row INTEGER PRIMARY KEY);
CREATE TABLE excluded (path BLOB PRIMARY KEY);
"""
CORRECTED = "CREATE TABLE IF NOT EXISTS corrected (path BLOB PRIMARY KEY, label BLOB NOT NULL)"
VERSION = 1
WAIT = 60.0  # seconds for another process to finish its transaction
BLOCK = 65536  # rows that are copied at a time

Rows = NDArray[np.int64]
Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Item:
    """An image of an index. Names that are not UTF-8 are as `os.fsdecode` returns them."""

    id: int
    path: str  # relative to the index's root, with forward slashes; absolute outside of it
    label: str | None  # the name of its class
    digest: str  # of the file's content


@dataclass(frozen=True)
class NewItem:
    """What `append` needs of an image besides its vector; it replaces the item of the same path."""

    path: str
    label: str | None = None
    digest: bytes = b""
    thumbnail: bytes | None = None


class Store:
    """The folder of an index; `create` makes one. Reading is safe from several threads."""

    def __init__(self, folder: Path) -> None:
        if not (folder / TABLE).is_file():
            words = f"{folder} -o {folder}.index" if folder.is_dir() else f"FOLDER -o {folder}"
            raise FileNotFoundError(f"{folder} is not an index; make one with `softwarp index RUN {words}`")
        self.folder = folder
        self.table = sqlite3.connect(
            folder / TABLE, timeout=WAIT, check_same_thread=False, isolation_level=None
        )
        self.reload()

    @classmethod
    def create(cls, folder: Path, *, dimensions: int, **settings: Any) -> "Store":
        """Return a new, empty store with these settings."""
        folder.mkdir(parents=True, exist_ok=True)
        with locked_folder(folder):
            if not (folder / TABLE).exists():
                _create(folder, {"dimensions": dimensions, **settings})
        return cls(folder)

    def reload(self) -> None:
        """Look at what is confirmed by now."""
        with self._transaction("DEFERRED"):
            try:
                stored = self.table.execute("SELECT name, value FROM settings").fetchall()
            except sqlite3.DatabaseError as error:
                raise ValueError(
                    f"{self.folder / TABLE} cannot be read ({error}); build the index again"
                ) from None
            removed = self.table.execute("SELECT row FROM removed ORDER BY row").fetchall()
        self.settings: dict[str, Any] = {name: json.loads(value) for name, value in stored}
        if self.settings.get("version") != VERSION:
            raise ValueError(f"{self.folder} was made by another version of softwarp; build the index again")
        self.removed: Rows = np.array([row for (row,) in removed], np.int64)
        shape = (self.settings["rows"], self.settings["dimensions"])
        self.vectors: Vectors = self._map("vectors", np.dtype("<f4"), shape)
        self.ids: Rows = self._map("ids", np.dtype("<i8"), shape[:1])

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep other writers out, and cut off what a crash has left."""
        with locked_folder(self.folder):
            self.reload()
            rows, dimensions = self.settings["rows"], self.settings["dimensions"]
            for name, size in (("vectors", rows * dimensions * 4), ("ids", rows * 8)):
                os.truncate(self._path(name), size)
            keep = {self._path(name).name for name in ("vectors", "ids")} | {self.settings.get("search")}
            for path in self.folder.iterdir():
                if path.suffix in (".f32", ".i64", ".faiss") and path.name not in keep:
                    path.unlink()
            yield

    def append(self, vectors: Vectors, items: Sequence[NewItem]) -> None:
        """Add a row per item, safe on disk when this returns; an item of the same path is replaced."""
        first = int(self.settings["next_id"])
        ids = np.arange(first, first + len(items), dtype="<i8")
        _extend(self._path("vectors"), np.ascontiguousarray(vectors, "<f4"))
        _extend(self._path("ids"), ids)
        with self._transaction("IMMEDIATE"):
            self._delete(self._ids_of([item.path for item in items]))
            corrected = self._corrected()
            rows = [
                (
                    number,
                    os.fsencode(item.path),
                    corrected.get(
                        os.fsencode(item.path), None if item.label is None else os.fsencode(item.label)
                    ),
                    item.digest,
                )
                for number, item in zip(ids.tolist(), items, strict=True)
            ]
            self.table.executemany("INSERT INTO items VALUES (?, ?, ?, ?)", rows)
            pictures = [
                (number, item.thumbnail)
                for number, item in zip(ids.tolist(), items, strict=True)
                if item.thumbnail is not None
            ]
            self.table.executemany("INSERT INTO thumbnails VALUES (?, ?)", pictures)
            self._put(rows=self.settings["rows"] + len(items), next_id=first + len(items))
        self.reload()

    def remove(self, paths: Iterable[str], *, exclude: bool = False) -> int:
        """Remove the items of these paths and return how many there were.

        Args:
            exclude: remember the paths, so that `refresh` does not add them again.
        """
        paths = list(paths)
        ids = self._ids_of(paths)
        with self._transaction("IMMEDIATE"):
            self._delete(ids)
            if exclude:
                values = [(os.fsencode(path),) for path in paths]
                self.table.executemany("INSERT OR IGNORE INTO excluded VALUES (?)", values)
        self.reload()
        return len(ids)

    def labels_of(self, paths: Iterable[str]) -> dict[str, str | None]:
        """Return the labels of those of these paths that are there."""
        asked = "SELECT label FROM items WHERE path = ?"
        found = {path: self.table.execute(asked, (os.fsencode(path),)).fetchone() for path in paths}
        return {
            path: None if row[0] is None else os.fsdecode(row[0])
            for path, row in found.items()
            if row is not None
        }

    def relabel(self, labels: Mapping[str, str]) -> int:
        """Give the items of these paths other labels, for good, and return how many had another one."""
        values = [(os.fsencode(path), os.fsencode(label)) for path, label in labels.items()]
        with self._transaction("IMMEDIATE"):
            self.table.execute(CORRECTED)
            self.table.executemany("INSERT OR REPLACE INTO corrected VALUES (?, ?)", values)
            changed = self.table.executemany(
                "UPDATE items SET label = ?2 WHERE path = ?1 AND label IS NOT ?2", values
            ).rowcount
            if changed:
                self._put(relabelled=self.settings.get("relabelled", 0) + 1)
        self.reload()
        return changed

    def include(self, paths: Iterable[str]) -> None:
        """Forget that these paths were excluded."""
        with self._transaction("IMMEDIATE"):
            values = [(os.fsencode(path),) for path in paths]
            self.table.executemany("DELETE FROM excluded WHERE path = ?", values)

    def excluded(self) -> set[str]:
        """Return the paths that were removed by name."""
        return {os.fsdecode(path) for (path,) in self.table.execute("SELECT path FROM excluded")}

    def compact(self) -> None:
        """Write both files again without the removed rows."""
        generation = self.settings["generation"] + 1
        keep = self.live_rows()
        for name, array in (("vectors", self.vectors), ("ids", self.ids)):
            path = self._path(name, generation)
            path.write_bytes(b"")
            for start in range(0, len(keep), BLOCK):
                _extend(path, array[keep[start : start + BLOCK]])
        old = [self._path(name) for name in ("vectors", "ids")]
        with self._transaction("IMMEDIATE"):
            self.table.execute("DELETE FROM removed")
            self._put(generation=generation, rows=len(keep), search=None, indexed=0)
        self.reload()
        for path in old:
            path.unlink(missing_ok=True)

    def put(self, **settings: Any) -> None:
        """Change settings."""
        with self._transaction("IMMEDIATE"):
            self._put(**settings)
        self.settings |= settings

    def live_rows(self) -> Rows:
        """Return the rows that are not removed, ascending."""
        return np.delete(np.arange(len(self.ids)), self.removed)

    def rows_of(self, ids: Iterable[int]) -> Rows:
        """Return the rows of these items; both ascend together."""
        return np.searchsorted(self.ids, np.fromiter(ids, np.int64))

    def items(self, ids: Sequence[int] | None = None) -> list[Item]:
        """Return these items in their order, or all of them by id; an unknown one is a ValueError."""
        if ids is None:
            return [_item(row) for row in self.table.execute("SELECT * FROM items ORDER BY id")]
        found = [
            self.table.execute("SELECT * FROM items WHERE id = ?", (int(each),)).fetchone() for each in ids
        ]
        if None in found:
            raise ValueError(f"{self.folder} has no image with id {ids[found.index(None)]}")
        return [_item(row) for row in found]

    def select(self, where: Iterable[tuple[str, str]]) -> list[int]:
        """Return the ids, ascending, of the items for which all hold: (`class`, name) or (`path`, glob)."""
        where = list(where)
        classes = [os.fsencode(value) for name, value in where if name == "class"]
        globs = [value for name, value in where if name == "path"]
        condition = " AND ".join(["label = ?"] * len(classes)) or "1"
        found = self.table.execute(f"SELECT id, path FROM items WHERE {condition} ORDER BY id", classes)
        return [
            number
            for number, path in found
            if all(fnmatchcase(os.fsdecode(path), pattern) for pattern in globs)
        ]

    def classes(self) -> dict[str, int]:
        """Return how many items each class has."""
        counted = self.table.execute(
            "SELECT label, COUNT(*) FROM items WHERE label IS NOT NULL GROUP BY label"
        )
        return {os.fsdecode(label): count for label, count in counted}

    def digests(self) -> dict[str, bytes]:
        """Return the digest of every item by path."""
        return {
            os.fsdecode(path): digest for path, digest in self.table.execute("SELECT path, digest FROM items")
        }

    def thumbnail(self, number: int) -> bytes:
        """Return the thumbnail of an item, a JPEG."""
        found = self.table.execute("SELECT jpeg FROM thumbnails WHERE id = ?", (int(number),)).fetchone()
        if found is None:
            raise ValueError(f"{self.folder} has no thumbnail of id {number}")
        return bytes(found[0])

    def _corrected(self) -> dict[bytes, bytes]:
        """The labels that stay whatever folder a file is in, inside a transaction."""
        self.table.execute(CORRECTED)  # indexes of earlier versions have no such table
        return dict(self.table.execute("SELECT path, label FROM corrected").fetchall())

    def _delete(self, ids: Sequence[int]) -> None:
        """Forget items and mark their rows, inside a transaction."""
        self.table.executemany(
            "INSERT INTO removed VALUES (?)", [(row,) for row in self.rows_of(ids).tolist()]
        )
        for table in ("items", "thumbnails"):
            self.table.executemany(f"DELETE FROM {table} WHERE id = ?", [(number,) for number in ids])

    def _ids_of(self, paths: Iterable[str]) -> list[int]:
        asked = (
            self.table.execute("SELECT id FROM items WHERE path = ?", (os.fsencode(path),)).fetchone()
            for path in paths
        )
        return [number for (number,) in filter(None, asked)]

    def _put(self, **settings: Any) -> None:
        values = [(name, json.dumps(value)) for name, value in settings.items()]
        self.table.executemany("INSERT OR REPLACE INTO settings VALUES (?, ?)", values)

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[None]:
        self.table.execute(f"BEGIN {kind}")
        try:
            yield
        except BaseException:
            self.table.execute("ROLLBACK")
            raise
        self.table.execute("COMMIT")

    def _path(self, name: str, generation: int | None = None) -> Path:
        suffix = {"vectors": "f32", "ids": "i64"}[name]
        return (
            self.folder
            / f"{name}-{self.settings['generation'] if generation is None else generation}.{suffix}"
        )

    def _map(self, name: str, kind: "np.dtype[Any]", shape: tuple[int, ...]) -> NDArray[Any]:
        path, size = self._path(name), int(np.prod(shape)) * kind.itemsize
        if path.stat().st_size < size:
            raise ValueError(
                f"{path} is cut off at {path.stat().st_size:,} of {size:,} bytes; build the index again"
            )
        return np.memmap(path, kind, "r", shape=shape) if size else np.empty(shape, kind)


def _create(folder: Path, settings: dict[str, Any]) -> None:
    """Make the files; the table comes last and by renaming, so a folder without it is no index yet."""
    for name in ("vectors-0.f32", "ids-0.i64"):
        (folder / name).write_bytes(b"")
    new = folder / f".{TABLE}"
    new.unlink(missing_ok=True)
    table = sqlite3.connect(new, isolation_level=None)
    table.executescript(SCHEMA)
    start = {"version": VERSION, "generation": 0, "rows": 0, "next_id": 1, "indexed": 0, **settings}
    values = [(name, json.dumps(value)) for name, value in start.items()]
    table.executemany("INSERT INTO settings VALUES (?, ?)", values)
    table.close()
    new.replace(folder / TABLE)


def _extend(path: Path, array: NDArray[Any]) -> None:
    with path.open("ab") as file:
        file.write(array.data if array.size else b"")
        file.flush()
        os.fsync(file.fileno())


def _item(row: tuple[int, bytes, bytes | None, bytes]) -> Item:
    number, path, label, digest = row
    return Item(number, os.fsdecode(path), None if label is None else os.fsdecode(label), digest.hex())
