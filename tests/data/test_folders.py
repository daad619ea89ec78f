import os
import sys

import pytest
from support.layouts import write

from softwarp.data.tables import read_table


def test_a_folder_of_classes(tmp_path):
    write(tmp_path, "wren/b.JPG", "wren/a.png", "wren/c.Jpeg", "gull/d.webp", "gull/notes.txt")
    write(tmp_path, "wren/.hidden.jpg", "wren/.trash/e.jpg", ".cache/f.jpg", "readme.md")
    table = read_table("folder", tmp_path)
    assert table.paths == ("gull/d.webp", "wren/a.png", "wren/b.JPG", "wren/c.Jpeg")
    assert table.labels.tolist() == [0, 1, 1, 1]
    assert table.names == ("gull", "wren")
    assert table.splits is None


def test_a_folder_of_splits(tmp_path):
    write(tmp_path, "train/b/1.jpg", "Val/c/1.jpg", "query/a/1.jpg", "gallery/a/2.jpg")
    table = read_table("folder", tmp_path)
    assert table.paths == ("Val/c/1.jpg", "gallery/a/2.jpg", "query/a/1.jpg", "train/b/1.jpg")
    assert table.names == ("a", "b", "c")
    assert table.labels.tolist() == [2, 0, 0, 1]
    assert table.splits == ("validation", "gallery", "query", "train")


def test_top_folders_are_splits_only_if_all_are(tmp_path):
    write(tmp_path, "train/1.jpg", "plane/1.jpg")
    table = read_table("folder", tmp_path)
    assert table.names == ("plane", "train")
    assert table.splits is None


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("Train", "train"),
        ("training", "train"),
        ("val", "validation"),
        ("valid", "validation"),
        ("Validation", "validation"),
        ("dev", "validation"),
        ("test", "test"),
        ("TESTING", "test"),
        ("eval", "test"),
    ],
)
def test_the_usual_names_of_splits_are_known(tmp_path, name, split):
    write(tmp_path, f"{name}/wren/1.jpg", "query/gull/1.jpg")
    table = read_table("folder", tmp_path)
    assert dict(zip(table.paths, table.splits, strict=True))[f"{name}/wren/1.jpg"] == split
    assert table.names == ("gull", "wren")


@pytest.mark.parametrize(
    "tops", [("train_images", "test_images"), ("fold", "Test 2"), ("train", "car"), ("training_set", "a")]
)
def test_folders_that_look_like_splits_and_are_none_stop(tmp_path, tops):
    write(tmp_path, *(f"{top}/{name}/1.jpg" for top in tops for name in ("wren", "gull")))
    with pytest.raises(ValueError, match="splits") as caught:
        read_table("folder", tmp_path)
    named = [top for top in tops if top not in ("fold", "car", "a")]
    assert all(top in str(caught.value) for top in named)
    assert "data.depth=1" in str(caught.value)
    assert read_table("folder", tmp_path, depth=1).names == tuple(sorted(tops))


def test_two_folders_with_names_of_splits_stop_and_one_may_be_a_class(tmp_path):
    write(tmp_path / "two", *(f"{top}/1.jpg" for top in ("train", "valid", "extra")))
    with pytest.raises(ValueError, match=r"train, valid.*extra"):
        read_table("folder", tmp_path / "two")
    write(tmp_path / "one", *(f"{top}/1.jpg" for top in ("train", "car", "bus")))
    assert read_table("folder", tmp_path / "one").names == ("bus", "car", "train")


def test_folders_beside_the_splits_are_left_out_and_named(tmp_path):
    splits = [f"{split}/{name}/1.jpg" for split in ("train", "valid", "TEST") for name in ("wren", "gull")]
    write(tmp_path, *splits, "icons/1.png", "icons/small/2.png", "metadata/list.csv", "cover.jpg")
    for depth in (None, 1):
        table = read_table("folder", tmp_path, depth=depth)
        assert table.names == ("gull", "wren")
        assert set(table.splits) == {"train", "validation", "test"}
        assert len(table.paths) == 6
        assert noted(table, "beside the splits", "1 (icons)", "2 images")
        assert noted(table, "folders without images", "1 (metadata)")
        assert noted(table, "in no class folder", "cover.jpg")
    write(tmp_path, "training_set/wren/1.jpg")
    for depth in (None, 1):
        with pytest.raises(ValueError, match=r"look like splits.*training_set"):
            read_table("folder", tmp_path, depth=depth)


@pytest.mark.parametrize(
    ("paths", "depth", "cause"),
    [
        (("train/1.jpg", "val/1.jpg", "extra/1.jpg"), 1, r"train, val would be classes beside extra"),
        (
            ("photos/train/a/1.jpg", "photos/test/a/1.jpg"),
            None,
            r"photos/test, photos/train .*Give .*/photos",
        ),
        (("bottle/train/1.jpg", "bottle/test/1.jpg", "nut/1.jpg"), None, r"bottle/test.*--depth 1"),
        (("x/bottle/train/1.jpg", "x/bottle/test/1.jpg"), None, r"bottle/test.*--depth 2"),
    ],
)
def test_splits_do_not_become_classes(tmp_path, paths, depth, cause):
    write(tmp_path, *paths)
    with pytest.raises(ValueError, match=cause):
        read_table("folder", tmp_path, depth=depth)
    if depth is None:
        offered = int(cause[-1]) if cause[-1].isdigit() else 1
        assert "train" not in str(read_table("folder", tmp_path, depth=offered).names)


FRUIT = ("Fruit/Apple/Gala/1.jpg", "Fruit/Apple/Fuji/1.jpg", "Fruit/Avocado/1.jpg", "Milk/1.jpg")


@pytest.mark.parametrize("top", ["", "train/", "test/"])
def test_classes_are_the_innermost_folders_whatever_their_depth(tmp_path, top):
    write(tmp_path, *(f"{top}{path}" for path in FRUIT))
    table = read_table("folder", tmp_path)
    assert table.names == ("Fruit/Apple/Fuji", "Fruit/Apple/Gala", "Fruit/Avocado", "Milk")
    assert len(table.paths) == 4
    assert noted(table, "innermost", "4 like Fruit/Apple/Fuji", "--depth 1", "2 classes", "--depth 2: 3")
    assert len(table.notes) == 1
    for depth, names in {
        1: ("Fruit", "Milk"),
        2: ("Fruit/Apple", "Fruit/Avocado", "Milk"),
        3: table.names,
    }.items():
        chosen = read_table("folder", tmp_path, depth=depth)
        assert chosen.names == names
        assert (len(chosen.paths), chosen.notes) == (4, ())


def test_classes_two_folders_deep_in_splits(tmp_path):
    write(tmp_path, "train/cats/a/1.jpg", "train/dogs/b/1.jpg", "test/cats/c/1.jpg")
    table = read_table("folder", tmp_path)
    assert table.names == ("cats/a", "cats/c", "dogs/b")
    assert table.splits == ("test", "train", "train")
    assert noted(table, "--depth 1", "2 classes")


def test_folders_with_images_and_with_classes_are_classes_themselves(tmp_path):
    write(tmp_path, "Fruit/Apple/1.jpg", "Fruit/Apple/Gala/2.jpg", "Milk/3.jpg")
    table = read_table("folder", tmp_path)
    assert table.names == ("Fruit/Apple", "Fruit/Apple/Gala", "Milk")
    assert noted(table, "each a class of its own", "1 (Fruit/Apple)")


def test_names_that_repeat_under_many_classes_are_pointed_out(tmp_path):
    write(tmp_path, *(f"{name}/{eye}/1.jpg" for name in ("wren", "gull", "owl") for eye in ("left", "right")))
    table = read_table("folder", tmp_path)
    assert len(table.names) == 6
    assert noted(table, "3 classes end in the same name, left", "--depth")
    assert noted(table, "--depth 1 takes the top ones: 3 classes")
    assert read_table("folder", tmp_path, depth=1).names == ("gull", "owl", "wren")


def test_links_to_folders_are_followed_at_the_top_unless_they_lead_up(tmp_path):
    write(tmp_path / "elsewhere", "1.jpg")
    root = tmp_path / "root"
    write(root, "wren/a.jpg")
    (root / "gull").symlink_to(tmp_path / "elsewhere")
    (root / "again").symlink_to(root)
    (root / "up").symlink_to("..")
    (root / "loop").symlink_to("loop")
    (root / "loop.jpg").symlink_to("loop.jpg")
    (root / "wren" / "deep").symlink_to(tmp_path / "elsewhere")
    table = read_table("folder", root)
    assert table.paths == ("gull/1.jpg", "wren/a.jpg")
    assert noted(table, "links to folders", "3 (again, up, wren/deep)")
    assert noted(table, "in no class folder", "loop.jpg")


def test_classes_are_sorted_by_name_whatever_their_letters(tmp_path):
    write(tmp_path, "gull/b.jpg", "gull-2/a.jpg", "gull/a/z.jpg", "gull/a-b.jpg")  # "-" comes before "/"
    table = read_table("folder", tmp_path, depth=1)
    assert table.paths == ("gull/a-b.jpg", "gull/a/z.jpg", "gull/b.jpg", "gull-2/a.jpg")
    assert read_table("folder", tmp_path).names == ("gull", "gull-2", "gull/a")


def noted(table, *words):
    """Whether one of the notes has all these words."""
    return any(all(word in note for word in words) for note in table.notes)


def test_what_is_left_out_of_a_folder_is_said(tmp_path):
    write(tmp_path, "wren/a.jpg", "gull/b.jpg")
    assert read_table("folder", tmp_path).notes == ()
    write(tmp_path, "stray.jpg", "empty/notes.txt", "wren/c.psd", "gull/d.SVG", "__MACOSX/wren/._a.jpg")
    write(tmp_path, "gull/__MACOSX/e.jpg", "wren/.hidden.jpg")
    table = read_table("folder", tmp_path)
    assert table.paths == ("gull/b.jpg", "wren/a.jpg")
    assert noted(table, "in no class folder", "1 (stray.jpg)")
    assert noted(table, "folders without images", "1 (empty)")
    assert noted(table, "2 (__MACOSX, gull/__MACOSX)")
    assert noted(table, "1 .psd", "1 .svg", "1 .txt")
    assert noted(table, "start with a dot", "1 (wren/.hidden.jpg)")
    assert len(table.notes) == 5


def test_an_empty_split_is_said(tmp_path):
    write(tmp_path, "train/wren/a.jpg", "train/gull/b.jpg", "test/wren/notes.txt", "train/loose.jpg")
    table = read_table("folder", tmp_path)
    assert set(table.splits) == {"train"}
    assert noted(table, "folders without images", "test")
    assert noted(table, "in no class folder", "train/loose.jpg")


def test_what_is_wrong_with_a_folder(tmp_path):
    with pytest.raises(ValueError, match=r"no class folder.*empty"):
        read_table("folder", tmp_path)
    write(tmp_path, "stray.jpg", "gull/notes.txt", "gull/b.psd")
    with pytest.raises(ValueError, match=r"no class folder.*stray\.jpg.*\.psd"):
        read_table("folder", tmp_path)
    write(tmp_path, "train/a.jpg", "test/b.jpg")
    with pytest.raises(ValueError, match=r"no class folder.*train/a\.jpg"):
        read_table("folder", tmp_path)
    with pytest.raises(NotADirectoryError, match="is not a folder"):
        read_table("folder", tmp_path / "stray.jpg")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_table("folder", tmp_path / "nowhere")


@pytest.mark.skipif(sys.platform != "linux", reason="names of any bytes")
def test_names_that_are_not_utf8_are_left_out_and_shown(tmp_path):
    write(tmp_path, "wren/a.jpg", "gull/b.jpg")
    (tmp_path / os.fsdecode(b"gull/b\xff.jpg")).touch()
    (tmp_path / os.fsdecode(b"owl\xfe")).mkdir()
    (tmp_path / os.fsdecode(b"owl\xfe/c.jpg")).touch()
    table = read_table("folder", tmp_path)
    assert table.names == ("gull", "wren")
    assert len(table.paths) == 2
    assert noted(table, r"2 (gull/b\udcff.jpg, owl\udcfe); rename")
    with pytest.raises(ValueError, match=r"owl\\udcfe: .*not UTF-8"):
        read_table("folder", tmp_path / os.fsdecode(b"owl\xfe"))


def test_names_in_notes_do_not_reach_the_terminal_raw(tmp_path):
    write(tmp_path, "wren/a.jpg", "gull/b.jpg", "\x1b[2J.jpg")
    (note,) = read_table("folder", tmp_path).notes
    assert r"\x1b[2J.jpg" in note
    assert "\x1b" not in note


def test_an_unreadable_folder_is_an_error(tmp_path, monkeypatch):
    write(tmp_path, "wren/a.jpg", "gull/b.jpg")
    real = os.scandir

    def scandir(folder):  # chmod does not stop root
        if str(folder).endswith("gull"):
            raise PermissionError(13, "Permission denied", str(folder))
        return real(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(OSError, match=r"gull .*Permission denied.*chmod"):
        read_table("folder", tmp_path)
