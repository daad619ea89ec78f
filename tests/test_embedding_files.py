import csv

import pytest

from softwarp.data.faces import load_pairs
from softwarp.embedding_files import load_labels


def test_labels_are_cut_at_line_ends_alone(tmp_path):
    names = ["wren\u2028gull", "owl\x0b", "plover\x85"]
    (tmp_path / "labels.txt").write_bytes("\r\n".join(names).encode())
    (tmp_path / "labels.csv").write_text("label\n" + "\n".join(names), encoding="utf-8")
    expected = [name.strip() for name in names]
    assert load_labels(tmp_path / "labels.txt") == expected
    assert load_labels(tmp_path / "labels.csv") == expected
    (tmp_path / "pairs.txt").write_text("Ann\u2028Bo\t1\t2\n", encoding="utf-8")
    assert load_pairs(tmp_path / "pairs.txt")[0][0] == ("Ann\u2028Bo", 1)


def test_an_empty_file_holds_no_labels(tmp_path):
    for name in ("labels.txt", "labels.csv"):
        (tmp_path / name).write_text("\n")
        with pytest.raises(ValueError, match="no labels"):
            load_labels(tmp_path / name)


def test_a_cell_beyond_the_limit_is_named(tmp_path):
    (tmp_path / "labels.csv").write_text('label\n"' + "x" * (csv.field_size_limit() + 1))
    with pytest.raises(ValueError, match=r"labels\.csv .*131072.*quote"):
        load_labels(tmp_path / "labels.csv")
