"""Corrected labels: the CSV file beside an index, and what applying it changes."""

import csv
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from PIL import Image
from support.tiny_index import glyph_index, state, vector_index

from softwarp.index.corrections import Corrections, apply, beside, read_corrections
from softwarp.index.index import Index
from softwarp.index.remote import _stamp

ODD = os.fsdecode(b'caf\xe9\r\n,".jpg')


def written(path, *rows, head="path,label"):
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def test_labels_change_without_embedding_and_refresh_keeps_them(tmp_path):
    index = glyph_index(tmp_path, classes=2)
    before, wrong = state(index), index.items[0]
    done = apply(index, written(tmp_path / "labels.csv", f"{wrong.path},U+0042"))
    assert (done.changed, done.unchanged, done.unknown) == (1, 0, [])
    assert index.items[0].label == Index.open(index.folder).item(wrong.id).label == "U+0042"
    assert _stamp(index.items[0]) != _stamp(wrong)  # so that it is pushed
    label, *rest = before[wrong.path]
    assert state(index) == before | {wrong.path: ("U+0042", *rest)}
    again = apply(index, tmp_path / "labels.csv")
    assert (again.changed, again.unchanged) == (0, 1)
    Image.new("L", (32, 32), 9).save(index.file(wrong))
    index.refresh()
    assert index.changes.changed == 1
    assert {item.path: item.label for item in index.items}[wrong.path] == "U+0042"
    assert label == "U+0041"


def test_what_looks_at_labels_sees_the_correction(tmp_path):
    vectors = np.eye(40, 41, dtype=np.float32)
    vectors[20:, 40] = 9  # two heaps
    labels = ["a"] * 20 + ["b"] * 20
    labels[30] = "a"
    index = vector_index(tmp_path / "index", vectors, labels=labels)
    assert index.outliers()[0].id == 31
    apply(index, written(tmp_path / "labels.csv", "30.jpg,b"))
    assert all(each.id != 31 for each in index.outliers())
    assert index.store.classes() == {"a": 20, "b": 20}
    assert 31 in index.store.select([("class", "b")])


def test_unknown_paths_are_told_and_files_may_be_named(tmp_path):
    index = glyph_index(tmp_path, classes=2)
    first, second = index.items[:2]
    rows = [f"{index.file(first)},new", f"{second.path},new", "gone.jpg,new"]
    done = apply(index, written(tmp_path / "labels.csv", *rows))
    assert (done.changed, done.unknown) == (2, ["gone.jpg"])
    assert index.store.classes()["new"] == 2


@pytest.mark.parametrize(
    ("head", "rows", "cause"),
    [
        ("image,label", ["a,b"], "path,label; got image,label"),
        ("path,label", ["a,b", "a,c"], "line 3: a has another label"),
        ("path,label", ["a,"], "line 2: .*empty"),
        ("path,label", ["a"], "line 2: .*empty"),
        ("path,label", ['"a,b'], "quote"),
        ("", [], "path,label"),
    ],
)
def test_a_file_that_is_wrong_is_named_and_changes_nothing(tmp_path, head, rows, cause):
    index = vector_index(tmp_path / "index", np.eye(3, dtype=np.float32), labels=["a", "b", "c"])
    with pytest.raises(ValueError, match=rf"labels\.csv.*{cause}"):
        apply(index, written(tmp_path / "labels.csv", *rows, head=head))
    assert index.store.classes() == {"a": 1, "b": 1, "c": 1}


def test_other_separators_columns_and_odd_names_are_read(tmp_path):
    written(tmp_path / "labels.csv", "3;a.jpg; wren ", "4;a.jpg;wren", head="id;Path;Label")
    assert read_corrections(tmp_path / "labels.csv") == {"a.jpg": "wren"}
    (tmp_path / "index").mkdir()
    kept = Corrections(tmp_path / "index")
    kept.put(ODD, ODD)
    kept.put("b.jpg", "wren")
    assert kept.read() == {ODD: ODD, "b.jpg": "wren"}
    kept.put(ODD, None)
    assert kept.read() == {"b.jpg": "wren"}
    assert kept.path == beside(tmp_path / "index") == tmp_path / "index.labels.csv"


WRITER = """
import sys
from pathlib import Path
from softwarp.index.corrections import Corrections
kept = Corrections(Path(sys.argv[1]))
for number in range(12):
    kept.put(f"{sys.argv[2]}-{number}.jpg", "wren")
"""


def test_many_writers_lose_nothing(tmp_path):
    (tmp_path / "index").mkdir()
    words = [sys.executable, "-c", WRITER, str(tmp_path / "index")]
    processes = [subprocess.Popen([*words, str(number)]) for number in range(2)]
    kept = Corrections(tmp_path / "index")
    threads = [
        threading.Thread(target=lambda name=name: [kept.put(f"{name}-{n}.jpg", "owl") for n in range(12)])
        for name in ("x", "y")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [process.wait() for process in processes] == [0, 0]
    assert len(kept.read()) == 48
    assert [path.name for path in tmp_path.iterdir() if "labels" in path.name] == ["index.labels.csv"]


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    (tmp_path / "index").mkdir()
    kept = Corrections(tmp_path / "index")
    kept.put("a.jpg", "wren")

    def full(*inputs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        kept.put("b.jpg", "owl")
    with kept.path.open(newline="") as file:
        assert list(csv.reader(file)) == [["path", "label"], ["a.jpg", "wren"]]


def test_an_index_of_an_earlier_version_takes_corrections(tmp_path):
    index = vector_index(tmp_path / "index", np.eye(3, dtype=np.float32), labels=["a", "b", "c"])
    index.store.table.execute("DROP TABLE corrected")
    old = Index.open(index.folder)
    assert apply(old, written(tmp_path / "labels.csv", "0.jpg,b")).changed == 1
