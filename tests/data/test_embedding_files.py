import csv
import os

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file
from support.results import RECIPE

from softwarp.data.embedding_files import load_tables, read_labels
from softwarp.faces.pairs import load_pairs
from softwarp.runs.run import EvaluatedImage, Run

BIRDS = ("gull", "owl", "plover", "wren", "\udcff")


def test_labels_are_cut_at_line_ends_alone(tmp_path):
    names = ["wren\u2028gull", "owl\x0b", "plover\x85"]
    (tmp_path / "labels.txt").write_bytes("\r\n".join(names).encode())
    (tmp_path / "labels.csv").write_text("label\n" + "\n".join(names), encoding="utf-8")
    expected = [name.strip() for name in names]
    assert read_labels(tmp_path / "labels.txt").classes == expected
    assert read_labels(tmp_path / "labels.csv").classes == expected
    (tmp_path / "pairs.txt").write_text("Ann\u2028Bo\t1\t2\n", encoding="utf-8")
    assert load_pairs(tmp_path / "pairs.txt")[0][0] == ("Ann\u2028Bo", 1)


def test_an_empty_file_holds_no_labels(tmp_path):
    for name in ("labels.txt", "labels.csv"):
        (tmp_path / name).write_text("\n")
        with pytest.raises(ValueError, match="no labels"):
            read_labels(tmp_path / name)


def test_a_cell_beyond_the_limit_is_named(tmp_path):
    (tmp_path / "labels.csv").write_text('label\n"' + "x" * (csv.field_size_limit() + 1))
    with pytest.raises(ValueError, match=r"labels\.csv .*131072.*quote"):
        read_labels(tmp_path / "labels.csv")


def embedded(path, names, *, numbers=None):
    """A file as `softwarp embed` writes it: classes are numbered in this file alone."""
    known = sorted(set(names))
    labels = np.array([known.index(name) for name in names]) if numbers is None else np.array(numbers)
    arrays = {"embeddings": np.ones((len(names), 2), np.float32), "labels": labels.astype(np.int64)}
    if numbers is None:
        text = b"".join(os.fsencode(name) + b"\0" for name in known)
        arrays["classes"] = np.frombuffer(text, np.uint8)
    save_file(arrays, path)
    return path


@given(
    st.lists(st.sampled_from(BIRDS), min_size=1, max_size=8),
    st.lists(st.sampled_from(BIRDS), min_size=1, max_size=8),
)
def test_classes_of_two_files_are_matched_by_name(tmp_path_factory, queries, gallery):
    folder = tmp_path_factory.mktemp("two")
    files = [embedded(folder / "q.safetensors", queries), embedded(folder / "g.safetensors", gallery)]
    _, numbers, _, others = load_tables(files[0], None, files[1], None, None, None)
    same = [[number == other for other in others.tolist()] for number in numbers.tolist()]
    assert same == [[query == item for item in gallery] for query in queries]


def test_numbers_without_names_are_matched_only_if_both_files_have_the_same(tmp_path):
    names = embedded(tmp_path / "names.safetensors", ["gull", "wren"])
    first = embedded(tmp_path / "first.safetensors", ["a", "b", "a"], numbers=[0, 1, 1])
    same = embedded(tmp_path / "same.safetensors", ["a", "b"], numbers=[1, 0])
    fewer = embedded(tmp_path / "fewer.safetensors", ["a"], numbers=[0])
    assert load_tables(first, None, same, None, None, None)[3].tolist() == [1, 0]
    with pytest.raises(ValueError, match=r"first.* and .*fewer.*2 and 1.*--labels FILE and --gallery-labels"):
        load_tables(first, None, fewer, None, None, None)
    with pytest.raises(ValueError, match=r"first.* numbers .*names.safetensors names .*with --labels FILE$"):
        load_tables(first, None, names, None, None, None)
    with pytest.raises(ValueError, match=r"names, .*with --gallery-labels FILE$"):
        load_tables(names, None, first, None, None, None)
    (tmp_path / "cure.txt").write_text("wren\ngull\nowl")
    tables = load_tables(names, None, first, tmp_path / "cure.txt", None, None)
    assert tables[1].tolist() == [0, 2]  # gull, owl, wren
    assert tables[3].tolist() == [2, 0, 1]


def test_names_come_from_every_kind_of_file(tmp_path):
    points = np.ones((2, 2), np.float32)
    np.savez(tmp_path / "named.npz", embeddings=points, labels=np.array([1, 0]), classes=np.array(["a", "b"]))
    np.savez(tmp_path / "text.npz", embeddings=points, labels=np.array(["b", "a"]))
    for name in ("named.npz", "text.npz"):
        assert read_labels(tmp_path / name).classes == ["b", "a"]
    np.savez(tmp_path / "far.npz", embeddings=points, labels=np.array([2, 0]), classes=np.array(["a", "b"]))
    with pytest.raises(ValueError, match=r"far\.npz.* 2, .*`classes` names 2"):
        read_labels(tmp_path / "far.npz")
    run = Run.create(tmp_path / "run", RECIPE)
    arrays = {"embeddings": torch.ones(2, 2), "labels": torch.tensor([7, 3])}
    run.save_embeddings(
        arrays, [EvaluatedImage("x.jpg", "wren", "test", 0), EvaluatedImage("y.jpg", "gull", "test", 1)]
    )
    assert read_labels(tmp_path / "run" / "embeddings.safetensors").classes == ["wren", "gull"]
