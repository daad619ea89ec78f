"""A reader keeps what it has opened, whatever a writer does meanwhile."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.tiny_index import vector_index

from softwarp.index import store
from softwarp.index.images import NewImage
from softwarp.index.index import Index
from softwarp.serve.live import LiveIndex

SCRIPT = Path(__file__).parents[1] / "support" / "readers_and_writer.py"


def gaussian(rows, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, 8)).astype(np.float32)


def items(first, count):
    return [
        NewImage(f"{row}.jpg", "ab"[row % 2], bytes([row % 256]), b"%d" % row) for row in range(first, count)
    ]


def filled(folder, kind="flat", rows=60):
    index = vector_index(folder, gaussian(1), kind=kind)
    index.append(gaussian(rows), items(0, rows))
    return index


def everything(index):
    index._forget()  # what it has cached would always be the same
    return (
        index.items,
        index.ids.tolist(),
        index.vectors.tolist(),
        index.nearest(gaussian(4, 1), 9)[0].tolist(),
        index.search(gaussian(4, 1), 9, where="class=a"),
        [index.thumbnail(number) for number in index.ids],
        index.store.classes(),
        index.store.select([("path", "*1*")]),
        len(index),
        index.kind,
    )


def add(index):
    index.append(gaussian(40, 2), items(60, 100))


def replace(index):
    index.append(gaussian(1, 3), [NewImage("5.jpg", "b", b"new", b"new")])


def remove_few(index):
    index.remove(["5.jpg", "6.jpg"])


def remove_many(index):
    index.remove([f"{row}.jpg" for row in range(30)])


def all_of_them(index):
    for change in (add, replace, remove_few, remove_many, remove_few, add, remove_many):
        change(index)


@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivfpq"])
@pytest.mark.parametrize("change", [add, replace, remove_few, remove_many, all_of_them])
def test_a_reader_keeps_what_it_has_opened(tmp_path, kind, change):
    filled(tmp_path, kind)
    reader, untouched = Index.open(tmp_path), Index.open(tmp_path)
    before = everything(reader)
    change(writer := Index.open(tmp_path))
    assert everything(reader) == before
    assert everything(untouched) == before  # which has read nothing but settings until now
    assert everything(Index.open(tmp_path)) == everything(writer) != before


def test_what_no_reader_holds_is_deleted_by_the_next_writer(tmp_path):
    filled(tmp_path, "hnsw")
    reader = Index.open(tmp_path)
    writer = Index.open(tmp_path)
    remove_many(writer)
    assert len(list(tmp_path.glob("*.f32"))) == len(list(tmp_path.glob("*.faiss"))) == 2
    assert reader.thumbnail(3) == b"1"
    del reader
    gc.collect()
    add(writer)
    assert len(list(tmp_path.glob("*.f32"))) == len(list(tmp_path.glob("*.i64"))) == 1
    assert len(list(tmp_path.glob("*.faiss"))) == 1
    assert writer.store.table.execute("SELECT COUNT(*) FROM past") == [(0,)]
    assert writer.store.table.execute("SELECT COUNT(*) FROM thumbnails") == [(len(writer),)]


@pytest.mark.parametrize("step", ["map_rows", "map_whole"])
def test_what_is_exchanged_while_an_index_is_being_opened(tmp_path, monkeypatch, step):
    filled(tmp_path, "hnsw")
    writer, opened, whole = Index.open(tmp_path), [], getattr(store, step)

    def interrupted(*inputs):
        if not opened:
            opened.append(1)
            remove_many(writer)
        return whole(*inputs)

    monkeypatch.setattr(store, step, interrupted)
    reader = Index.open(tmp_path)
    assert opened
    remove_few(writer)
    add(writer)
    assert (len(reader), reader.kind, reader.damaged) == (30, "hnsw", False)
    assert reader.items[0].path == "30.jpg"
    assert len(reader.nearest(gaussian(1), 30)[0][0]) == 30


def test_a_server_sees_what_changed_while_it_looked(tmp_path, monkeypatch):
    live, writer = LiveIndex(filled(tmp_path)), Index.open(tmp_path)
    assert live.now() is live.now()
    again = Index.reopen

    def interrupted(index):
        opened = again(index)
        if len(writer) == 58:
            remove_many(writer)
        return opened

    monkeypatch.setattr(Index, "reopen", interrupted)
    remove_few(writer)
    assert len(live.now()) == 58
    assert len(live.now()) == len(writer) < 58


def test_an_index_of_an_earlier_version_is_opened(tmp_path):
    table = filled(tmp_path).store.table
    table.execute("DROP TABLE past")
    table.execute("DELETE FROM settings WHERE name = 'change'")
    reader, writer = Index.open(tmp_path), Index.open(tmp_path)
    assert not reader.store.changed()
    before = everything(reader)
    remove_many(writer)
    assert everything(reader) == before
    assert len(Index.open(tmp_path)) == 30


def beside(folder, seconds, readers):
    words = [sys.executable, SCRIPT, folder / "index", str(seconds), str(readers)]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    assert "states read" in done.stdout


@pytest.mark.slow
def test_four_readers_beside_a_writer_see_no_error_and_nothing_wrong(tmp_path):
    beside(tmp_path, 60, 4)
