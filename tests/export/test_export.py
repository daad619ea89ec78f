"""What is exported does what torch does, says what it needs, and is refused when it does not."""

import io
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.pictures import jpeg, noise
from support.tiny_runs import PHASE, tiny

import softwarp
from softwarp.export.check import compare_with_torch, images_to_check
from softwarp.export.formats import (
    describe,
    quantise,
    run_onnx,
    run_timm,
    run_torch_export,
    to_onnx,
    to_timm,
    to_torch_export,
)
from softwarp.inference import EmbeddingModel
from softwarp.models.embedder import Embedder
from softwarp.training.train import train_recipe

DOCS = (Path(__file__).parents[2] / "docs" / "export.md").read_text()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train_recipe(tiny(phases=[PHASE]), tmp_path_factory.mktemp("glyphs"))


@pytest.fixture(scope="module")
def model(run):
    return softwarp.load(run.folder, device="cpu")


@pytest.fixture(scope="module")
def images(run, model):
    return images_to_check(run.folder, model, count=100)


@pytest.fixture(scope="module")
def onnx_file(model):
    return to_onnx(model)


def untrained(name, side):
    torch.manual_seed(0)
    network = Embedder(name, 24).eval()
    return EmbeddingModel(network, "cosine", resize=side, crop=side, device=torch.device("cpu"))


def test_onnx_finds_the_same_neighbours(run, model, images, onnx_file):
    check = compare_with_torch(run_onnx(onnx_file), model, images)
    assert 0 < check.difference < 1e-4
    assert check.close()
    assert (check.images, check.same_neighbours) == (108, 108)  # whole classes of twelve
    assert check.recall[0] == check.recall[1]
    assert "validation" in check.origin


def test_onnx_says_what_it_takes_and_takes_nothing_else(model, onnx_file):
    import onnxruntime

    session = onnxruntime.InferenceSession(onnx_file)
    (read,), (given,) = session.get_inputs(), session.get_outputs()
    assert (read.name, read.type, read.shape) == ("images", "tensor(uint8)", ["batch", 1, 32, 32])
    assert (given.name, given.shape) == ("embeddings", ["batch", 16])
    facts = session.get_modelmeta().custom_metadata_map
    assert facts["distance"] == "euclidean"
    assert (facts["resize"], facts["crop"], json.loads(facts["mean"])) == ("32", "32", [0.0])
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument, match="uint8"):
        session.run(None, {"images": np.zeros((1, 1, 32, 32), dtype=np.float32)})


def test_the_snippet_of_the_docs_comes_close_to_embed(model, onnx_file, tmp_path, monkeypatch, capsys):
    """A person without torch resizes by Pillow, whose rounding differs by a grey level."""
    (snippet,) = [code for code in re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL) if "PIL" in code]
    monkeypatch.chdir(tmp_path)
    Path("model.onnx").write_bytes(onnx_file)
    smooth = [noise(5, 4, seed).resize((90, 61), Image.Resampling.BICUBIC) for seed in (1, 2)]
    files = [jpeg(Path(name), image) for name, image in zip(("a.jpg", "b.jpg"), smooth, strict=True)]
    names = {}
    exec(compile(snippet, "export.md", "exec"), names)
    expected = model.embed(files).numpy()
    apart = float(np.linalg.norm(expected[0] - expected[1]))
    assert np.linalg.norm(names["embeddings"] - expected, axis=1).max() < 0.02 * apart
    assert float(capsys.readouterr().out) == pytest.approx(apart, rel=0.02)


def test_int8_is_smaller_and_leaves_convolutions_alone(model, images, onnx_file):
    small = quantise(onnx_file)
    assert (small.linear, small.convolutions) == (1, 4)
    assert len(small.content) < len(onnx_file)
    check = compare_with_torch(run_onnx(small.content), model, images)
    assert not check.close()
    assert check.difference < 0.1 * check.largest
    assert check.recall[1] == pytest.approx(check.recall[0], abs=0.05)


@pytest.mark.slow
def test_a_pt2_file_does_the_same_and_holds_the_facts(model, images):
    content = to_torch_export(model)
    check = compare_with_torch(run_torch_export(content), model, images)
    assert check.close()
    assert check.same_neighbours == check.images
    inside = {"softwarp.json": ""}
    torch.export.load(io.BytesIO(content), extra_files=inside)
    assert json.loads(inside["softwarp.json"]) == describe(model)


def test_a_wrong_export_is_noticed(model, images):
    check = compare_with_torch(lambda batch: model.network(batch) * 1.001, model, images)
    assert not check.close()
    flipped = compare_with_torch(lambda batch: model.network(batch.flip(-1)), model, images)
    assert flipped.same_neighbours < flipped.images
    assert flipped.recall[1] != flipped.recall[0]


def test_without_the_data_random_images_are_used(run, model, tmp_path):
    images = images_to_check(tmp_path / "elsewhere", model, count=12)
    assert images.pixels.shape == (12, 1, 32, 32)
    assert images.labels is None
    assert "random" in images.origin
    assert "elsewhere" in images.origin
    check = compare_with_torch(model.network, model, images)
    assert check.recall is None


def test_a_missing_package_is_named_with_the_command(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ValueError, match=r"onnxscript.*pip install 'softwarp\[export\]'"):
        to_onnx(model)


def test_timm_lacks_our_small_network(model):
    with pytest.raises(ValueError, match=r"SmallConvNet.*--to onnx"):
        to_timm(model)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "theirs"),
    [("efficientnet_lite0", "tf_efficientnet_lite0"), ("resnet10t", "resnet10t"), ("test_vit", "test_vit")],
)
def test_timm_takes_the_backbone(name, theirs, tmp_path):
    import timm
    from safetensors import safe_open

    model = untrained(name, 64)
    images = images_to_check(tmp_path, model, count=12)
    content = to_timm(model)
    check = compare_with_torch(run_timm(content, model), model, images)
    assert check.close()
    (tmp_path / "backbone.safetensors").write_bytes(content)
    loaded = timm.create_model(theirs, num_classes=0, checkpoint_path=tmp_path / "backbone.safetensors")
    torch.testing.assert_close(loaded.state_dict(), model.network.backbone.model.state_dict())
    with safe_open(tmp_path / "backbone.safetensors", "pt") as file:
        assert file.metadata()["timm"] == theirs
        assert file.metadata()["distance"] == "cosine"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "side"), [("efficientnet_lite0", 64), ("vit_tiny_patch16_224", 224), ("bn_inception", 64)]
)
def test_every_kind_of_backbone_exports_with_any_batch(name, side, tmp_path):
    model = untrained(name, side)
    images = images_to_check(tmp_path, model, count=12)
    content = to_onnx(model)
    assert compare_with_torch(run_onnx(content), model, images).close()  # batches of 1 and 11
    small = quantise(content)
    assert small.linear >= 1
    if name.startswith("vit"):
        assert small.linear > 40
        assert len(small.content) < 0.4 * len(content)
    assert compare_with_torch(run_torch_export(to_torch_export(model)), model, images).close()
