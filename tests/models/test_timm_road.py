"""Each family of timm's networks goes the whole road: a step of training, index, search, exports, serve."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from starlette.testclient import TestClient
from support.timm_families import FAMILIES, make_small
from support.tiny_index import glyph_files

import softwarp
from softwarp.export.formats import describe, run_onnx, run_torch_export
from softwarp.index.index import Index
from softwarp.models.preparation import is_transformer, sizes_of
from softwarp.recipe.schema import parse_recipe
from softwarp.serve.app import create_app
from softwarp.training.own_recipe import resize_for
from softwarp.training.train import train_recipe

timm = pytest.importorskip("timm")
pytestmark = pytest.mark.slow
SIDE = 112  # at most, if the network reads such a size


@pytest.fixture(scope="module")
def glyphs(tmp_path_factory):
    return glyph_files(tmp_path_factory.mktemp("glyphs"), classes=6, styles=2)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    make_small(monkeypatch)
    for remembered in (sizes_of, is_transformer):
        remembered.cache_clear()
    yield
    for remembered in (sizes_of, is_transformer):
        remembered.cache_clear()


@torch.no_grad()
def weights(name, path):
    """Random weights that tell images apart; timm's own hardly let a signal through some networks."""
    torch.manual_seed(0)
    network = timm.create_model(name, num_classes=0)
    for weight in network.parameters():
        spread = (2 / weight[0].numel()) ** 0.5 if weight.ndim > 1 else 0.1
        weight.add_(torch.randn_like(weight), alpha=spread)
    save_file(network.state_dict(), path)
    return str(path)


def trained(name, images, pretrained, folder):
    """A run of one step; transformers are trained by adapters, as own images train them."""
    crop = sizes_of(name).at_most(SIDE)
    settings = {
        "data": {
            "name": "folder",
            "root": str(images),
            "crop": crop,
            "resize": resize_for(crop, name),
            "interpolation": "bicubic",
            "workers": 0,
        },
        "model": {
            "backbone": name,
            "pretrained": pretrained,
            "embedding_size": 8,
            "head_init": "pca",
            "adapter": {"rank": 2} if is_transformer(name) else None,
        },
        "loss": {"name": "euclidean_softmax", "proxy_init": "means"},
        "batches": {"classes": 2, "samples": 2, "per_epoch": 1},
        "optimizer": {"name": "adamw"},
        "phases": [{"epochs": 1, "learning_rate": 0.001, "proxy_learning_rate": 0.01}],
        "evaluation": {"split": "test", "ks": [1], "clustering": False, "avg_dtp_images": 0},
    }
    return train_recipe(parse_recipe(settings), folder)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_whole_road(name, glyphs, tmp_path):
    pretrained = weights(name, tmp_path / "weights.safetensors")
    run = trained(name, glyphs, pretrained, tmp_path / "run")
    model = softwarp.load(run.folder, device="cpu")
    assert not any("lora" in key for key in model.network.state_dict())
    files = sorted(glyphs.rglob("*.png"))
    expected = model.embed(files)
    assert expected.std(dim=0).max() > 1e-3  # it tells images apart

    index = Index.build(run.folder, glyphs, tmp_path / "index")
    assert len(index) == len(files)
    (found,) = index.search(files[3], k=1)
    assert (index.root / found.path, found.distance) == (files[3], pytest.approx(0, abs=1e-3))

    side = f"[batch, 3, {model.crop}, {model.crop}]"
    assert side in describe(model)["input"]
    pixels = torch.stack([model.transform(model.read(file)) for file in files])
    for suffix, forward in ((".onnx", run_onnx), (".pt2", run_torch_export)):
        file = tmp_path / f"model{suffix}"
        assert model.export(file).check.close()  # batches of one and of many
        again = forward(file.read_bytes())
        for batch in (1, 3):
            torch.testing.assert_close(again(pixels[:batch]), expected[:batch], atol=1e-4, rtol=1e-3)

    model.save_pretrained(tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert side in config["input"]
    torch.testing.assert_close(softwarp.load(tmp_path / "hf", device="cpu").embed(files), expected)

    with TestClient(create_app(Index.open(tmp_path / "index")), base_url="http://127.0.0.1") as client:
        query = {"image": ("query.png", files[3].read_bytes())}
        (first, *_) = client.post("/api/search", files=query, params={"k": 2}).json()["results"]
    assert first["same_file"]
    np.testing.assert_allclose(first["distance"], 0, atol=1e-3)
