"""A file that was added under a name is what `pretrained=True` loads, and no other file gets there."""

import hashlib
import os
import shutil

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

import softwarp
from softwarp.models.adding_weights import add_weights
from softwarp.models.backbones import build_backbone
from softwarp.models.weights_folder import added_weights, find_added


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("SOFTWARP_WEIGHTS", str(tmp_path / "weights"))
    return tmp_path / "weights"


def weights_of(name="test_vit", seed=7, **settings):
    torch.manual_seed(seed)
    return timm.create_model(name, **settings).state_dict()


@pytest.fixture
def file(tmp_path):
    """Weights of test_vit with its classifier, in fp16."""
    path = tmp_path / "given.safetensors"
    save_file({name: tensor.half() for name, tensor in weights_of().items()}, path)
    return path


def test_the_name_then_works_everywhere(file, folder):
    added = add_weights(file, "test_vit")
    assert added.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert (added.original, added.licence, added.source) == ("given.safetensors", "apache-2.0", "")
    kept = load_file(added.path)
    assert {tensor.dtype for tensor in kept.values()} == {torch.float16}
    assert "head.weight" in kept  # as it was given
    for backbone in (
        build_backbone("test_vit", pretrained=True).model,
        softwarp.load("test_vit", device="cpu").network.backbone.model,
    ):
        own = backbone.state_dict()
        assert own["blocks.0.attn.qkv.weight"].dtype == torch.float32
        assert all(torch.equal(tensor, kept[name].float()) for name, tensor in own.items())
    assert sorted(path.name for path in folder.iterdir()) == [added.path.name, "test_vit.json"]


@pytest.mark.parametrize("suffix", ["pth", "pt", "safetensors"])
def test_state_dicts_and_float32_do_as_well(tmp_path, suffix):
    weights, path = weights_of(num_classes=0), tmp_path / f"given.{suffix}"
    if suffix == "safetensors":
        save_file(weights, path)
    else:
        torch.save({"state_dict": {f"module.{name}": value for name, value in weights.items()}}, path)
    add_weights(path, "test_vit")
    own = build_backbone("test_vit", pretrained=True).model.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in own.items())


def test_tensors_that_share_memory_are_kept(tmp_path):
    weights = weights_of(num_classes=0)
    weights["norm.weight"] = weights["norm.bias"] = torch.full_like(weights["norm.bias"], 3.0)
    torch.save(weights, tmp_path / "tied.pth")
    add_weights(tmp_path / "tied.pth", "test_vit")
    assert (build_backbone("test_vit", pretrained=True).model.state_dict()["norm.bias"] == 3).all()


def test_networks_of_our_own_take_files_too(tmp_path):
    weights = build_backbone("small_conv").state_dict()
    torch.save(weights, tmp_path / "conv.pth")
    assert add_weights(tmp_path / "conv.pth", "small_conv").licence == "unknown"
    own = build_backbone("small_conv", pretrained=True).state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in own.items())


def test_another_tag_is_another_network(file):
    add_weights(file, "test_vit")
    assert find_added("test_vit.r160_in1k") is None
    add_weights(file, "test_vit.r160_in1k")
    assert [added.name for added in added_weights()] == ["test_vit", "test_vit.r160_in1k"]


def test_the_same_again_is_fine_and_repairs(file):
    added = add_weights(file, "test_vit", licence="mit", source="a colleague")
    added.path.write_bytes(b"damaged")
    again = add_weights(file, "test_vit")
    assert (again.licence, again.source, again.file) == ("mit", "a colleague", added.file)
    build_backbone("test_vit", pretrained=True)


def test_another_file_needs_replace(file, folder, tmp_path):
    first = add_weights(file, "test_vit", licence="mit")
    other = tmp_path / "other.pth"
    torch.save(weights_of(seed=8), other)
    with pytest.raises(ValueError, match=rf"given\.safetensors .*{first.sha256[:12]}.*--replace"):
        add_weights(other, "test_vit")
    assert find_added("test_vit") == first
    second = add_weights(other, "test_vit", replace=True)
    assert second.licence == "apache-2.0"  # the other's licence went with it
    assert find_added("test_vit") == second
    assert not first.path.exists()
    assert len(list(folder.iterdir())) == 2


def test_files_of_another_network_or_none_are_refused(file, folder, tmp_path):
    with pytest.raises(ValueError, match=r"different model: .*blocks"):
        add_weights(file, "test_resnet")
    with pytest.raises(ValueError, match=r"did you mean .*test_vit"):
        add_weights(file, "test_vitt")
    with pytest.raises(ValueError, match="Invalid pretrained tag"):
        add_weights(file, "test_vit.nonsense")
    with pytest.raises(ValueError, match="nonsense"):  # a record must not lie elsewhere
        add_weights(file, "test_vit./../../nonsense")
    with pytest.raises(FileNotFoundError, match=r"none\.pth does not exist; give"):
        add_weights(tmp_path / "none.pth", "test_vit")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(ValueError, match=r"list\.pth .*state dict"):
        add_weights(tmp_path / "list.pth", "test_vit")
    half = tmp_path / "half.safetensors"
    half.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(ValueError, match=r"half\.safetensors cannot be read"):
        add_weights(half, "test_vit")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        add_weights(tmp_path, "test_vit")
    assert not folder.exists()


@pytest.mark.skipif(os.name != "posix", reason="named pipes")
def test_a_pipe_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="pipe is a pipe or a device"):
        add_weights(tmp_path / "pipe", "test_vit")


def test_a_folder_that_takes_no_file_is_named_with_the_cure(file, folder, monkeypatch):
    folder.write_text("a file in its place")
    with pytest.raises(OSError, match=rf"{folder} .*SOFTWARP_WEIGHTS"):
        add_weights(file, "test_vit")


def test_a_full_disk_keeps_what_was_there(file, tmp_path, monkeypatch):
    first = add_weights(file, "test_vit")
    other = tmp_path / "other.pth"
    torch.save(weights_of(seed=8), other)

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("softwarp.files.os.fsync", full)
    with pytest.raises(OSError, match=r"No space left on device.*free disk space"):
        add_weights(other, "test_vit", replace=True)
    assert find_added("test_vit") == first
    build_backbone("test_vit", pretrained=True)


def test_names_of_a_models_authors_are_renamed_as_timm_does(tmp_path):
    weights = weights_of(num_classes=0)
    theirs = {f"visual.trunk.{name}": tensor.half() for name, tensor in weights.items()}  # OpenCLIP's
    save_file(theirs | {"logit_scale": torch.zeros(1)}, tmp_path / "clip.safetensors")
    kept = load_file(add_weights(tmp_path / "clip.safetensors", "test_vit").path)
    assert set(kept) == set(weights)
    assert all(torch.equal(kept[name], tensor.half()) for name, tensor in weights.items())


def test_weights_that_timm_would_interpolate_are_another_network(tmp_path):
    weights = weights_of(num_classes=0, img_size=96)
    theirs = {f"visual.trunk.{name}": tensor for name, tensor in weights.items()}
    save_file(theirs, tmp_path / "small.safetensors")
    with pytest.raises(ValueError, match="different model"):
        add_weights(tmp_path / "small.safetensors", "test_vit")


def test_a_copied_folder_serves_another_machine(file, folder, tmp_path, monkeypatch):
    add_weights(file, "test_vit")
    shutil.copytree(folder, tmp_path / "copy")
    shutil.rmtree(folder)
    assert find_added("test_vit") is None
    monkeypatch.setenv("SOFTWARP_WEIGHTS", str(tmp_path / "copy"))
    build_backbone("test_vit", pretrained=True)
