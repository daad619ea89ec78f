import csv
import os
from pathlib import Path

import pytest
from support.layouts import write

from softwarp.data.tables import read_table


@pytest.mark.parametrize("of", ["folder", "file"])
def test_a_csv_file(tmp_path, of):
    write(tmp_path, "x/a.jpg", "x/b, c.jpg", "d.jpg", "e.csv.txt")
    text = '\ufeffsplit,path,label\ntest,x/a.jpg,10\n\ntrain,"x/b, c.jpg",9\ntest,d.jpg, 10\n'
    write(tmp_path, "list.csv", text=text)
    table = read_table("csv", tmp_path if of == "folder" else tmp_path / "list.csv")
    assert table.root == tmp_path
    assert table.paths == ("x/a.jpg", "x/b, c.jpg", "d.jpg")
    assert table.labels.tolist() == [0, 1, 0]
    assert table.names == ("10", "9")
    assert table.splits == ("test", "train", "test")


def test_a_csv_file_without_splits(tmp_path):
    write(tmp_path, "a.jpg")
    write(tmp_path, "list.csv", text="path,label\na.jpg,wren\n")
    assert read_table("csv", tmp_path).splits is None
    (tmp_path / "a.jpg").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 of 1 .*: a\.jpg;"):
        read_table("csv", tmp_path)


def test_a_csv_file_may_name_images_by_absolute_and_by_climbing_paths(tmp_path):
    write(tmp_path, "lists/a.jpg", "elsewhere/b.jpg", "elsewhere/c.jpg")
    there = f"{tmp_path}/elsewhere/b.jpg"
    text = f"path,label\na.jpg,gull\n{there},wren\n../elsewhere/c.jpg,wren\n"
    write(tmp_path, "lists/list.csv", text=text)
    table = read_table("csv", tmp_path / "lists")
    assert table.paths == ("a.jpg", there, "../elsewhere/c.jpg")
    assert [(table.root / path).is_file() for path in table.paths] == [True, True, True]


def test_an_image_listed_by_its_relative_and_its_absolute_path_is_listed_twice(tmp_path, monkeypatch):
    write(tmp_path, "x/a.jpg")
    write(tmp_path, "x/list.csv", text=f"path,label\na.jpg,1\n{tmp_path}/x/a.jpg,1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"line 3: .*x/a\.jpg .*twice"):
        read_table("csv", Path("x/list.csv"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: .*path,label"),
        ("path,class\na.jpg,1\n", "line 1: .*path,class"),
        ("path,label,splits\na.jpg,1,train\n", "line 1: .*'splits'; did you mean split"),
        ("path,label\n", "list.csv .*no images"),
        ("path,label\na.jpg,1\nb.jpg\n", "line 3: .*cells"),
        ("path,label\na.jpg,1,2\n", "line 2: .*cells"),
        ("path,label\na.jpg,\n", "line 2: .*empty"),
        ("path,label\n,1\n", "line 2: .*empty"),
        ("path,label\na.jpg,1\0\n", "line 2: .*zero byte"),
        ("path,label,split\na.jpg,1,vla\n", "line 2: .*'vla'"),
        ("path,label\na.jpg,1\na.jpg,2\n", "line 3: a.jpg .*twice"),
        ("path,label\na.jpg,1\n./a.jpg,1\n", "line 3: ./a.jpg .*twice"),
        ('path,label\n"a.jpg,1\n', "after line 1"),
    ],
)
def test_what_is_wrong_with_a_csv_file(tmp_path, text, message):
    write(tmp_path, "a.jpg", "b.jpg")
    write(tmp_path, "list.csv", text=text)
    with pytest.raises(ValueError, match=message):
        read_table("csv", tmp_path)


def test_a_folder_with_two_csv_files_is_ambiguous(tmp_path):
    write(tmp_path, "a.csv", "b.csv")
    with pytest.raises(ValueError, match=r"2 \.csv files \(a\.csv, b\.csv\)"):
        read_table("csv", tmp_path)


def test_a_pipe_is_no_csv_file_and_is_not_waited_for(tmp_path):
    write(tmp_path, "a.jpg")
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(ValueError, match=r"0 \.csv files"):
        read_table("csv", tmp_path)
    write(tmp_path, "list.csv", text="path,label\na.jpg,1\n")
    assert read_table("csv", tmp_path).paths == ("a.jpg",)


def test_a_csv_file_that_is_not_text(tmp_path):
    (tmp_path / "list.csv").write_bytes(b"path,label\na.jpg,\xff\n")
    with pytest.raises(ValueError, match="UTF-8"):
        read_table("csv", tmp_path)


def test_separators_other_columns_and_names_of_columns(tmp_path):
    write(tmp_path, "a, b.jpg", "c.jpg")
    text = "Filename;width;label;Split;note\na, b.jpg;30;wren;Training;x\nc.jpg;20;gull;dev;\n"
    write(tmp_path, "list.csv", text=text)
    table = read_table("csv", tmp_path)
    assert table.paths == ("a, b.jpg", "c.jpg")
    assert table.names == ("gull", "wren")
    assert table.splits == ("train", "validation")
    (note,) = table.notes
    assert "width, note" in note


@pytest.mark.parametrize("name", ["path", "image", "file", "filename"])
def test_the_column_of_paths_has_several_names(tmp_path, name):
    write(tmp_path, "a.jpg")
    write(tmp_path, "list.csv", text=f"label,{name}\nwren,a.jpg\n")
    assert read_table("csv", tmp_path).paths == ("a.jpg",)
    write(tmp_path, "list.csv", text="filename,image,path,label\nx,y,a.jpg,wren\n")
    assert read_table("csv", tmp_path).paths == ("a.jpg",), "path comes first"


def test_a_column_that_is_there_twice_is_refused_and_spaces_make_no_class(tmp_path):
    write(tmp_path, "a.jpg", "b.jpg")
    write(tmp_path, "list.csv", text="path,label,label\na.jpg,wren,gull\n")
    with pytest.raises(ValueError, match=r"line 1.*'label'"):
        read_table("csv", tmp_path)
    write(tmp_path, "list.csv", text="path,label\na.jpg,wren\nb.jpg,wren \n")
    assert read_table("csv", tmp_path).names == ("wren",)


def test_a_quote_that_is_never_closed_names_the_line_and_the_limit(tmp_path):
    write(tmp_path, "a.jpg")
    rest = "b.jpg,wren\n" * (csv.field_size_limit() // 10)
    write(tmp_path, "list.csv", text=f'path,label\na.jpg,wren\n"c.jpg,wren\n{rest}')
    with pytest.raises(ValueError, match=r"line 2: .*131072.*quote"):
        read_table("csv", tmp_path)
