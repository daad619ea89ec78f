import os
import sys

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
    "tops", [("train", "valid", "extra"), ("train_images", "test_images"), ("fold", "Test 2")]
)
def test_folders_that_look_like_splits_and_are_none_stop(tmp_path, tops):
    write(tmp_path, *(f"{top}/{name}/1.jpg" for top in tops for name in ("wren", "gull")))
    with pytest.raises(ValueError, match="splits") as caught:
        read_table("folder", tmp_path)
    named = [top for top in tops if top not in ("extra", "fold")]
    assert all(top in str(caught.value) for top in named)
    assert "data.depth=1" in str(caught.value)
    assert read_table("folder", tmp_path, depth=1).names == tuple(sorted(tops))


def test_two_folders_with_names_of_splits_stop_and_one_may_be_a_class(tmp_path):
    write(tmp_path / "two", *(f"{top}/1.jpg" for top in ("train", "valid", "extra")))
    with pytest.raises(ValueError, match=r"train, valid.*extra"):
        read_table("folder", tmp_path / "two")
    write(tmp_path / "one", *(f"{top}/1.jpg" for top in ("train", "car", "bus")))
    assert read_table("folder", tmp_path / "one").names == ("bus", "car", "train")


def test_classes_two_folders_deep_are_offered(tmp_path):
    deep = [f"{kind}/{breed}" for kind, breeds in {"cats": "ab", "dogs": "cde"}.items() for breed in breeds]
    write(tmp_path, *(f"{place}/{k}.jpg" for place in deep for k in range(12)))
    with pytest.raises(ValueError, match=r"2 \(cats, dogs\) .*5 \(cats/a.*data\.depth=2"):
        read_table("folder", tmp_path)
    assert read_table("folder", tmp_path, depth=1).names == ("cats", "dogs")
    assert read_table("folder", tmp_path, depth=2).names == tuple(deep)
    write(tmp_path, "cats/loose.jpg")  # one of 61 does not change what is meant
    with pytest.raises(ValueError, match=r"data\.depth=2"):
        read_table("folder", tmp_path)
    table = read_table("folder", tmp_path, depth=2)
    assert len(table.paths) == 60
    assert any("cats/loose.jpg" in note for note in table.notes)
    write(tmp_path, *(f"cats/loose {k}.jpg" for k in range(9)))  # ten of 70 are a class's own
    assert read_table("folder", tmp_path).names == ("cats", "dogs")


def test_classes_two_folders_deep_in_splits(tmp_path):
    write(tmp_path, "train/cats/a/1.jpg", "train/dogs/b/1.jpg", "test/cats/c/1.jpg")
    with pytest.raises(ValueError, match=r"2 \(cats, dogs\) .*3 \(cats/a, cats/c, dogs/b\)"):
        read_table("folder", tmp_path)
    table = read_table("folder", tmp_path, depth=2)
    assert table.names == ("cats/a", "cats/c", "dogs/b")
    assert table.splits == ("test", "train", "train")


def test_classes_are_sorted_by_name_whatever_their_letters(tmp_path):
    write(tmp_path, "gull/b.jpg", "gull-2/a.jpg", "gull/a/z.jpg", "gull/a-b.jpg")  # "-" comes before "/"
    table = read_table("folder", tmp_path)
    assert table.paths == ("gull/a-b.jpg", "gull/a/z.jpg", "gull/b.jpg", "gull-2/a.jpg")


def noted(table, *words):
    """Whether one of the notes has all these words."""
    return any(all(word in note for word in words) for note in table.notes)


def test_what_is_left_out_of_a_folder_is_said(tmp_path):
    write(tmp_path, "wren/a.jpg", "gull/b.jpg")
    assert read_table("folder", tmp_path).notes == ()
    write(tmp_path, "stray.jpg", "empty/notes.txt", "wren/c.HEIC", "gull/d.avif", "__MACOSX/wren/._a.jpg")
    write(tmp_path, "gull/__MACOSX/e.jpg", "wren/.hidden.jpg")
    table = read_table("folder", tmp_path)
    assert table.paths == ("gull/b.jpg", "wren/a.jpg")
    assert noted(table, "in no class folder", "1 (stray.jpg)")
    assert noted(table, "folders without images", "1 (empty)")
    assert noted(table, "2 (__MACOSX, gull/__MACOSX)")
    assert noted(table, "1 .heic", "1 .avif", "1 .txt", "convert .avif and .heic to JPEG")
    assert len(table.notes) == 4


def test_an_empty_split_is_said(tmp_path):
    write(tmp_path, "train/wren/a.jpg", "train/gull/b.jpg", "test/wren/notes.txt", "train/loose.jpg")
    table = read_table("folder", tmp_path)
    assert set(table.splits) == {"train"}
    assert noted(table, "folders without images", "test")
    assert noted(table, "in no class folder", "train/loose.jpg")


def test_what_is_wrong_with_a_folder(tmp_path):
    with pytest.raises(ValueError, match=r"no class folder.*empty"):
        read_table("folder", tmp_path)
    write(tmp_path, "stray.jpg", "gull/notes.txt", "gull/b.heic")
    with pytest.raises(ValueError, match=r"no class folder.*stray\.jpg.*\.heic"):
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
