"""Any files and folders of images."""

import pytest
from support.pictures import pictures

from softwarp.data.trees import class_notes, find_images, has_splits, name_of, root_of


def test_a_tree_gives_its_images_sorted_and_once(tmp_path):
    pictures(
        tmp_path, "b/2.JPG", "b/1.jpg", "a/deep/3.png", "4.jpg", ".hidden/5.jpg", "b/.6.jpg", "__MACOSX/7.jpg"
    )
    (tmp_path / "notes.txt").write_text("no image")
    found = find_images([tmp_path, tmp_path / "b", tmp_path / "b" / ".." / "4.jpg", tmp_path / "notes.txt"])
    names = [name_of(path, tmp_path) for path in found.paths]
    assert names == ["4.jpg", "a/deep/3.png", "b/1.jpg", "b/2.JPG", "notes.txt"]  # named, so it is taken


def test_a_missing_file_is_a_typo_unless_it_is_listed(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"gone\.jpg does not exist"):
        find_images([tmp_path / "gone.jpg"])
    assert find_images([tmp_path / "gone.jpg"], listed=True).paths == [tmp_path / "gone.jpg"]


def test_names_start_from_the_innermost_folder_that_holds_all(tmp_path):
    pictures(tmp_path, "one/a/1.jpg", "one/b/2.jpg", "two/3.jpg")
    assert root_of([tmp_path / "one"]) == tmp_path / "one"
    assert root_of([tmp_path / "one" / "a" / "1.jpg", tmp_path / "one" / "b"]) == tmp_path / "one"
    assert name_of(tmp_path / "two" / "3.jpg", tmp_path / "one") == str(tmp_path / "two" / "3.jpg")
    with pytest.raises(ValueError, match="no images were given"):
        root_of([])


def test_splits_are_the_top_folders_of_all(tmp_path):
    assert has_splits(["train/a/1.jpg", "Test/a/1.jpg"])
    assert has_splits(["train/a/1.jpg", "val/a/1.jpg", "other/1.jpg", "2.jpg"])  # as training sees it
    assert not has_splits(["train/a/1.jpg", "other/a/1.jpg"])
    assert not has_splits(["train"])
    assert not has_splits([])


def test_a_list_gives_its_images_with_labels_and_is_an_image_itself_only_on_a_list(tmp_path):
    pictures(tmp_path, "photos/1.jpg", "2.jpg")
    (tmp_path / "list.CSV").write_text("path,label,notes\nphotos/1.jpg,wren,\nphotos/../2.jpg,gull,old\n")
    found = find_images([tmp_path / "list.CSV", tmp_path])
    assert found.paths == [tmp_path / "photos" / "1.jpg", tmp_path / "2.jpg"]
    assert found.labels() == {tmp_path / "photos" / "1.jpg": "wren", tmp_path / "2.jpg": "gull"}
    assert any("notes" in note for note in found.notes)
    assert any("1 .csv" in note for note in found.notes)
    assert find_images([tmp_path / "list.CSV"], listed=True).lists == {}


def test_classes_in_folders_are_noted_and_splits_among_them(tmp_path):
    assert class_notes(["wren/1.jpg", "2.jpg", "/elsewhere/3.jpg"], splits=False) == []
    notes = class_notes(["photos/train/a/1.jpg", "photos/test/a/1.jpg"], splits=False)
    assert any("--depth 1" in note for note in notes)
    assert any("photos/test, photos/train" in note for note in notes)
