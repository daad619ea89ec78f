"""The files of an index: what counts, what is cut off, who may write."""

import os
import threading

import numpy as np
import pytest

from softwarp.index.images import NewImage
from softwarp.index.store import IndexStore

VECTORS = np.arange(12, dtype=np.float32).reshape(4, 3)
ITEMS = [NewImage(f"{row}.jpg", "ab"[row % 2], bytes([row] * 16), b"jpeg%d" % row) for row in range(4)]


def filled(folder):
    store = IndexStore.create(folder, dimensions=3, colour="red")
    with store.writing():
        store.append(VECTORS, ITEMS)
    return store


def test_what_was_appended_is_there_for_another_process(tmp_path):
    filled(tmp_path)
    store = IndexStore(tmp_path)
    assert np.array_equal(store.vectors, VECTORS)
    assert [(item.id, item.path, item.label) for item in store.items([4, 1])] == [
        (4, "3.jpg", "b"),
        (1, "0.jpg", "a"),
    ]
    assert store.items()[2].digest == "02" * 16
    assert store.thumbnail(2) == b"jpeg1"
    assert store.settings["colour"] == "red"
    assert store.select([("class", "b"), ("path", "[0-2]*")]) == [2]


def test_rows_that_were_not_confirmed_do_not_count_and_are_cut_off(tmp_path):
    filled(tmp_path)
    for name in ("vectors-0.f32", "ids-0.i64"):
        with (tmp_path / name).open("ab") as file:
            file.write(b"half a batch")
    for name in ("vectors-1.f32", "search-9-9.faiss"):
        (tmp_path / name).write_bytes(b"a compaction that did not end")
    store = IndexStore(tmp_path)
    assert store.vectors.shape == (4, 3)
    with store.writing():
        store.append(VECTORS[:1] + 100, [NewImage("new.jpg")])
    assert np.array_equal(store.vectors[4], VECTORS[0] + 100)
    assert store.ids.tolist() == [1, 2, 3, 4, 5]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ids-0.i64", "items.sqlite", "vectors-0.f32"]


def test_rows_are_synced_to_the_disk_before_they_count(tmp_path, monkeypatch):
    synced, counted, put = [], [], IndexStore._put
    monkeypatch.setattr("softwarp.index.store.os.fsync", lambda file: synced.append(os.fstat(file).st_size))

    def recording_put(store, **settings):
        counted.append(list(synced))
        put(store, **settings)

    monkeypatch.setattr(IndexStore, "_put", recording_put)
    filled(tmp_path)
    assert counted == [[4 * 3 * 4, 4 * 8]]


def test_an_append_that_fails_changes_nothing(tmp_path, monkeypatch):
    """Also if another one follows at once."""
    store = filled(tmp_path)
    with store.writing():
        monkeypatch.setattr(store, "_put", full)
        with pytest.raises(OSError, match="full"):
            store.append(VECTORS[:2] * 7, [NewImage("one.jpg"), NewImage("two.jpg")])
        monkeypatch.undo()
        again = IndexStore(tmp_path)
        assert len(again.ids) == len(again.items()) == 4
        store.append(VECTORS[:1] * 9, [NewImage("once.jpg")])
    again = IndexStore(tmp_path)
    assert again.ids.tolist() == [1, 2, 3, 4, 5]
    assert np.array_equal(again.vectors[4], VECTORS[0] * 9)


def full(**settings):
    raise OSError("the disk is full")


@pytest.mark.parametrize(
    ("vectors", "items", "cause"),
    [
        (VECTORS[:1], ITEMS[:2], r"2 items.*\[1, 3\]"),
        (VECTORS[:3], ITEMS[:2], r"2 items.*\[3, 3\]"),
        (VECTORS[:2, :2], ITEMS[:2], r"\[2, 2\]"),
        (VECTORS[0], ITEMS[:1], r"\[3\]"),
        (VECTORS[:2], [NewImage("twice.jpg"), NewImage("twice.jpg")], r"twice\.jpg"),
    ],
)
def test_what_does_not_belong_together_is_refused_before_anything_is_written(tmp_path, vectors, items, cause):
    store = filled(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=cause), store.writing():
        store.append(vectors, items)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert len(IndexStore(tmp_path).items()) == 4


def test_the_same_path_is_replaced_not_doubled(tmp_path):
    store = filled(tmp_path)
    with store.writing():
        store.append(VECTORS[:1] * 2, [NewImage("1.jpg", "c", b"x" * 16, b"new")])
    assert [item.id for item in store.items()] == [1, 3, 4, 5]
    assert store.removed.tolist() == [1]
    with pytest.raises(ValueError, match="id 2"):
        store.thumbnail(2)
    store.compact()
    assert store.removed.tolist() == []
    assert np.array_equal(store.vectors, VECTORS[[0, 2, 3, 0]] * [[1], [1], [1], [2]])


def test_two_writers_exclude_each_other(tmp_path):
    store = filled(tmp_path)
    with store.writing(), pytest.raises(ValueError, match="another process"), IndexStore(tmp_path).writing():
        pass


def test_threads_may_read_at_once(tmp_path):
    store, wrong = filled(tmp_path), []

    def read():
        for _ in range(200):
            if store.thumbnail(3) != b"jpeg2" or store.items([3])[0].path != "2.jpg":
                wrong.append(1)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_damage_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing is not an index.*softwarp index"):
        IndexStore(tmp_path / "nothing")
    filled(tmp_path / "cut")
    (tmp_path / "cut" / "vectors-0.f32").write_bytes(b"1234")
    with pytest.raises(ValueError, match=r"vectors-0\.f32 is cut off at 4 of 48"):
        IndexStore(tmp_path / "cut")
    filled(tmp_path / "torn")
    (tmp_path / "torn" / "items.sqlite").write_bytes(b"no database, but long enough to look like one" * 9)
    with pytest.raises(ValueError, match=r"items\.sqlite cannot be read"):
        IndexStore(tmp_path / "torn")
    store = filled(tmp_path / "newer")
    store.put(version=99)
    with pytest.raises(ValueError, match="another version"):
        IndexStore(tmp_path / "newer")
