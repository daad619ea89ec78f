"""Lists of pairs and templates: LFW's, tables of paths, .bin files, IJB's."""

import numpy as np
import pytest
from support.face_files import face, face_folder, write_bin

from softwarp.faces.pairs import load_pairs, read_pairs
from softwarp.faces.templates import read_template_pairs, read_templates


def test_pairs_are_read_and_mistakes_named(tmp_path):
    path = tmp_path / "pairs.txt"
    path.write_text("10\t300\nAbel_Pacheco\t1\t4\nAbdel_Madi\t1\tDean_Barker\t2\n")
    assert load_pairs(path) == [
        (("Abel_Pacheco", 1), ("Abel_Pacheco", 4), True),
        (("Abdel_Madi", 1), ("Dean_Barker", 2), False),
    ]
    path.write_text("10 300\nAbel_Pacheco 1\n")
    with pytest.raises(ValueError, match="line 2"):
        load_pairs(path)
    path.write_text("10 300\n")
    with pytest.raises(ValueError, match="no pairs"):
        load_pairs(path)


def test_the_first_line_of_pairs_txt_gives_the_folds(tmp_path):
    face_folder(tmp_path, people=2, images=2, size=7)
    same, different = "person_00\t1\t2", "person_00\t1\tperson_01\t2"
    lines = [*[same] * 2, *[different] * 2] * 3
    for head, folds in (("3\t2", [0] * 4 + [1] * 4 + [2] * 4), ("6", None), ("1\t6", None)):
        (tmp_path / "pairs.txt").write_text("\n".join([head, *lines]))
        found = read_pairs(tmp_path / "pairs.txt").folds
        assert (None if found is None else found.tolist()) == folds
    (tmp_path / "pairs.txt").write_text("\n".join(["3\t2", *lines[:-1]]))
    with pytest.raises(ValueError, match=r"3 folds of 2 \+ 2 pairs.*11"):
        read_pairs(tmp_path / "pairs.txt")


def test_a_quote_that_is_never_closed_is_named(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text('first\tsecond\tsame\n"a.jpg\t' + "b.jpg\t1\n" * 30_000)
    with pytest.raises(ValueError, match=r"pairs\.tsv is not a table"):
        read_pairs(path)


def test_two_images_of_one_name_show_one_person(tmp_path):
    (tmp_path / "pairs.txt").write_text("Ann 1 Ann 2\nAnn 1 Bo 2\n")
    assert [same for _, _, same in load_pairs(tmp_path / "pairs.txt")] == [True, False]


def test_lfw_and_a_table_of_paths_name_the_same_images(tmp_path):
    folder = face_folder(tmp_path / "lfw" / "images", people=3, images=2, size=7)
    (folder / "person_01" / "person_01_0002.jpg").rename(folder / "person_01" / "person_01_0002.png")
    (tmp_path / "lfw" / "pairs.txt").write_text("1\t1\nperson_00\t1\t2\nperson_00\t1\tperson_01\t2\n")
    (tmp_path / "lfw" / "list.tsv").write_text(
        "fold\tfirst\tsecond\tsame\n"
        "4\tperson_00/person_00_0001.jpg\tperson_00/person_00_0002.jpg\t1\n"
        "7\tperson_00/person_00_0001.jpg\tperson_01/person_01_0002.png\t0\n"
    )
    lfw, table = (read_pairs(tmp_path / "lfw" / name) for name in ("pairs.txt", "list.tsv"))
    assert (lfw.name, table.name) == ("lfw", "list")
    for pairs in (lfw, table):
        assert len(pairs.images) == 3  # the first is in both pairs
        assert pairs.images.name(int(pairs.second[1])) == "person_01/person_01_0002.png"
        assert pairs.same.tolist() == [True, False]
        assert pairs.images.read(0).size == (7, 7)
    assert lfw.folds is None
    assert table.folds.tolist() == [4, 7]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("first\tsecond\n", "same"),
        ("first,second,same\na,b\n", "line 2"),
        ("first,second,same\na,b,perhaps\n", "line 2.*perhaps"),
        ("first,second,same,fold\na,b,1,x\n", "line 2.*'x'"),
        ("first,second,same\n", "no rows"),
    ],
)
def test_mistakes_in_a_table_are_named(tmp_path, text, named):
    (tmp_path / "pairs.csv").write_text(text)
    with pytest.raises(ValueError, match=named):
        read_pairs(tmp_path / "pairs.csv")


def test_a_bin_file_holds_its_images(tmp_path):
    path = write_bin(tmp_path / "lfw.bin", [(face(0, 1), face(0, 2), True), (face(1, 1), face(2, 1), False)])
    pairs = read_pairs(path)
    assert (pairs.name, len(pairs.images), pairs.first.tolist()) == ("lfw", 4, [0, 2])
    assert (pairs.images.name(3), pairs.images.read(3).size) == ("lfw.bin/3", (112, 112))
    with pytest.raises(FileNotFoundError, match="pairs"):
        read_pairs(tmp_path / "none.bin")
    (tmp_path / "list.tsv").write_text("first\tsecond\tsame\na\tb\t1\n")
    with pytest.raises(FileNotFoundError, match="--images"):
        read_pairs(tmp_path / "list.tsv", tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"a is missing.*--images"):
        read_pairs(tmp_path / "list.tsv")


def test_templates_of_ijb_and_of_a_table(tmp_path):
    (tmp_path / "ijb.txt").write_text("1.jpg 17 100\n2.jpg 17 100\n3.jpg 17 101\n4.jpg 9 100\n")
    ijb = read_templates(tmp_path / "ijb.txt")
    assert ijb.names == ("17", "9")
    (tmp_path / "named.txt").write_text("templates/1.jpg 17 100\n")  # no header
    assert read_templates(tmp_path / "named.txt").names == ("17",)
    assert ijb.template.tolist() == [0, 0, 0, 1]
    assert ijb.media.tolist() == [0, 0, 1, 2]  # a medium of another template is another one
    assert (len(ijb.gallery), ijb.people) == (0, ())
    (tmp_path / "pairs.txt").write_text("17 9 0\n9 9 1\n")
    pairs, same = read_template_pairs(tmp_path / "pairs.txt", ijb)
    assert pairs.tolist() == [[0, 1], [1, 1]]
    assert same.tolist() == [False, True]
    (tmp_path / "list.tsv").write_text(
        "image\ttemplate\tperson\trole\n1.jpg\ta\tAnn\tgallery\n2.jpg\ta\tAnn\tgallery\n3.jpg\tb\tBo\tprobe\n"
    )
    table = read_templates(tmp_path / "list.tsv")
    assert table.people == ("Ann", "Bo")
    assert (table.gallery.tolist(), table.probes.tolist()) == ([0], [1])
    assert len(np.unique(table.media)) == 3  # each image is a medium of its own


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("1.jpg 17\n", "line 1"),
        ("image\ttemplate\trole\n1.jpg\ta\tjudge\n", "line 2.*judge"),
        ("image\ttemplate\tperson\n1.jpg\ta\tAnn\n2.jpg\ta\tBo\n", "line 3.*two people"),
        ("\n", "no rows"),
    ],
)
def test_mistakes_in_templates_are_named(tmp_path, text, named):
    (tmp_path / "list.txt").write_text(text)
    with pytest.raises(ValueError, match=named):
        read_templates(tmp_path / "list.txt")


def test_pairs_of_unknown_templates_are_named(tmp_path):
    (tmp_path / "ijb.txt").write_text("1.jpg 17 100\n")
    (tmp_path / "pairs.txt").write_text("17 18 1\n")
    with pytest.raises(ValueError, match=r"line 1.*17 18 1"):
        read_template_pairs(tmp_path / "pairs.txt", read_templates(tmp_path / "ijb.txt"))
