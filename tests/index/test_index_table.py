"""Errors of SQLite say what to do, in one line."""

import sqlite3
import subprocess
import sys

import numpy as np
import pytest
from support.tiny_index import vector_index

from softwarp.index import table as index_table
from softwarp.index.images import NewImage
from softwarp.index.index import Index
from softwarp.index.store import IndexStore
from softwarp.index.table import TABLE, SqliteFile

# Looks at everything in copies of an index, in each of which a page is zero.
LOOK = """
import shutil
import sys
from pathlib import Path

import numpy as np

from softwarp.index.images import NewImage
from softwarp.index.index import Index

whole, told, pages = Path(sys.argv[1]), 0, 0
looks = (
    lambda index: index.items,
    lambda index: [index.thumbnail(number) for number in index.ids],
    lambda index: index.search(index.vectors[:3], 5, where=["class=a", "path=*1*"]),
    lambda index: index.store.digests(),
    lambda index: index.remove(["3.jpg", "4.jpg"]),
    lambda index: index.append(np.ones((2, 4)), [NewImage("new.jpg"), NewImage("5.jpg")]),
)
for start in range(0, (whole / "items.sqlite").stat().st_size, 4096):
    pages += 1
    for number, look in enumerate(looks):
        folder = shutil.copytree(whole, whole.with_name(f"{start} {number}"))
        with (folder / "items.sqlite").open("r+b") as file:
            file.seek(start)
            file.write(bytes(4096))
        try:
            look(Index.open(folder))
        except (ValueError, OSError) as error:
            assert "\\n" not in str(error)
            told += "build the index again" in str(error)
print(pages, told)
"""


def filled(folder):
    index = vector_index(folder, np.eye(4, dtype=np.float32))
    items = [NewImage(f"{row}.jpg", "ab"[row % 2], b"digest %d" % row, b"jpeg" * 400) for row in range(20)]
    index.append(np.random.default_rng(0).standard_normal((20, 4)), items)
    return index


def test_pages_of_zeros_are_told(tmp_path):
    filled(tmp_path / "whole")
    words = [sys.executable, "-c", LOOK, tmp_path / "whole"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    pages, told = map(int, done.stdout.split())
    assert told > pages > 5


def test_a_full_disk_is_told_and_leaves_the_index_whole(tmp_path):
    index = filled(tmp_path)
    pages = index.store.table.execute("PRAGMA page_count")[0][0]
    index.store.table.execute(f"PRAGMA max_page_count = {pages}")  # of this connection alone
    items = [NewImage(f"new {row}.jpg", thumbnail=b"jpeg" * 4000) for row in range(20)]
    with pytest.raises(OSError, match=r"items\.sqlite: the disk is full.*same command again"):
        index.append(np.ones((20, 4)), items)
    assert len(index) == len(Index.open(tmp_path).items) == 20
    again = Index.open(tmp_path)
    again.append(np.ones((20, 4)), items)
    assert len(again) == len(again.items) == len(Index.open(tmp_path)) == 40


def test_a_full_disk_is_told_for_the_other_files_too(tmp_path, monkeypatch):
    index = filled(tmp_path)

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("softwarp.index.store.os.fsync", full)
    with pytest.raises(OSError, match=r"vectors-1\.f32 cannot be written \(No space.*same command"):
        index.append(np.ones((1, 4)), [NewImage("new.jpg")])
    monkeypatch.undo()
    index.append(np.ones((1, 4)), [NewImage("new.jpg")])
    assert len(index) == len(index.items) == 21


def test_a_full_disk_is_told_for_the_approximate_index(tmp_path, monkeypatch):
    monkeypatch.setattr("faiss.write_index", write_nothing)
    with pytest.raises(OSError, match=r"search-0-1\.faiss cannot be written \(the disk is full\)"):
        vector_index(tmp_path, np.eye(4, dtype=np.float32), kind="hnsw")
    assert len(Index.open(tmp_path)) == 4
    monkeypatch.undo()
    Index.open(tmp_path).append(np.ones((1, 4)), [NewImage("new.jpg")])
    assert Index.open(tmp_path).kind == "hnsw"
    assert not list(tmp_path.glob(".*"))


def write_nothing(index, path):
    raise RuntimeError("Error in write_index: write error in x: 0 != 4 (No space left on device)")


def test_a_table_that_is_held_or_may_not_be_written_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(index_table, "WAIT", 0.01)
    path = tmp_path / "table"
    table, other = SqliteFile(path), sqlite3.connect(path, isolation_level=None)
    table.execute("CREATE TABLE words (word TEXT)")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(OSError, match=r"table: another process.*try again"):
        table.execute("SELECT * FROM words")
    other.execute("COMMIT")
    other.close()
    table.execute("PRAGMA query_only = 1")
    with pytest.raises(OSError, match=r"table: it may not be written"), table.transaction("IMMEDIATE"):
        table.execute("INSERT INTO words VALUES ('x')")
    with table.transaction("DEFERRED"):  # the one before has ended
        assert table.execute("SELECT * FROM words") == []
    with pytest.raises(OSError, match=r"gone/table: .*cannot be opened"):
        SqliteFile(tmp_path / "gone" / "table")
    with pytest.raises(ValueError, match=r"no such table: absent.*build the index again"):
        table.execute("SELECT * FROM absent")


def test_a_setting_that_is_not_json_is_told(tmp_path):
    filled(tmp_path).store.table.execute("UPDATE settings SET value = '[' WHERE name = 'root'")
    with pytest.raises(ValueError, match=rf"{TABLE} cannot be read.*build the index again"):
        IndexStore(tmp_path)
