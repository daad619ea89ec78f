import os
from pathlib import Path

import pytest
import torch
from scipy.io import savemat
from support.layouts import make_cars, make_cub, make_sop, names_of, structs, write

from softwarp.data.tables import TABLES, read_table


@pytest.mark.parametrize("above", ["", "CUB_200_2011"])
def test_cub_is_read_from_its_folder_or_the_one_above(tmp_path, above):
    paths = make_cub(tmp_path / above)
    table = read_table("cub", tmp_path)
    assert table.root == tmp_path / above
    assert table.paths == tuple(f"images/{path}" for path in paths)
    assert table.labels.dtype == torch.int64
    assert table.labels.tolist() == [3, 3, 2, 2, 1, 1, 0, 0]
    assert table.names == ("001.Bird 1", "002.Bird 2", "003.Bird 3", "004.Bird 4")
    assert table.splits == ("test",) * 4 + ("train",) * 4


def test_cub_annotations_that_disagree_are_refused(tmp_path):
    make_cub(tmp_path)
    lines = (tmp_path / "image_class_labels.txt").read_text().splitlines(keepends=True)
    write(tmp_path, "image_class_labels.txt", text="".join(lines[:-1]))
    with pytest.raises(ValueError, match="list different images"):
        read_table("cub", tmp_path)
    write(tmp_path, "image_class_labels.txt", text="".join([*lines[:-1], "8 9\n"]))
    with pytest.raises(ValueError, match="class 9, which has no name"):
        read_table("cub", tmp_path)
    write(tmp_path, "image_class_labels.txt", text="".join([*lines[:2], "3\n", *lines[3:]]))
    with pytest.raises(ValueError, match="line 3: expected 2 columns"):
        read_table("cub", tmp_path)
    write(tmp_path, "image_class_labels.txt", text="\n")
    with pytest.raises(ValueError, match=r"image_class_labels\.txt lists nothing"):
        read_table("cub", tmp_path)


def test_a_missing_annotation_file_is_named(tmp_path):
    make_cub(tmp_path)
    (tmp_path / "classes.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"classes\.txt is missing"):
        read_table("cub", tmp_path)
    (tmp_path / "images.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"holds no images\.txt, nor does CUB_200_2011 in it"):
        read_table("cub", tmp_path)


@pytest.mark.parametrize("above", ["", "CARS196", "cars196", "stanford_cars"])
def test_cars_in_one_folder(tmp_path, above):
    paths = [f"car_ims/{i:06d}.jpg" for i in range(1, 5)]
    write(tmp_path / above, *paths)
    rows = structs(relative_im_path=paths, **{"class": [4, 2, 1, 3]})
    savemat(tmp_path / above / "cars_annos.mat", {"annotations": rows, "class_names": names_of(4)})
    table = read_table("cars", tmp_path)
    assert table.root == tmp_path / above
    assert table.paths == tuple(paths)
    assert table.labels.tolist() == [3, 1, 0, 2]
    assert table.names == ("Car 1", "Car 2", "Car 3", "Car 4")
    assert table.splits == ("test", "train", "train", "test")


@pytest.mark.parametrize(("above", "kaggle"), [("", False), ("", True), ("stanford_cars", True)])
def test_cars_with_a_devkit(tmp_path, above, kaggle):
    make_cars(tmp_path / above, kaggle=kaggle)
    table = read_table("cars", tmp_path)
    assert table.root == tmp_path / above
    assert table.paths[0] == ("cars_train/cars_train/00001.jpg" if kaggle else "cars_train/00001.jpg")
    assert table.paths[3].startswith("cars_test/")
    assert table.labels.tolist() == [0, 2, 1, 3]
    assert table.splits == ("train", "test", "train", "test")


def test_cars_without_the_classes_of_its_test_folder(tmp_path):
    make_cars(tmp_path)
    (tmp_path / "cars_test_annos_withlabels.mat").rename(tmp_path / "devkit" / "cars_test_annos.mat")
    with pytest.raises(FileNotFoundError, match=r"cars_test_annos_withlabels\.mat"):
        read_table("cars", tmp_path)
    write(tmp_path, "cars_test_annos_withlabels.mat", text="not this")
    with pytest.raises(ValueError, match="is not the MATLAB file it should be"):
        read_table("cars", tmp_path)


@pytest.mark.parametrize("above", ["", "Stanford_Online_Products"])
def test_sop(tmp_path, above):
    make_sop(tmp_path / above)
    table = read_table("sop", tmp_path)
    assert table.root == tmp_path / above
    assert table.paths[2:4] == ("bicycle_final/12_0.JPG", "chair_final/21_0.JPG")
    assert table.labels.tolist() == [0, 0, 1, 3, 2]
    assert table.names == ("00001 bicycle", "00002 bicycle", "00009 chair", "00010 chair")
    assert table.splits == ("train",) * 3 + ("test",) * 2


@pytest.mark.parametrize("place", [".", "Eval", "Anno"])
@pytest.mark.parametrize("home", ["img", "Img/img", "Img"])
def test_inshop(tmp_path, place, home):
    rows = [("id_1", "train"), ("id_1", "train"), ("id_2", "query"), ("id_2", "gallery")]
    below = [f"WOMEN/Tees_Tanks/{item}/0{k}_1_front.jpg" for k, (item, _) in enumerate(rows)]
    write(tmp_path, *(f"{home}/{path}" for path in below))
    lines = [f"img/{path}   {item}   {split}" for path, (item, split) in zip(below, rows, strict=True)]
    text = "\n".join(["4", "image_name item_id evaluation_status", *lines])
    write(tmp_path, f"{place}/list_eval_partition.txt", text=text)
    table = read_table("inshop", tmp_path)
    assert table.paths == tuple(f"{home}/{path}" for path in below)
    assert table.labels.tolist() == [0, 0, 1, 1]
    assert table.names == ("id_1", "id_2")
    assert table.splits == ("train", "train", "query", "gallery")


def test_inshop_without_images_or_list(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"list_eval_partition\.txt is missing"):
        read_table("inshop", tmp_path)
    write(tmp_path, "list_eval_partition.txt", text="1\nhead\nimg/MEN/id_1/a.jpg id_1 train\n")
    with pytest.raises(FileNotFoundError, match=r"unpack img\.zip"):
        read_table("inshop", tmp_path)
    write(tmp_path, "list_eval_partition.txt", text="1\nhead\nimg/MEN/id_1/a.jpg id_1 training\n")
    write(tmp_path, "img/MEN/id_1/a.jpg")
    with pytest.raises(ValueError, match="no split is called 'training'"):
        read_table("inshop", tmp_path)


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


def test_a_link_to_nothing_is_missing(tmp_path):
    write(tmp_path, "wren/a.jpg")
    (tmp_path / "wren" / "b.jpg").symlink_to(tmp_path / "gone.jpg")
    with pytest.raises(FileNotFoundError, match=r"1 of 2 listed images are missing.*: wren/b\.jpg; unpack"):
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


@pytest.mark.parametrize("path", ["/softwarp-has-no-such-image.jpg", "/softwarp-has-no/such.jpg"])
def test_a_missing_absolute_path_is_named_whole(tmp_path, path):
    write(tmp_path, path.lstrip("/"))  # not taken for the one below the CSV's folder
    write(tmp_path, "list.csv", text=f"path,label\n{path},wren\n")
    with pytest.raises(FileNotFoundError, match=f"1 of 1 listed images are missing: {path};"):
        read_table("csv", tmp_path)


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


def test_missing_images_are_counted_and_the_first_three_named(tmp_path):
    paths = make_cub(tmp_path)
    for path in paths[:5]:
        (tmp_path / "images" / path).unlink()
    with pytest.raises(FileNotFoundError) as caught:
        read_table("cub", tmp_path)
    text = str(caught.value)
    assert "5 of 8 listed images are missing" in text
    assert ", ".join(f"images/{path}" for path in paths[:3]) + ", ..." in text
    assert paths[3] not in text


def test_an_unknown_layout_names_the_nearest():
    assert list(TABLES) == ["cub", "cars", "sop", "inshop", "folder", "csv"]
    with pytest.raises(ValueError, match=r"no data layout is called 'in-shop'; did you mean inshop"):
        read_table("in-shop", None)
