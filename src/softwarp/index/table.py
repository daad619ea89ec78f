"""The SQLite file of an index: its tables, and errors that say what to do.

Errors are a ValueError if the file is damaged, and an OSError otherwise.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

TABLE = "items.sqlite"
SCHEMA = """
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE items (id INTEGER PRIMARY KEY, path BLOB NOT NULL UNIQUE, label BLOB, digest BLOB NOT NULL);
CREATE INDEX labels ON items (label);
CREATE TABLE thumbnails (id INTEGER PRIMARY KEY, jpeg BLOB NOT NULL);
CREATE TABLE removed (row INTEGER PRIMARY KEY);
CREATE TABLE excluded (path BLOB PRIMARY KEY);
"""
# What was removed, by which change, for readers that have opened the index before. Indexes of earlier
# versions lack it.
PAST = """
CREATE TABLE IF NOT EXISTS past (
id INTEGER PRIMARY KEY, path BLOB NOT NULL, label BLOB, digest BLOB NOT NULL, change INTEGER NOT NULL,
generation INTEGER NOT NULL)
"""
# The labels that were corrected, kept whatever folder a file is in. Indexes of earlier versions lack it, too.
CORRECTED = "CREATE TABLE IF NOT EXISTS corrected (path BLOB PRIMARY KEY, label BLOB NOT NULL)"
# The images that a CSV file listed when it was last read: what is missing from it later is gone.
LISTED = """
CREATE TABLE IF NOT EXISTS listed (path BLOB NOT NULL, source BLOB NOT NULL, PRIMARY KEY (source, path))
"""
WAIT = 60.0  # seconds for another process to finish its transaction
CURES = {
    sqlite3.SQLITE_FULL: "the disk is full; make room, then run the same command again",
    sqlite3.SQLITE_BUSY: "another process has held it for a minute; try again when that one is done",
    sqlite3.SQLITE_LOCKED: "another process has held it for a minute; try again when that one is done",
    sqlite3.SQLITE_READONLY: "it may not be written to; look at its permissions",
    sqlite3.SQLITE_PERM: "it may not be read; look at its permissions",
    sqlite3.SQLITE_CANTOPEN: "it, or a journal beside it, cannot be opened; look at the folder's permissions",
    sqlite3.SQLITE_IOERR: "the disk gives an error; look at it, then run the same command again",
}


class SqliteFile:
    """The file, open for reading and writing from any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._telling():
            self._connection = sqlite3.connect(
                path, timeout=WAIT, check_same_thread=False, isolation_level=None
            )

    def execute(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """Run a statement and return its rows."""
        with self._telling():
            return self._connection.execute(query, values).fetchall()

    def executemany(self, query: str, values: Iterable[Sequence[Any]]) -> None:
        """Run a statement for each of the values."""
        with self._telling():
            self._connection.executemany(query, values)

    @contextmanager
    def transaction(self, kind: str) -> Iterator[None]:
        """Confirm what is done inside at its end, or nothing of it."""
        self.execute(f"BEGIN {kind}")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # after some errors SQLite has rolled back by itself
                self._connection.rollback()
            raise

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            cure = CURES.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
            if cure is None:
                raise ValueError(f"{self.path} cannot be read ({error}); build the index again") from None
            raise OSError(f"{self.path}: {cure} ({error})") from None


def create_table(path: Path, settings: dict[str, Any]) -> None:
    """Make the file with these settings, by renaming: a folder without it is no index yet."""
    new = path.with_name(f".{path.name}")
    new.unlink(missing_ok=True)
    table = SqliteFile(new)
    try:
        for statement in filter(str.strip, SCHEMA.split(";")):
            table.execute(statement)
        values = [(name, json.dumps(value)) for name, value in settings.items()]
        table.executemany("INSERT INTO settings VALUES (?, ?)", values)
    finally:
        table.close()
    new.replace(path)


def read_index_settings(path: Path, stored: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return settings as they were before they were stored."""
    try:
        return {name: json.loads(value) for name, value in stored}
    except ValueError as error:
        raise ValueError(f"{path} cannot be read ({error}); build the index again") from None
