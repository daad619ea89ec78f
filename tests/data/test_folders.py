import os
from pathlib import Path

import pytest
from support.layouts import write

from softwarp.data.tables import read_table


def test_a_folder_of_classes(tmp_path):
    write(tmp_path, "wren/b.JPG", "wren/a.png", "wren/2019/deep/c.Jpeg", "gull/d.webp", "gull/notes.txt")
    write(tmp_path, "wren/.hidden.jpg", "wren/.trash/e.jpg", ".cache/f.jpg", "readme.md")
    table = read_table("folder", tmp_path)
    assert table.paths == ("gull/d.webp", "wren/2019/deep/c.Jpeg", "wren/a.png", "wren/b.JPG")
    assert table.labels.tolist() == [0, 1, 1, 1]
    assert table.names == ("gull", "wren")
    assert table.splits is None


def test_a_folder_of_splits(tmp_path):
    write(tmp_path, "train/b/1.jpg", "Val/c/1.jpg", "query/a/1.jpg", "gallery/a/x/2.jpg")
    table = read_table("folder", tmp_path)
    assert table.paths == ("Val/c/1.jpg", "gallery/a/x/2.jpg", "query/a/1.jpg", "train/b/1.jpg")
    assert table.names == ("a", "b", "c")
    assert table.labels.tolist() == [2, 0, 0, 1]
    assert table.splits == ("validation", "gallery", "query", "train")


def test_top_folders_are_splits_only_if_all_are(tmp_path):
    write(tmp_path, "train/1.jpg", "plane/1.jpg")
    table = read_table("folder", tmp_path)
    assert table.names == ("plane", "train")
    assert table.splits is None


def test_what_is_wrong_with_a_folder(tmp_path):
    with pytest.raises(ValueError, match="holds no folders"):
        read_table("folder", tmp_path)
    write(tmp_path, "wren/a.jpg", "gull/notes.txt", "gull/.b.jpg")
    with pytest.raises(ValueError, match=r"gull holds no image \(2 other files\)"):
        read_table("folder", tmp_path)
    write(tmp_path, "gull/a.jpg", "stray.jpg")
    with pytest.raises(ValueError, match=r"stray\.jpg lies in no class folder"):
        read_table("folder", tmp_path)
    with pytest.raises(NotADirectoryError, match="is not a folder"):
        read_table("folder", tmp_path / "stray.jpg")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_table("folder", tmp_path / "nowhere")


def test_an_unreadable_folder_is_an_error(tmp_path, monkeypatch):
    write(tmp_path, "wren/a.jpg", "gull/b.jpg")
    real = os.scandir

    def scandir(folder):  # chmod does not stop root
        if str(folder).endswith("gull"):
            raise PermissionError(13, "Permission denied", str(folder))
        return real(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(OSError, match=r"gull cannot be read \(Permission denied\); allow it"):
        read_table("folder", tmp_path)


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
    with pytest.raises(FileNotFoundError, match=r"1 of 1 .*: a\.jpg; unpack"):
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
    with pytest.raises(ValueError, match=r"line 3: .*x/a\.jpg is listed twice"):
        read_table("csv", Path("x/list.csv"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: the columns must be"),
        (
            "path,class\na.jpg,1\n",
            "line 1: the columns must be path,label or path,label,split; got path,class",
        ),
        ("path,label,splits\na.jpg,1,train\n", "line 1: the columns"),
        ("path,label\n", "lists no images"),
        ("path,label\na.jpg,1\nb.jpg\n", "line 3: more or fewer cells"),
        ("path,label\na.jpg,1,2\n", "line 2: more or fewer cells"),
        ("path,label\na.jpg,\n", "line 2: path and label must not be empty"),
        ("path,label\n,1\n", "line 2: path and label must not be empty"),
        ("path,label,split\na.jpg,1,val\n", "line 2: no split is called 'val'"),
        ("path,label\na.jpg,1\na.jpg,2\n", "line 3: a.jpg is listed twice"),
        ("path,label\na.jpg,1\n./a.jpg,1\n", "line 3: ./a.jpg is listed twice"),
        ('path,label\n"a.jpg,1\n', "cannot be read"),
    ],
)
def test_what_is_wrong_with_a_csv_file(tmp_path, text, message):
    write(tmp_path, "a.jpg", "b.jpg")
    write(tmp_path, "list.csv", text=text)
    with pytest.raises(ValueError, match=message):
        read_table("csv", tmp_path)


def test_a_folder_with_two_csv_files_is_ambiguous(tmp_path):
    write(tmp_path, "a.csv", "b.csv")
    with pytest.raises(ValueError, match=r"holds 2 \.csv files \(a\.csv, b\.csv\); name the file"):
        read_table("csv", tmp_path)


def test_a_csv_file_that_is_not_text(tmp_path):
    (tmp_path / "list.csv").write_bytes(b"path,label\na.jpg,\xff\n")
    with pytest.raises(ValueError, match="save it as CSV in UTF-8"):
        read_table("csv", tmp_path)
