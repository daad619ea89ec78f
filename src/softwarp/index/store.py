"""Vectors, items and thumbnails in a folder, whole after a crash at any moment.

`vectors-G.f32` and `ids-G.i64` hold a row per vector and only grow; `items.sqlite` holds everything else. A
batch is appended to the two files first and confirmed by one transaction, which also says how many rows
count. What a crash leaves beyond them is cut off by the next writer. Removed rows stay until `compact`
writes the next generation G of both files.

A store shows what was confirmed when it was opened, whatever others write meanwhile: rows of a generation
never change, an id never names another image, and removed items move to the table `past`. Readers share the
locks of the files that they have mapped. A file that is no longer current is deleted, and what is past with
it, once no reader holds it.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from softwarp.data.trees import absolute
from softwarp.files import is_locked, locked_folder
from softwarp.index.images import IndexedImage, NewImage
from softwarp.index.rows import Rows, Vectors, copy_rows, map_rows, map_whole, write_rows
from softwarp.index.table import CORRECTED, LISTED, PAST, TABLE, SqliteFile, create_table, read_index_settings

VERSION = 1
START = {"version": VERSION, "generation": 0, "rows": 0, "next_id": 1, "indexed": 0, "change": 0}
AMONG = "(SELECT value FROM json_each(?))"  # ids as one parameter, of which a statement has a limited number


class IndexStore:
    """The folder of an index; `create` makes one. Reading is safe from several threads."""

    def __init__(self, folder: Path) -> None:
        if not (folder / TABLE).is_file():
            words = f"{folder} -o {folder}.index" if folder.is_dir() else f"FOLDER -o {folder}"
            raise FileNotFoundError(f"{folder} is not an index; make one with `softwarp index RUN {words}`")
        self.folder = folder
        self.table = SqliteFile(folder / TABLE)
        self.table.execute(PAST)
        self.reload()

    @classmethod
    def create(cls, folder: Path, *, dimensions: int, **settings: Any) -> "IndexStore":
        """Return a new, empty store with these settings."""
        folder.mkdir(parents=True, exist_ok=True)
        with locked_folder(folder):
            if not (folder / TABLE).exists():
                for name in ("vectors-0.f32", "ids-0.i64"):
                    (folder / name).write_bytes(b"")
                create_table(folder / TABLE, START | {"dimensions": dimensions, **settings})
        return cls(folder)

    def reload(self) -> None:
        """Look at what is confirmed by now."""
        while not self._look():
            pass

    @property
    def model_name(self) -> str:
        """The model as `softwarp.load` takes it; its folder may be in this one, wherever that is moved to."""
        name = str(self.settings["model"])
        own = absolute(self.folder / name)
        return str(own) if name and own.exists() else name

    def changed(self) -> bool:
        """Return whether another process has confirmed anything since."""
        found = self.table.execute("SELECT name, value FROM settings WHERE name = 'change'")
        return bool(read_index_settings(self.table.path, found).get("change", 0) != self.settings["change"])

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep other writers out, and cut off what a crash has left."""
        with locked_folder(self.folder):
            self.reload()
            rows, dimensions = self.settings["rows"], self.settings["dimensions"]
            for name, size in (("vectors", rows * dimensions * 4), ("ids", rows * 8)):
                os.truncate(self._path(name), size)
            self.sweep()
            yield

    def sweep(self) -> None:
        """Delete the files, and the removed items, that no reader holds any longer."""
        keep = {self._path(name).name for name in ("vectors", "ids")} | {self.settings.get("search")}
        held = {self.settings["generation"]}
        for path in self.folder.iterdir():
            if path.suffix in (".f32", ".i64", ".faiss") and path.name not in keep:
                if not is_locked(path):
                    with suppress(PermissionError):  # Windows, where a mapped file stays
                        path.unlink()
                if (still := re.fullmatch(r"vectors-(\d+)\.f32", path.name)) and path.exists():
                    held.add(int(still[1]))
        over = self.table.execute("SELECT id FROM past WHERE generation < ?", [min(held)])
        if over:
            with self.table.transaction("IMMEDIATE"):
                for table in ("past", "thumbnails"):
                    self.table.executemany(f"DELETE FROM {table} WHERE id = ?", over)

    def append(self, vectors: Vectors, items: Sequence[NewImage]) -> None:
        """Add a row per item, safe on disk when this returns; an item of the same path is replaced."""
        self._check(vectors, items)
        first, start = int(self.settings["next_id"]), int(self.settings["rows"])
        ids = np.arange(first, first + len(items), dtype="<i8")
        write_rows(self._path("vectors"), start, np.ascontiguousarray(vectors, "<f4"))
        write_rows(self._path("ids"), start, ids)
        new = list(enumerate(items, start=first))
        with self._changing() as change:
            self._delete(self._ids_of([item.path for item in items]), change)
            corrected = self._corrected()
            rows = [item.stored(number, corrected) for number, item in new]
            pictures = [(number, item.thumbnail) for number, item in new if item.thumbnail is not None]
            self.table.executemany("INSERT INTO items VALUES (?, ?, ?, ?)", rows)
            self.table.executemany("INSERT INTO thumbnails VALUES (?, ?)", pictures)
            self._put(rows=start + len(items), next_id=first + len(items))
        self.reload()

    def remove(self, paths: Iterable[str], *, exclude: bool = False) -> int:
        """Remove the items of these paths and return how many there were.

        Args:
            exclude: remember the paths, so that `refresh` does not add them again.
        """
        paths = list(dict.fromkeys(paths))
        ids = self._ids_of(paths)
        with self._changing() as change:
            self._delete(ids, change)
            if exclude:
                self.table.executemany("INSERT OR IGNORE INTO excluded VALUES (?)", _encoded(paths))
        self.reload()
        return len(ids)

    def labels_of(self, paths: Iterable[str]) -> dict[str, str | None]:
        """Return the labels of those of these paths that are there."""
        query = "SELECT label FROM items WHERE path = ?"
        found = {path: self.table.execute(query, [os.fsencode(path)]) for path in paths}
        labels = {path: rows[0][0] for path, rows in found.items() if rows}
        return {path: None if label is None else os.fsdecode(label) for path, label in labels.items()}

    def relabel(self, labels: Mapping[str, str], *, keep: bool = True) -> int:
        """Give the items of these paths other labels and return how many had another one.

        Args:
            keep: for good, whatever a folder or a list says later; otherwise labels that are kept stay.
        """
        if not keep:
            kept = self._corrected()
            labels = {path: label for path, label in labels.items() if os.fsencode(path) not in kept}
        values = [(os.fsencode(path), os.fsencode(label)) for path, label in labels.items()]
        before = self.labels_of(labels)
        changed = sum(before.get(path, label) != label for path, label in labels.items())
        if not keep and not changed:
            return 0
        with self._changing():
            self.table.execute(CORRECTED)
            if keep:
                self.table.executemany("INSERT OR REPLACE INTO corrected VALUES (?, ?)", values)
            self.table.executemany("UPDATE items SET label = ?2 WHERE path = ?1 AND label IS NOT ?2", values)
            if changed:
                self._put(relabelled=self.settings.get("relabelled", 0) + 1)
        self.reload()
        return changed

    def include(self, paths: Iterable[str]) -> None:
        """Forget that these paths were excluded."""
        with self.table.transaction("IMMEDIATE"):
            self.table.executemany("DELETE FROM excluded WHERE path = ?", _encoded(paths))

    def excluded(self) -> set[str]:
        """Return the paths that were removed by name."""
        return {os.fsdecode(path) for (path,) in self.table.execute("SELECT path FROM excluded")}

    def put_list(self, source: str, paths: Iterable[str]) -> None:
        """Remember the paths that a CSV file lists now."""
        with self.table.transaction("IMMEDIATE"):
            self.table.execute(LISTED)
            self.table.execute("DELETE FROM listed WHERE source = ?", [os.fsencode(source)])
            values = [(os.fsencode(path), os.fsencode(source)) for path in paths]
            self.table.executemany("INSERT OR IGNORE INTO listed VALUES (?, ?)", values)

    def lists(self) -> dict[str, set[str]]:
        """Return the paths that each CSV file listed when it was last read."""
        self.table.execute(LISTED)
        found: dict[str, set[str]] = {}
        for path, source in self.table.execute("SELECT path, source FROM listed"):
            found.setdefault(os.fsdecode(source), set()).add(os.fsdecode(path))
        return found

    def compact(self) -> None:
        """Write both files again without the removed rows."""
        generation = self.settings["generation"] + 1
        keep = self.live_rows()
        copy_rows(self.vectors, keep, self._path("vectors", generation))
        copy_rows(self.ids, keep, self._path("ids", generation))
        with self._changing():
            self.table.execute("DELETE FROM removed")
            self._put(generation=generation, rows=len(keep), search=None, indexed=0)
        self.reload()
        self.sweep()

    def put(self, **settings: Any) -> None:
        """Change settings."""
        with self._changing():
            self._put(**settings)
        self.settings |= settings

    def live_rows(self) -> Rows:
        """Return the rows that are not removed, ascending."""
        return np.delete(np.arange(len(self.ids)), self.removed)

    def rows_of(self, ids: Iterable[int]) -> Rows:
        """Return the rows of these items; both ascend together."""
        return np.searchsorted(self.ids, np.fromiter(ids, np.int64))

    def items(self, ids: Sequence[int] | None = None) -> list[IndexedImage]:
        """Return these items in their order, or all of them by id; an unknown one is a ValueError."""
        if ids is None:
            return [
                IndexedImage.of(row) for row in self.table.execute(f"SELECT * FROM {self._seen} ORDER BY id")
            ]
        found = self.find(ids)
        unknown = [each for each in ids if each not in found]
        if unknown:
            raise ValueError(f"{self.folder} has no image with id {unknown[0]}")
        return [found[each] for each in ids]

    def find(self, ids: Iterable[int]) -> dict[int, IndexedImage]:
        """Return those of these items that there are, by id, with one statement however many they are."""
        rows = self.table.execute(f"SELECT * FROM {self._seen} WHERE id IN {AMONG}", [_numbers(ids)])
        return {row[0]: IndexedImage.of(row) for row in rows}

    def select(self, where: Iterable[tuple[str, str]]) -> list[int]:
        """Return the ids, ascending, of the items for which all hold: (`class`, name) or (`path`, glob)."""
        where = list(where)
        classes = [os.fsencode(value) for name, value in where if name == "class"]
        globs = [value for name, value in where if name == "path"]
        condition = " AND ".join(["label = ?"] * len(classes)) or "1"
        found = self.table.execute(
            f"SELECT id, path FROM {self._seen} WHERE {condition} ORDER BY id", classes
        )
        return [
            number
            for number, path in found
            if all(fnmatchcase(os.fsdecode(path), pattern) for pattern in globs)
        ]

    def classes(self) -> dict[str, int]:
        """Return how many items each class has."""
        # Counted part by part, by the index on labels, in one statement: a writer moves items between parts.
        counts = " UNION ALL ".join(
            f"SELECT label, COUNT(*) AS count FROM {part} AND label IS NOT NULL GROUP BY label"
            for part in self._parts
        )
        found = self.table.execute(f"SELECT label, SUM(count) FROM ({counts}) GROUP BY label")
        return {os.fsdecode(label): count for label, count in found}

    def digests(self) -> dict[str, bytes]:
        """Return the digest of every item by path."""
        return {
            os.fsdecode(path): digest
            for path, digest in self.table.execute(f"SELECT path, digest FROM {self._seen}")
        }

    def thumbnail(self, number: int) -> bytes:
        """Return the thumbnail of an item, a JPEG."""
        found = self.thumbnails([number])
        if not found:
            raise ValueError(f"{self.folder} has no thumbnail of id {number}")
        return found[number]

    def thumbnails(self, ids: Iterable[int]) -> dict[int, bytes]:
        """Return the thumbnails of those of these items that have one, by id."""
        query = (
            f"SELECT id, jpeg FROM thumbnails WHERE id IN (SELECT id FROM {self._seen} WHERE id IN {AMONG})"
        )
        return {number: bytes(jpeg) for number, jpeg in self.table.execute(query, [_numbers(ids)])}

    def search_file(self) -> Path | None:
        """Return the file of the approximate index; None if there is none, or only a part of it."""
        return self.folder / self.settings["search"] if self._search is not None else None

    def _look(self) -> bool:
        """Read what is confirmed and map its files; return whether these were still current then."""
        with self.table.transaction("DEFERRED"):
            stored = self.table.execute("SELECT name, value FROM settings")
            removed = self.table.execute("SELECT row FROM removed ORDER BY row")
        self.settings: dict[str, Any] = {"change": 0} | read_index_settings(self.table.path, stored)
        if self.settings.get("version") != VERSION:
            raise ValueError(f"{self.folder} was made by another version of softwarp; build the index again")
        self.removed: Rows = np.array([row for (row,) in removed], np.int64)
        shape = (self.settings["rows"], self.settings["dimensions"])
        try:
            self.vectors: Vectors = map_rows(self._path("vectors"), "<f4", shape)
            self.ids: Rows = map_rows(self._path("ids"), "<i8", shape[:1])
        except FileNotFoundError:
            if self._is_current():
                raise
            return False
        # Mapped so that the file stays; None if there is none, or it is not whole.
        search, size = self.settings.get("search"), self.settings.get("search_bytes", 1)
        self._search = map_whole(self.folder / search, size) if search else None
        before = f"id < {self.settings['next_id']:d}"
        self._parts = (
            f"items WHERE {before}",
            f"past WHERE {before} AND change > {self.settings['change']:d}",
        )
        union = " UNION ALL ".join(f"SELECT id, path, label, digest FROM {part}" for part in self._parts)
        self._seen = f"({union})"
        return self._is_current()

    def _is_current(self) -> bool:
        """Whether the files that were read about are still those of the index: held now, they stay."""
        query = "SELECT name, value FROM settings WHERE name IN ('generation', 'search')"
        found = read_index_settings(self.table.path, self.table.execute(query))
        return all(found.get(name) == self.settings.get(name) for name in ("generation", "search"))

    def _check(self, vectors: Vectors, items: Sequence[NewImage]) -> None:
        """Refuse what does not belong together before anything is written."""
        shape = (len(items), self.settings["dimensions"])
        if vectors.shape != shape:
            raise ValueError(
                f"{len(items):,} items need vectors of shape {list(shape)}, not {list(vectors.shape)}"
            )
        twice = [path for path, count in Counter(item.path for item in items).items() if count > 1]
        if twice:
            raise ValueError(f"{twice[0]} is there twice; give each path one vector")

    def _corrected(self) -> dict[bytes, bytes]:
        """The labels that stay whatever folder a file is in, inside a transaction."""
        self.table.execute(CORRECTED)
        return dict(self.table.execute("SELECT path, label FROM corrected"))

    def _delete(self, ids: Sequence[int], change: int) -> None:
        """Move items to the past and mark their rows, inside a transaction."""
        self.table.executemany(
            "INSERT INTO removed VALUES (?)", [(row,) for row in self.rows_of(ids).tolist()]
        )
        stamp = (change, self.settings["generation"])
        self.table.executemany(
            "INSERT INTO past SELECT id, path, label, digest, ?, ? FROM items WHERE id = ?",
            [(*stamp, number) for number in ids],
        )
        self.table.executemany("DELETE FROM items WHERE id = ?", [(number,) for number in ids])

    def _ids_of(self, paths: Iterable[str]) -> list[int]:
        query = "SELECT id FROM items WHERE path = ?"
        return [number for name in _encoded(paths) for (number,) in self.table.execute(query, name)]

    def _put(self, **settings: Any) -> None:
        values = [(name, json.dumps(value)) for name, value in settings.items()]
        self.table.executemany("INSERT OR REPLACE INTO settings VALUES (?, ?)", values)

    @contextmanager
    def _changing(self) -> Iterator[int]:
        """A transaction, with the number of the change that it makes."""
        change = self.settings["change"] + 1
        with self.table.transaction("IMMEDIATE"):
            yield change
            self.table.execute("INSERT OR REPLACE INTO settings VALUES ('change', ?)", [json.dumps(change)])
        self.settings["change"] = change

    def _path(self, name: str, generation: int | None = None) -> Path:
        number = self.settings["generation"] if generation is None else generation
        return self.folder / f"{name}-{number}.{'f32' if name == 'vectors' else 'i64'}"


def _encoded(paths: Iterable[str]) -> list[tuple[bytes]]:
    return [(os.fsencode(path),) for path in paths]


def _numbers(ids: Iterable[int]) -> str:
    return json.dumps([int(each) for each in ids])
