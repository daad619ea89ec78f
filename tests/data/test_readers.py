import numpy as np
import pytest
from scipy.io import savemat
from support.layouts import make_cars, make_cub, make_sop, names_of, structs, write

from softwarp.data.tables import read_table


@pytest.mark.parametrize("above", ["", "CUB_200_2011"])
def test_cub_is_read_from_its_folder_or_the_one_above(tmp_path, above):
    paths = make_cub(tmp_path / above)
    table = read_table("cub", tmp_path)
    assert table.root == tmp_path / above
    assert table.paths == tuple(f"images/{path}" for path in paths)
    assert table.labels.dtype == np.int64
    assert table.labels.tolist() == [3, 3, 2, 2, 1, 1, 0, 0]
    assert table.names == ("001.Bird 1", "002.Bird 2", "003.Bird 3", "004.Bird 4")
    assert table.splits == ("test",) * 4 + ("train",) * 4


def test_cub_annotations_that_disagree_are_refused(tmp_path):
    make_cub(tmp_path)
    lines = (tmp_path / "image_class_labels.txt").read_text().splitlines(keepends=True)
    write(tmp_path, "image_class_labels.txt", text="".join(lines[:-1]))
    with pytest.raises(ValueError, match=r"images\.txt and image_class_labels\.txt"):
        read_table("cub", tmp_path)
    write(tmp_path, "image_class_labels.txt", text="".join([*lines[:-1], "8 9\n"]))
    with pytest.raises(ValueError, match="class 9"):
        read_table("cub", tmp_path)
    write(tmp_path, "image_class_labels.txt", text="".join([*lines[:2], "3\n", *lines[3:]]))
    with pytest.raises(ValueError, match=r"line 3: .*2 columns"):
        read_table("cub", tmp_path)
    write(tmp_path, "image_class_labels.txt", text="\n")
    with pytest.raises(ValueError, match=r"image_class_labels\.txt is empty"):
        read_table("cub", tmp_path)


def test_a_missing_annotation_file_is_named(tmp_path):
    make_cub(tmp_path)
    (tmp_path / "classes.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"classes\.txt is missing"):
        read_table("cub", tmp_path)
    (tmp_path / "images.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"images\.txt.*CUB_200_2011"):
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
    with pytest.raises(ValueError, match="MATLAB"):
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
    with pytest.raises(ValueError, match="'training'"):
        read_table("inshop", tmp_path)


def test_annotations_are_cut_at_line_ends_and_blanks_alone(tmp_path):
    """A name may hold U+2028 or a no-break space, at which Python would cut, too."""
    make_cub(tmp_path)
    names = "1 a\u2028b\n2 c\u00a0d\n3 e\n4 f\n"
    (tmp_path / "classes.txt").write_text(names, encoding="utf-8")
    assert read_table("cub", tmp_path).names == ("a\u2028b", "c\u00a0d", "e", "f")
    lines = ["1", "image_name item_id evaluation_status", "img/MEN/a\u00a0b/1.jpg\tid_1  train"]
    (tmp_path / "list_eval_partition.txt").write_text("\n".join(lines), encoding="utf-8")
    write(tmp_path, "img/MEN/a\u00a0b/1.jpg")
    assert read_table("inshop", tmp_path).paths == ("img/MEN/a\u00a0b/1.jpg",)
    (tmp_path / "classes.txt").write_bytes(b"1 \xff\n")
    with pytest.raises(ValueError, match=r"classes\.txt .*UTF-8"):
        read_table("cub", tmp_path)
