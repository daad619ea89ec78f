"""Fine-tuning by depth: adapters beside frozen layers, rates that fall towards the image, frozen stages."""

import sys

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from softwarp import load
from softwarp.losses import build_loss
from softwarp.models.adapters import add_adapters, merged
from softwarp.models.embedder import Embedder
from softwarp.models.stages import stage_of
from softwarp.recipe.phases import OptimizerPart
from softwarp.recipe.schema import parse_recipe
from softwarp.training.optimizer import build_optimizer
from softwarp.training.train import train_recipe, training

NAME = "test_vit"
PHASE = {"epochs": 2, "learning_rate": 0.01, "proxy_learning_rate": 0.05}
ADAPTER = {"rank": 2, "dropout": 0.1}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    root, generator = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for label in range(6):
        (root / f"class {label}").mkdir()
        colour = generator.integers(0, 255, 3)
        for number in range(3):
            pixels = np.clip(colour + generator.normal(0, 30, (160, 160, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / f"class {label}" / f"{number}.png")
    return root


@pytest.fixture
def weights(tmp_path):
    torch.manual_seed(1)
    return save_weights(tmp_path / "weights.safetensors")


def save_weights(path):
    save_file(timm.create_model(NAME, num_classes=0, global_pool="").state_dict(), path)
    return path


def recipe(images, weights, **changes):
    settings = {
        "data": {"name": "folder", "root": str(images), "resize": 160, "crop": 160, "workers": 0},
        "model": {"backbone": NAME, "pretrained": str(weights), "embedding_size": 8, "pooling": "avg"},
        "loss": {"name": "euclidean_softmax"},
        "batches": {"classes": 2, "samples": 2},
        "optimizer": {"name": "adamw"},
        "phases": [PHASE],
        "evaluation": {"split": "test", "ks": [1], "clustering": False, "avg_dtp_images": 0},
    }
    for key, value in changes.items():
        settings[key] = settings[key] | value if isinstance(value, dict) else value
    return parse_recipe(settings)


def adapted(images, weights, **optimizer):
    return recipe(images, weights, model={"adapter": ADAPTER}, optimizer=optimizer)


def test_adapters_start_at_the_frozen_network_and_are_merged_without_a_change():
    torch.manual_seed(0)
    network = timm.create_model(NAME, num_classes=0).eval()
    batch = torch.randn(2, 3, 160, 160)
    before, names = network(batch), set(network.state_dict())
    add_adapters(network, rank=2, alpha=4)
    torch.testing.assert_close(network(batch), before)
    for name, weight in network.named_parameters():
        assert weight.requires_grad == ("lora_" in name)
        if "lora_B" in name:
            nn.init.normal_(weight, std=0.1)
    trained, plain = network(batch), merged(network)
    assert not torch.allclose(trained, before, atol=1e-2)
    torch.testing.assert_close(plain(batch), trained, atol=1e-4, rtol=1e-4)
    assert set(plain.state_dict()) == names
    torch.testing.assert_close(network(batch), trained)  # the network itself is not merged


def test_a_run_with_adapters_hands_out_a_plain_model(images, weights, tmp_path):
    run = train_recipe(adapted(images, weights), tmp_path / "run")
    final = run.load_model()
    start = Embedder(NAME, 8, pretrained=str(weights), pooling="avg").state_dict()
    moved = {name for name in start if not torch.equal(start[name], final[name])}
    assert set(final) == set(start)
    assert "backbone.model.blocks.0.attn.qkv.weight" in moved
    assert "backbone.model.blocks.0.norm1.weight" not in moved
    paths = [images / item.file for item in run.items()]
    torch.testing.assert_close(load(run.folder).embed(paths), run.load_embeddings()["embeddings"])


@pytest.mark.parametrize("optimizer", [{}, {"average": 0.5}, {"wise_ft": 0.5}], ids=str)
def test_a_checkpoint_is_small_and_resumes_to_the_very_same_end(images, weights, tmp_path, optimizer):
    one = adapted(images, weights, **optimizer)
    straight = train_recipe(one, tmp_path / "straight")
    stopped = training(one, tmp_path / "stopped")
    next(stopped)
    stopped.close()
    resumed = train_recipe(one, tmp_path / "stopped", resume=True)
    expected = straight.load_model()
    for name, tensor in resumed.load_model().items():
        assert torch.equal(tensor, expected[name]), name
    kept = resumed.load_checkpoint()[0]
    frozen = {name for name in expected if name.startswith("backbone.") and "norm" in name}
    for part in ("model", "average", "start"):
        names = {name.removeprefix("module.") for name in kept.get(part, {})}
        assert not any(name.endswith("base_layer.weight") for name in names)
        assert frozen.isdisjoint(names)
    size = (resumed.folder / "checkpoint.pt").stat().st_size
    assert size < weights.stat().st_size / 2


def test_other_pretrained_weights_do_not_resume(images, weights, tmp_path):
    one = adapted(images, weights)
    stopped = training(one, tmp_path / "run")
    next(stopped)
    stopped.close()
    torch.manual_seed(2)
    save_weights(weights)
    with pytest.raises(ValueError, match="weights of test_vit"):
        train_recipe(one, tmp_path / "run", resume=True)


def test_between_the_start_and_the_trained_model_weights_are_merged_ones(images, weights, tmp_path):
    whole = train_recipe(adapted(images, weights), tmp_path / "whole").load_model()
    half = train_recipe(adapted(images, weights, wise_ft=0.5), tmp_path / "half").load_model()
    none = train_recipe(adapted(images, weights, wise_ft=1e-9), tmp_path / "none").load_model()
    start = Embedder(NAME, 8, pretrained=str(weights), pooling="avg").state_dict()
    for name in (name for name in start if name.startswith("backbone.")):
        torch.testing.assert_close(none[name], start[name], atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(half[name], (start[name] + whole[name]) / 2, atol=1e-6, rtol=1e-5)


def test_rates_fall_towards_the_image():
    model, loss = Embedder(NAME, 8), build_loss("euclidean_softmax", 3, 8)
    optimizer, groups = build_optimizer(OptimizerPart(layer_decay=0.5), model, loss)
    factors = {
        id(weight): of.factor
        for group, of in zip(optimizer.param_groups, groups, strict=True)
        for weight in group["params"]
    }
    assert len(factors) == len(list(model.parameters())) + len(list(loss.parameters()))
    stages = stage_of(model.backbone, blocks=True)
    for name, weight in model.backbone.named_parameters():
        assert factors[id(weight)] == 0.5 ** (max(stages.values()) - stages[name])
    assert {factors[id(weight)] for weight in (*model.head.parameters(), *loss.parameters())} == {1.0}


def test_a_smaller_rate_moves_earlier_blocks_less(images, weights, tmp_path):
    one = recipe(images, weights, optimizer={"layer_decay": 0.1, "eps": 1e-8})
    final = train_recipe(one, tmp_path / "run").load_model()
    start = Embedder(NAME, 8, pretrained=str(weights), pooling="avg").state_dict()
    names = [f"backbone.model.blocks.{block}.mlp.fc1.weight" for block in (0, 2, 5)]
    moved = [float((final[name] - start[name]).abs().mean()) for name in names]
    assert 0 < 50 * moved[0] < 5 * moved[1] < moved[2]


def test_frozen_stages_stay_as_they_were(images, weights, tmp_path):
    final = train_recipe(recipe(images, weights, model={"freeze_stages": 3}), tmp_path / "run").load_model()
    start = Embedder(NAME, 8, pretrained=str(weights), pooling="avg").state_dict()
    moved = {name for name in start if not torch.equal(start[name], final[name])}
    assert not any("patch_embed" in name or ".blocks.0." in name or ".blocks.1." in name for name in moved)
    assert "backbone.model.blocks.2.mlp.fc1.weight" in moved


def test_what_cannot_have_adapters_is_refused(monkeypatch, images, weights):
    with pytest.raises(ValueError, match="linear layers"):
        Embedder("small_conv", 8, adapter=ADAPTER)
    with pytest.raises(ValueError, match="l2_sp"):
        adapted(images, weights, l2_sp=0.1)
    with pytest.raises(ValueError, match="freeze_stages"):
        recipe(images, weights, model={"adapter": ADAPTER, "freeze_stages": 1})
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ValueError, match=r"softwarp\[adapters\]"):
        Embedder(NAME, 8, adapter=ADAPTER)


def test_a_network_without_branches_drops_none():
    with pytest.raises(ValueError, match="drop_path"):
        Embedder("small_conv", 8, drop_path=0.1)
    branches = [layer for layer in Embedder(NAME, 8, drop_path=0.2).modules() if hasattr(layer, "drop_prob")]
    assert max(layer.drop_prob for layer in branches) == pytest.approx(0.2)
