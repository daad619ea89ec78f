"""Folders in Hugging Face form: written, read back, fetched by name, uploaded."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import load_file, save_file
from support.tiny_runs import PHASE, tiny

import softwarp
from softwarp.data.glyphs import glyph_images
from softwarp.export.formats import push_folder, write_model_folder
from softwarp.runs.model_folder import ModelConfig
from softwarp.training.train import train_recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train_recipe(tiny(phases=[PHASE]), tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def written(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports") / "model"
    write_model_folder(folder, run, softwarp.load(run.folder, device="cpu"), licence=None)
    return folder


@pytest.fixture
def folder(written, tmp_path):
    return shutil.copytree(written, tmp_path / "model")


@pytest.fixture
def hub(monkeypatch, folder):
    """A hub with one model; a dictionary of what it was asked."""
    asked = {}

    def snapshot_download(name, **settings):
        asked[name] = settings
        if name != "user/birds":
            raise LocalEntryNotFoundError(f"no {name}")
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    monkeypatch.setattr(
        "softwarp.runs.model_folder.ask_hub", lambda address: asked.setdefault("address", address)
    )
    return asked


def test_what_is_written_is_read_back(run, folder):
    images = glyph_images([item.file for item in run.items()[:20]])
    ours, theirs = softwarp.load(run.folder, device="cpu"), softwarp.load(str(folder), device="cpu")
    assert torch.equal(ours.embed(images), theirs.embed(images))
    assert (theirs.distance, theirs.resize, theirs.crop) == ("euclidean", 32, 32)
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]


def test_a_name_is_fetched_from_the_hub_without_code(hub, run):
    model = softwarp.load("user/birds", device="cpu")
    assert model.network.embedding_size == 16
    assert "user/birds" in hub["address"]
    assert hub["user/birds"] == {
        "allow_patterns": ["config.json", "model.safetensors"],
        "local_files_only": False,
    }


def test_without_a_connection_the_last_copy_serves(hub, monkeypatch):
    def ask(address):
        raise OSError("no answer from the hub")

    monkeypatch.setattr("softwarp.runs.model_folder.ask_hub", ask)
    assert softwarp.load("user/birds").crop == 32
    assert hub["user/birds"]["local_files_only"]
    with pytest.raises(FileNotFoundError, match=r"user/wrens.*no answer.*hf auth login"):
        softwarp.load("user/wrens")


def test_what_lies_on_the_disk_comes_before_the_hub(hub, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.move(folder, tmp_path / "user" / "birds")
    assert softwarp.load("user/birds").crop == 32
    for typo in ("user/brids", tmp_path / "user" / "brids"):
        with pytest.raises(FileNotFoundError, match="brids is neither a run"):
            softwarp.load(typo)
    assert hub == {}


def test_a_changed_folder_is_refused_by_name(folder):
    config = json.loads((folder / "config.json").read_text())
    for key, value in (("distance", "manhattan"), ("schema", 2), ("crop", 0)):
        (folder / "config.json").write_text(json.dumps(config | {key: value}))
        with pytest.raises(ValueError, match=rf"config\.json.*{key}.*--to hf"):
            softwarp.load(folder)
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["others may add keys"]}))
    softwarp.load(folder)


def test_older_folders_pool_and_crop_as_they_did(folder):
    config = json.loads((folder / "config.json").read_text())
    assert (config["crop_mode"], config["interpolation"]) == ("center", "bilinear, antialiased")
    expected = softwarp.load(folder).embed(torch.zeros(1, 1, 32, 32, dtype=torch.uint8))
    del config["crop_mode"], config["model"]["pooling"]
    config["model"]["backbone"] = "test_resnet"  # whose own pooling is another
    assert ModelConfig.model_validate(config).model.pooling == "max+avg"
    config["model"]["backbone"] = "small_conv"
    (folder / "config.json").write_text(json.dumps(config))
    model = softwarp.load(folder)
    assert (model.interpolation, model.crop_mode) == ("bilinear", "center")
    assert torch.equal(model.embed(torch.zeros(1, 1, 32, 32, dtype=torch.uint8)), expected)


def test_a_folder_says_how_images_are_resized(run, tmp_path):
    model = replace(softwarp.load(run.folder), interpolation="bicubic", crop_mode="squash")
    write_model_folder(tmp_path / "model", run, model, licence=None)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert (config["crop_mode"], config["interpolation"]) == ("squash", "bicubic, antialiased")
    assert "both sides (bicubic, antialiased)" in (tmp_path / "model" / "README.md").read_text()
    read = softwarp.load(tmp_path / "model")
    assert (read.interpolation, read.crop_mode) == ("bicubic", "squash")


def test_weights_of_another_model_are_refused(folder):
    weights = load_file(folder / "model.safetensors")
    save_file(
        {name: tensor for name, tensor in weights.items() if name != "head.bias"},
        folder / "model.safetensors",
    )
    with pytest.raises(ValueError, match=r"missing: head\.bias"):
        softwarp.load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"no model\.safetensors"):
        softwarp.load(folder)


def test_a_run_is_not_overwritten(run):
    model = softwarp.load(run.folder, device="cpu")
    with pytest.raises(ValueError, match="is a run"):
        write_model_folder(run.folder, run, model, licence=None)
    assert not (run.folder / "config.json").exists()


class FakeApi:
    def __init__(self):
        self.calls = []

    def create_repo(self, name, **settings):
        self.calls.append((name, settings))
        return f"https://hub/{name}"

    def upload_folder(self, **settings):
        self.calls.append(settings)


def test_push_makes_a_private_repository_and_uploads_three_files(folder):
    (folder / "notes.txt").write_text("private")
    api = FakeApi()
    assert push_folder(folder, "user/birds", api) == "https://hub/user/birds"
    made, uploaded = api.calls
    assert made == ("user/birds", {"private": True, "exist_ok": True})
    assert uploaded == {
        "repo_id": "user/birds",
        "folder_path": folder,
        "allow_patterns": ["config.json", "model.safetensors", "README.md"],
    }


def test_a_refused_upload_says_why_and_what_is_kept(folder):
    class Refusing(FakeApi):
        def upload_folder(self, **settings):
            raise OSError("401 Unauthorized\nlong explanation")

    with pytest.raises(OSError, match=r"user/birds.*401 Unauthorized\).*hf auth login"):
        push_folder(folder, "user/birds", Refusing())
