"""The model that an index is built with: calibrated on class folders where that is better."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from support.tiny_networks import places  # noqa: F401
from typer.testing import CliRunner

import softwarp
from softwarp.cli import app
from softwarp.events import Note
from softwarp.index import network
from softwarp.index.embed_tree import embed_tree
from softwarp.index.index import Index
from softwarp.models.embedder import Embedder
from softwarp.recipe.schema import StartPart
from softwarp.training.head import embed, starting_head

OWN = "test_vit-calibrated"


def draw(root, *, classes=8, images=6, tellable=True, seed=0):
    """Classes differ in a faint pattern, beneath another one that differs from image to image."""
    generator = np.random.default_rng(seed)
    noise = generator.normal(0, 1, (3, 16, 16, 3))
    for label in range(classes):
        own = generator.normal(0, 6, (16, 16, 3))
        (root / f"class {label}").mkdir(parents=True)
        for number in range(images):
            faint = own if tellable else generator.normal(0, 6, (16, 16, 3))
            pixels = 128 + faint + np.tensordot(generator.normal(0, 25, 3), noise, 1)
            image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
            image.resize((96, 96), Image.Resampling.NEAREST).save(root / f"class {label}" / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("images") / "images")


@pytest.fixture(scope="module")
def built(images, tmp_path_factory):
    """An index of them, what was said meanwhile, and how many images the network saw."""
    seen, pooled, events = [], Embedder.pooled, []

    def counted(network, pixels, **settings):
        seen.append(len(pixels))
        return pooled(network, pixels, **settings)

    folder = tmp_path_factory.mktemp("index") / "index"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Embedder, "pooled", counted)
        index = Index.build("test_vit", images, folder, on_event=events.append)
    return index, said(events), sum(seen)


def said(events):
    return [str(event) for event in events if isinstance(event, Note)]


def test_it_is_calibrated_on_all_classes_where_halves_of_them_say_that_it_is_better(built, images):
    index, notes, _ = built
    files = [images / item.path for item in index.items]
    labels = torch.tensor([int(item.label.split()[1]) for item in index.items])
    inputs = softwarp.load("test_vit").embed(files)
    head = starting_head(inputs, labels, 64, StartPart(shrinkage=0.01), seed=0)
    torch.testing.assert_close(torch.tensor(index.vectors), embed(head, inputs), atol=1e-4, rtol=0)
    assert len(notes) == 1
    assert "calibrated features, shrinkage 0.01 (+" in notes[0]
    assert "8 training classes, each held out once" in notes[0]
    assert notes[0].endswith("--frozen")


def test_the_network_sees_each_image_once(built):
    assert built[2] == 48


def test_the_model_moves_with_the_index_and_embeds_what_is_added(built, tmp_path):
    shutil.copytree(built[0].folder, tmp_path / "moved")
    moved = Index.open(tmp_path / "moved")
    assert moved.calibrated
    assert moved.model_name == str(tmp_path / "moved" / OWN)
    new = draw(tmp_path / "new", classes=1, images=2, seed=5)
    moved.add([new])
    vectors = softwarp.load(built[0].folder / OWN).embed(sorted(new.rglob("*.png")))
    torch.testing.assert_close(torch.tensor(moved.vectors[-2:]), vectors, atol=1e-5, rtol=0)


def test_the_folder_of_the_model_loads_with_the_licence_of_its_weights(built):
    model = softwarp.load(built[0].folder / OWN)
    assert "mit" in model.pretrained_weights
    assert model.network.unit_length
    first = built[0].file(built[0].items[0])
    torch.testing.assert_close(model.embed(first)[0], torch.tensor(built[0].vectors[0]))


@pytest.mark.parametrize("killed", [False, True], ids=["whole", "killed after the choice"])
def test_a_build_that_is_resumed_keeps_its_model(built, images, tmp_path, monkeypatch, killed):
    folder = shutil.copytree(built[0].folder, tmp_path / "index")
    if killed:
        (folder / "items.sqlite").unlink()
    monkeypatch.setattr(network, "_better_head", None)
    again = Index.build("test_vit", images, folder)
    assert (again.changes.unchanged, again.changes.added) == ((0, 48) if killed else (48, 0))
    np.testing.assert_array_equal(again.vectors, built[0].vectors)


def test_frozen_features_are_kept_where_they_are_asked_for(built, images, tmp_path, monkeypatch):
    index = Index.build("test_vit", images, tmp_path / "index", frozen=True)
    assert index.model_name == "test_vit"
    assert not index.calibrated
    assert not (index.folder / OWN).exists()
    monkeypatch.setattr(network, "_better_head", None)
    assert Index.build("test_vit", images, index.folder).model_name == "test_vit"
    with pytest.raises(ValueError, match=f"another model, {OWN}; choose another folder"):
        Index.build("test_vit", images, built[0].folder, frozen=True)


def test_frozen_features_are_kept_where_others_are_not_better_and_that_is_said(tmp_path):
    events = []
    images = draw(tmp_path / "images", tellable=False)
    index = Index.build("test_vit", images, tmp_path / "index", on_event=events.append)
    assert index.model_name == "test_vit"
    assert [note.partition(",")[0] for note in said(events)] == ["chosen: the frozen features"]


@pytest.mark.parametrize("classes", [1, 2, 3])
def test_of_few_classes_nothing_is_tried(tmp_path, classes):
    events = []
    images = draw(tmp_path / "images", classes=classes, images=3)
    Index.build("test_vit", images, tmp_path / "index", on_event=events.append)
    assert said(events) == []
    assert not any("calibrating" in str(event) for event in events)


def test_images_without_classes_and_broken_ones_do_not_judge(images, tmp_path):
    mixed = shutil.copytree(images, tmp_path / "images")
    for label in range(4, 8):
        for file in (mixed / f"class {label}").iterdir():
            file.write_bytes(b"no image")
    shutil.copy(mixed / "class 0" / "0.png", mixed / "loose.png")
    events = []
    index = Index.build("test_vit", mixed, tmp_path / "index", on_event=events.append)
    assert "on 4 training classes" in said(events)[0]
    assert len(index) == 25


def test_of_very_many_images_a_sample_of_each_class_calibrates(images, tmp_path, monkeypatch):
    seen, starting = [], network.starting_head

    def noted(features, labels, *size, **settings):
        seen.extend(labels.tolist())
        return starting(features, labels, *size, **settings)

    monkeypatch.setattr("softwarp.training.features.MOST", 32)
    monkeypatch.setattr(network, "starting_head", noted)
    assert len(Index.build("test_vit", images, tmp_path / "index")) == 48
    assert [seen.count(label) for label in range(8)] == [4] * 8


def test_auto_is_the_network_at_hand_and_for_an_index_its_own(images, built, tmp_path, monkeypatch):
    embed_tree("auto", [images], tmp_path / "vectors.safetensors", on_event=lambda event: None)
    with safe_open(tmp_path / "vectors.safetensors", "np") as file:
        assert file.metadata()["model"] == "test_vit"
    with pytest.raises(ValueError, match="auto judges networks by one folder"):
        Index.build("auto", [images / "class 0", images / "class 1"], tmp_path / "index")
    first = Index.build("auto", images, tmp_path / "index")
    monkeypatch.setattr(network, "backbones", None)
    for folder in (first.folder, built[0].folder):
        again = Index.build("auto", images, folder)
        assert again.model_name == str(folder / OWN)
        assert again.changes.unchanged == 48


def test_the_command_takes_frozen_features_and_says_what_others_do_to_classes(built, images, tmp_path):
    def call(*words):
        return CliRunner().invoke(app, ["index", *map(str, words)], catch_exceptions=False).stderr

    folder, query = tmp_path / "index", images / "class 0" / "0.png"
    call("test_vit", images, "-o", folder, "--frozen")
    assert not Index.open(folder).calibrated
    assert "--frozen" not in call("classify", folder, query)
    assert "--frozen" in call("classify", built[0].folder, query)
