"""Indexes and embeddings of CSV lists: labels are classes, and a refresh follows the list."""

import numpy as np
import pytest
from safetensors.numpy import load_file
from support.pictures import pictures
from support.tiny_index import glyph_files
from support.tiny_runs import PHASE, tiny
from typer.testing import CliRunner

from softwarp.cli import app
from softwarp.index.corrections import apply
from softwarp.index.index import Index
from softwarp.training.train import train_recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train_recipe(tiny(phases=[PHASE]), tmp_path_factory.mktemp("run")).folder


def write_list(file, labels):
    """A list of path -> label."""
    file.write_text("\n".join(["filename;label", *(f"{path};{label}" for path, label in labels.items())]))
    return file


@pytest.fixture
def listed(run, tmp_path):
    """A list of twelve images in three classes that no folder names, and an index of it."""
    root = glyph_files(tmp_path / "data" / "images", classes=3)
    paths = sorted(path.relative_to(root.parent).as_posix() for path in root.rglob("*.png"))
    labels = {path: f"letter {place // 4}" for place, path in enumerate(paths)}
    file = write_list(tmp_path / "data" / "list.csv", labels)
    return file, labels, Index.build(run, file, tmp_path / "index")


def labels_of(index):
    return {item.path: item.label for item in index.items}


def invoke(*words):
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def test_labels_of_a_list_are_the_classes(listed, run, tmp_path):
    file, labels, index = listed
    assert labels_of(index) == labels
    assert index.root == file.parent
    assert index.store.settings["sources"] == [str(file)]
    again = Index.build(run, file, tmp_path / "index")
    assert (again.changes.unchanged, again.changes.changed) == (12, 0)


def test_embeddings_of_a_list_have_its_labels(listed, run, tmp_path):
    file, labels, _ = listed
    invoke("embed", run, file, "-o", tmp_path / "vectors.safetensors")
    arrays = load_file(tmp_path / "vectors.safetensors")
    assert bytes(arrays["classes"]).decode().split("\0")[:-1] == ["letter 0", "letter 1", "letter 2"]
    assert arrays["labels"].tolist() == [int(label[-1]) for label in labels.values()]
    measured = invoke("evaluate", tmp_path / "vectors.safetensors", "--json").output
    assert '"classes": 3' in measured


def test_a_refresh_follows_the_list(listed):
    file, labels, index = listed
    paths, before = list(labels), {item.path: item.id for item in index.items}
    write_list(file, {path: labels[path] for path in paths[2:]} | {paths[5]: "other"})
    changes = index.refresh()
    assert (changes.removed, changes.changed, changes.added, changes.unchanged) == (2, 1, 0, 9)
    after = labels_of(index)
    assert sorted(after) == paths[2:]
    assert after[paths[5]] == "other"
    assert {item.path: item.id for item in index.items} == {path: before[path] for path in paths[2:]}
    write_list(file, labels)
    changes = index.refresh()
    assert (changes.removed, changes.changed, changes.added) == (0, 1, 2)
    assert labels_of(Index.open(index.folder)) == labels


def test_corrected_labels_and_removed_images_stay_so(listed, tmp_path):
    file, labels, index = listed
    first, second, *_ = labels
    corrected = tmp_path / "corrected.csv"
    corrected.write_text(f"path,label\n{first},right\n")
    apply(index, corrected)
    index.remove([index.root / second])
    write_list(file, labels | {first: "wrong", second: "back"})
    index.refresh()
    after = labels_of(index)
    assert after[first] == "right"
    assert second not in after
    index.add([file])
    assert labels_of(index)[second] == "back"


def test_a_list_that_shows_little_of_what_it_did_is_not_followed_unasked(listed):
    file, labels, index = listed
    kept = dict(list(labels.items())[:5])
    write_list(file, kept)
    with pytest.raises(ValueError, match=r"7 of 12 images of .*list\.csv are gone.*--remove-missing"):
        index.refresh()
    assert len(Index.open(index.folder)) == 12
    assert index.refresh(remove_missing=True).removed == 7
    pictures(file.parent, "new.jpg")
    write_list(file, {"new.jpg": "new"})
    with pytest.raises(ValueError, match=r"list\.csv shows none of its 5 images"):
        index.refresh(remove_missing=True)
    assert index.remove([file]).removed == 5
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"list\.csv does not exist"):
        index.refresh()


def test_the_images_of_a_list_may_be_on_a_disk_that_is_not_mounted(listed):
    file, labels, index = listed
    (file.parent / "images").rename(file.parent / "elsewhere")
    with pytest.raises(ValueError, match=r"list\.csv shows none of its 12 images; is the disk mounted"):
        index.refresh(remove_missing=True)
    assert len(Index.open(index.folder)) == len(labels)


def test_a_list_is_added_beside_a_folder(listed, run, tmp_path):
    file, labels, _ = listed
    folder = glyph_files(tmp_path / "folder", classes=2)
    index = Index.build(run, folder, tmp_path / "both")
    invoke("index", "add", index.folder, file)
    index = Index.open(index.folder)
    names = {str(file.parent / path): label for path, label in labels.items()}
    assert {path: label for path, label in labels_of(index).items() if path.startswith("/")} == names
    assert len(index) == 20
    changes = index.refresh()
    assert (changes.unchanged, changes.removed) == (20, 0)
    assert index.remove([file]).removed == 12


def test_what_is_wrong_with_a_list_is_named_by_line(run, tmp_path):
    (tmp_path / "list.csv").write_text("path,label\na.jpg,\n")
    with pytest.raises(ValueError, match=r"list\.csv, line 2: .*label"):
        Index.build(run, tmp_path / "list.csv", tmp_path / "index")
    (tmp_path / "list.csv").write_text("path,label\ngone.jpg,x\n")
    with pytest.raises(ValueError, match=r"none of 1 images.*gone\.jpg: .*missing"):
        Index.build(run, tmp_path / "list.csv", tmp_path / "index")
    assert not (tmp_path / "index").exists()


def test_classes_of_folders_are_those_of_training(run, tmp_path):
    pictures(
        tmp_path / "images", "train/Fruit/Apple/1.jpg", "test/Fruit/1.jpg", "test/Milk/2.jpg", "icons/3.jpg"
    )
    for depth, classes in {
        None: {"Fruit/Apple", "Fruit", "Milk", "icons"},
        1: {"Fruit", "Milk", "icons"},
    }.items():
        index = Index.build(run, tmp_path / "images", tmp_path / f"index {depth}", depth=depth)
        assert set(labels_of(index).values()) == classes
        assert any("--depth 1" in note for note in index.changes.notes) == (depth is None)
        out = tmp_path / f"{depth}.safetensors"
        words = ["--depth", depth] if depth else []
        told = invoke("embed", run, tmp_path / "images", "-o", out, *words).output
        found = bytes(load_file(out)["classes"]).decode().split("\0")[:-1]
        assert set(found) == classes
        assert ("--depth 1" in told) == (depth is None)
    assert np.unique(load_file(out)["labels"]).tolist() == [0, 1, 2]


def test_a_refresh_removes_what_the_list_lacked_when_it_was_added_again(listed, run):
    file, labels, index = listed
    kept = dict(list(labels.items())[2:])
    write_list(file, kept)
    again = Index.build(run, file, index.folder)
    assert sorted(labels_of(again)) == sorted(labels)  # to add removes nothing
    assert again.refresh().removed == 2
    assert labels_of(again) == kept


def test_a_refresh_that_is_killed_before_it_removed_anything_can_be_repeated(listed, monkeypatch):
    file, labels, index = listed
    kept = dict(list(labels.items())[2:])
    write_list(file, kept)
    with monkeypatch.context() as patch:
        patch.setattr("softwarp.index.store.IndexStore.remove", None)  # the process ends here
        with pytest.raises(TypeError):
            index.refresh()
    again = Index.open(index.folder)
    assert again.refresh().removed == 2
    assert labels_of(again) == kept
