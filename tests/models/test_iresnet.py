"""iResNet against a forward pass written from its definition, under insightface's names."""

import pytest
import torch
from torch.nn import functional as F

from softwarp import load
from softwarp.models.backbones import build_backbone
from softwarp.models.embedder import Embedder
from softwarp.models.iresnet import LAYERS

PLAIN = {"pooling": "avg", "norm": "none", "head": "none"}


def norm_names(name):
    return [
        f"{name}.{part}" for part in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    ]


def names_of(layers, wide_stem=False):
    """The names in a checkpoint of arcface_torch, or of the authors' fork of it."""
    names = ["conv1.weight", *norm_names("bn1"), "prelu.weight"]
    for stage, blocks in enumerate(layers, start=1):
        for block in range(blocks):
            place = f"layer{stage}.{block}"
            names += [*norm_names(f"{place}.bn1"), f"{place}.conv1.weight", *norm_names(f"{place}.bn2")]
            names += [f"{place}.prelu.weight", f"{place}.conv2.weight", *norm_names(f"{place}.bn3")]
            if block == 0 and not (wide_stem and stage == 1):
                names += [f"{place}.downsample.0.weight", *norm_names(f"{place}.downsample.1")]
    return [*names, *norm_names("bn2"), "fc.weight", "fc.bias", *norm_names("features")]


def normed(values, weights, name):
    parts = [weights[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")]
    return F.batch_norm(values, *parts, eps=1e-5)


def forward(images, weights, layers, wide_stem=False):
    x = F.conv2d(images, weights["conv1.weight"], stride=2 if wide_stem else 1, padding=1)
    x = F.prelu(normed(x, weights, "bn1"), weights["prelu.weight"])
    for stage, blocks in enumerate(layers, start=1):
        for block in range(blocks):
            place, stride = f"layer{stage}.{block}", 1 if block or (wide_stem and stage == 1) else 2
            y = F.conv2d(normed(x, weights, f"{place}.bn1"), weights[f"{place}.conv1.weight"], padding=1)
            y = F.prelu(normed(y, weights, f"{place}.bn2"), weights[f"{place}.prelu.weight"])
            y = F.conv2d(y, weights[f"{place}.conv2.weight"], stride=stride, padding=1)
            if stride == 2:
                x = F.conv2d(x, weights[f"{place}.downsample.0.weight"], stride=2)
                x = normed(x, weights, f"{place}.downsample.1")
            x = x + normed(y, weights, f"{place}.bn3")
    x = normed(x, weights, "bn2").reshape(len(images), -1)
    return normed(F.linear(x, weights["fc.weight"], weights["fc.bias"]), weights, "features")


@pytest.mark.parametrize("depth", LAYERS)
def test_names_are_those_of_insightface(depth):
    with torch.device("meta"):
        own = build_backbone(f"iresnet{depth}").state_dict()
    assert sorted(own) == sorted(names_of(LAYERS[depth]))
    assert own["fc.weight"].shape == (512, 25088)
    assert [len(LAYERS[depth]), 2 * sum(LAYERS[depth]) + 2] == [4, depth]


@pytest.mark.parametrize("depth", LAYERS)
def test_the_authors_stem_is_seven_pixels_wide_with_stride_two_and_the_first_stage_has_none(depth):
    """Face-Recognition/backbones/iresnet.py of their code: conv1 7 x 7, stride 2, padding 1; layer1 1."""
    with torch.device("meta"):
        backbone = build_backbone(f"iresnet{depth}_wide_stem")
    own = backbone.state_dict()
    assert sorted(own) == sorted(names_of(LAYERS[depth], wide_stem=True))
    stem = backbone.conv1
    assert (own["conv1.weight"].shape, stem.stride, stem.padding) == ((64, 3, 7, 7), (2, 2), (1, 1))
    strides = [backbone.get_submodule(f"layer{stage}.0.conv2").stride[0] for stage in range(1, 5)]
    assert strides == [1, 2, 2, 2]
    assert own["fc.weight"].shape == (512, 25088)


def drawn_weights(backbone):
    """Weights and statistics that keep every layer's output within bounds."""
    generator = torch.Generator().manual_seed(18)
    weights = {}
    for name, tensor in build_backbone(backbone).state_dict().items():
        if name.endswith("running_var"):
            weights[name] = torch.rand(tensor.shape, generator=generator) + 0.5
        elif tensor.ndim > 1:
            weights[name] = torch.randn(tensor.shape, generator=generator) / tensor[0].numel() ** 0.5
        elif tensor.is_floating_point():
            weights[name] = 0.3 * torch.randn(tensor.shape, generator=generator) + 0.5
        else:
            weights[name] = tensor
    return weights


@pytest.mark.parametrize(
    ("name", "distance"), [("iresnet18", "cosine"), ("iresnet18_wide_stem", "euclidean")]
)
def test_a_checkpoint_loads_and_computes_what_it_says(name, distance, tmp_path):
    """Of insightface, or of the authors' code."""
    weights = drawn_weights(name)
    torch.save(weights, tmp_path / "backbone.pth")
    pixels = torch.randint(0, 256, (2, 3, 112, 112), generator=torch.Generator().manual_seed(1)).byte()
    expected = forward((pixels.float() / 255 - 0.5) / 0.5, weights, LAYERS[18], "wide" in name)
    model = Embedder(name, 512, pretrained=str(tmp_path / "backbone.pth"), **PLAIN).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(pixels), expected, rtol=1e-3, atol=1e-4)
    loaded = load(name, weights=tmp_path / "backbone.pth")
    assert (loaded.distance, loaded.crop, loaded.resize) == (distance, 112, 112)
    torch.testing.assert_close(loaded.embed(pixels), expected, rtol=1e-3, atol=1e-4)


def test_weights_of_one_stem_do_not_fit_the_other(tmp_path):
    torch.save(build_backbone("iresnet18").state_dict(), tmp_path / "backbone.pth")
    with pytest.raises(ValueError, match=r"different model.*layer1\.0\.downsample.*conv1\.weight"):
        build_backbone("iresnet18_wide_stem", pretrained=str(tmp_path / "backbone.pth"))


def test_other_sizes_and_missing_weights_are_named():
    with pytest.raises(ValueError, match=r"112.*96 x 96"):
        build_backbone("iresnet18")(torch.zeros(1, 3, 96, 96))
    with pytest.raises(ValueError, match="no package ships weights of iresnet50"):
        load("iresnet50")


def test_the_last_layers_keep_full_precision_and_their_scale():
    model = build_backbone("iresnet18").train()
    with torch.autocast("cpu", torch.bfloat16):
        output = model(torch.randn(2, 3, 112, 112))
    assert (output.dtype, output.shape) == (torch.float32, (2, 512, 1, 1))
    output.square().sum().backward()
    assert model.features.weight.grad is None
    assert model.fc.weight.grad is not None
