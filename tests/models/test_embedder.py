import pytest
import torch
from torch import nn

from softwarp.models.embedder import Embedder
from softwarp.models.pooling import GeneralisedMean

GLYPHS = (torch.arange(4 * 28 * 28) * 37 % 256).to(torch.uint8).reshape(4, 1, 28, 28)


def test_pooling_is_maximum_plus_average_then_norm_then_linear():
    torch.manual_seed(0)
    model = Embedder("small_conv", 8).eval()
    images = torch.randint(256, (3, 1, 32, 32), dtype=torch.uint8)
    with torch.no_grad():
        features = model.backbone(images.float() / 255)
        pooled = features.flatten(2).max(dim=2).values + features.flatten(2).mean(dim=2)
        normed = (pooled - pooled.mean(1, keepdim=True)) / (
            pooled.var(1, unbiased=False, keepdim=True) + 1e-5
        ).sqrt()
        expected = normed @ model.head.weight.T + model.head.bias
        torch.testing.assert_close(model(images), expected)
    assert not list(model.norm.parameters())


def test_the_head_starts_as_the_authors_do():
    torch.manual_seed(0)
    head = Embedder("small_conv", 256).head
    assert head.weight.std().item() == pytest.approx((2 / 256) ** 0.5, rel=0.02)
    assert not head.bias.any()


def test_an_unknown_backbone_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match=r"did you mean small_conv\?"):
        Embedder("smal_conv", 8)


def test_seeded_small_models_do_not_move():
    torch.manual_seed(0)
    model = Embedder("small_conv", 16)
    after = torch.rand(1)
    torch.manual_seed(0)  # the same layers, in the order in which they have always been drawn
    layers = []
    for inputs, outputs, stride in ((1, 16, 2), (16, 32, 2), (32, 64, 2), (64, 128, 1)):
        convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]
    head = nn.Linear(128, 16)
    nn.init.kaiming_normal_(head.weight, mode="fan_out")
    nn.init.zeros_(head.bias)
    assert torch.equal(after, torch.rand(1))
    features = nn.Sequential(*layers).to(memory_format=torch.channels_last)(GLYPHS.float() / 255)
    pooled = features.amax(dim=(2, 3)) + features.mean(dim=(2, 3))
    assert torch.equal(model(GLYPHS), head(nn.functional.layer_norm(pooled, (128,))))
    names = [f"backbone.layers.{i}.0.weight" for i in range(4)]
    assert {*names, "head.weight", "head.bias"} <= set(model.state_dict())
    assert len(model.state_dict()) == 4 * 6 + 2  # the normalisation is not in it


def test_seeded_small_models_give_what_the_first_release_gave():
    torch.manual_seed(0)
    model = Embedder("small_conv", 16)
    embeddings = model(GLYPHS)
    assert embeddings.double().sum().item() == pytest.approx(-23.881227247416973, rel=1e-4)
    assert embeddings.double().abs().sum().item() == pytest.approx(235.84597022086382, rel=1e-5)
    assert model.eval()(GLYPHS).double().abs().sum().item() == pytest.approx(146.27103520929813, rel=1e-4)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ("avg", lambda features: features.mean(dim=2)),
        ("max", lambda features: features.max(dim=2).values),
        ("gem", lambda features: (features.clamp(min=1e-6) ** 3).mean(dim=2) ** (1 / 3)),
    ],
)
def test_the_other_poolings(pooling, expected):
    torch.manual_seed(0)
    model = Embedder("small_conv", 8, pooling=pooling, norm="none").eval()
    with torch.no_grad():
        pooled = expected(model.backbone(GLYPHS.float() / 255).flatten(2))
        torch.testing.assert_close(model(GLYPHS), pooled @ model.head.weight.T)


@pytest.mark.parametrize(
    ("backbone", "native"),
    [
        ("small_conv", "max+avg"),
        ("bn_inception", "max+avg"),
        ("efficientnet_lite0", "max+avg"),
        ("iresnet18", "avg"),
        ("test_resnet", "native"),
    ],
)
def test_a_backbone_says_which_pooling_is_its_own(backbone, native):
    model = Embedder(backbone, 8)
    assert model.pooling == native
    same = Embedder(backbone, 8, pooling=native)
    assert same.state_dict().keys() == model.state_dict().keys()
    assert type(same.pool) is type(model.pool)


def test_the_head_sees_class_token_and_patches_side_by_side():
    images = torch.randint(256, (2, 3, 64, 48), dtype=torch.uint8)
    model = Embedder("test_vit", 8, pooling="token+mean").eval()
    assert model.head.in_features == 2 * Embedder("test_vit", 8).head.in_features == 128
    with torch.no_grad():
        tokens = model.backbone.model.forward_features((images - model.mean) / model.std)
        both = torch.cat([tokens[:, 0], tokens[:, 1:].mean(1)], dim=1)
        expected = nn.functional.layer_norm(both, (128,))
        torch.testing.assert_close(model.features(images), expected)
        torch.testing.assert_close(model(images), model.head(expected))
    for name in ("small_conv", "test_resnet"):
        with pytest.raises(ValueError, match=f"class token, which {name} .*model.pooling=native"):
            Embedder(name, 8, pooling="token+mean")


def test_without_a_size_there_are_as_many_dimensions_as_features():
    assert Embedder("small_conv", None, head="none").embedding_size == 128


def test_the_power_of_gem_learns_with_the_head_and_survives_extremes():
    features = torch.rand(2, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    pool = GeneralisedMean().double()
    assert torch.autograd.gradcheck(pool, (features,))
    pool(features).sum().backward()
    assert pool.power.grad.abs() > 0
    large = GeneralisedMean(power=500.0)
    halves = torch.full((1, 2, 2, 2), 300.0, dtype=torch.float16)
    halves[0, 0] = -1.0
    pooled = large(halves)
    assert pooled.dtype == torch.float32
    torch.testing.assert_close(pooled, torch.tensor([[1e-6, 300.0]]))
    average = GeneralisedMean(power=-2.0)  # below 1 it stays the average
    torch.testing.assert_close(average(torch.tensor([[[[1.0, 4.0]]]])), torch.tensor([[2.5]]))
    pool(torch.zeros(1, 1, 2, 2, dtype=torch.float64)).backward()
    assert pool.power.grad.isfinite()


def test_the_norm_stands_before_or_after_the_linear_layer_or_nowhere():
    models = {}
    for norm in ("before", "after", "none"):
        torch.manual_seed(0)
        models[norm] = Embedder("small_conv", 8, norm=norm).eval()
    with torch.no_grad():
        plain = models["none"](GLYPHS)
        torch.testing.assert_close(models["after"](GLYPHS), nn.functional.layer_norm(plain, (8,)))
        for model in models.values():
            features = model.features(GLYPHS)
            torch.testing.assert_close(models["before"].head(features), models["before"](GLYPHS))
        assert not torch.allclose(plain, models["before"](GLYPHS))


def test_the_head_can_start_as_torch_does():
    torch.manual_seed(0)
    head = Embedder("small_conv", 512, head_init="default").head
    assert head.weight.abs().max().item() == pytest.approx(128**-0.5, rel=1e-3)
    assert head.bias.any()


def test_without_a_head_pooled_features_are_the_embeddings():
    model = Embedder("small_conv", 128, head="none", norm="none", pooling="avg").eval()
    with torch.no_grad():
        expected = model.backbone(GLYPHS / 255).mean(dim=(2, 3))
        torch.testing.assert_close(model(GLYPHS), expected)
    assert model.head_parameters() == []
    with pytest.raises(ValueError, match=r"128 features.* 8; .*model\.embedding_size=128"):
        Embedder("small_conv", 8, head="none")


def test_wrong_choices_are_named():
    for name in ("pooling", "norm", "head", "head_init"):
        with pytest.raises(ValueError, match=f"{name} .*'median'"):
            Embedder("small_conv", 8, **{name: "median"})


@pytest.mark.parametrize("backbone", ["small_conv", "test_efficientnet"])
def test_frozen_batch_norm_keeps_statistics_and_affine(backbone):
    torch.manual_seed(0)
    model = Embedder(backbone, 8, freeze_batch_norm=True)
    norms = [layer for layer in model.backbone.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert norms
    assert model.training
    assert not any(layer.training for layer in norms)
    for mode in (True, False, True):
        assert model.train(mode) is model
        assert not any(layer.training for layer in norms)
        assert model.head.training is mode
    before = {name: value.clone() for name, value in model.backbone.named_buffers()}
    model(torch.randint(256, (2, model.backbone.in_channels, 64, 64))).square().sum().backward()
    assert all(torch.equal(value, before[name]) for name, value in model.backbone.named_buffers())
    frozen = {id(value) for layer in norms for value in layer.parameters()}
    for value in model.parameters():
        assert (value.grad is None) == (id(value) in frozen)


def test_a_frozen_backbone_gets_no_gradient_and_no_grad_stays_in_force():
    model = Embedder("small_conv", 8, pooling="gem")
    model(GLYPHS, freeze_backbone=True).square().sum().backward()
    assert all(value.grad is None for value in model.backbone_parameters())
    assert all(value.grad is not None for value in model.head_parameters())
    seen = []
    model.backbone.register_forward_hook(lambda *call: seen.append(call[2].requires_grad))
    with torch.no_grad():
        model(GLYPHS)
    model(GLYPHS)
    assert seen == [False, True]


def test_without_freezing_statistics_move():
    model = Embedder("small_conv", 8)
    model.eval()(GLYPHS)
    assert model.backbone.layers[0][1].num_batches_tracked == 0
    model.train()(GLYPHS)
    assert model.backbone.layers[0][1].num_batches_tracked == 1
    assert model.backbone.layers[0][1].weight.requires_grad


@pytest.mark.parametrize("pooling", ["max+avg", "gem"])
def test_parameter_groups_are_disjoint_and_complete(pooling):
    model = Embedder("small_conv", 8, pooling=pooling)
    backbone, head = model.backbone_parameters(), model.head_parameters()
    assert {id(value) for value in backbone}.isdisjoint(id(value) for value in head)
    assert {id(value) for value in backbone + head} == {id(value) for value in model.parameters()}
    assert len(head) == (3 if pooling == "gem" else 2)


def test_images_are_normalised_as_the_backbone_asks():
    torch.manual_seed(0)
    model = Embedder("efficientnet_lite0", 8).eval()
    images = torch.randint(256, (2, 3, 64, 64), dtype=torch.uint8)
    seen = []
    model.backbone.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        embeddings = model(images)
        torch.testing.assert_close(seen[0], (images.float() - 127) / 128)
        torch.testing.assert_close(model(images.float()), embeddings)
    assert not {"mean", "std"} & set(model.state_dict())


def test_grey_images_are_repeated_and_colour_is_refused_by_a_grey_backbone():
    torch.manual_seed(0)
    model = Embedder("test_resnet", 8).eval()
    images = torch.randint(256, (2, 1, 64, 64), dtype=torch.uint8)
    with torch.no_grad():
        assert torch.equal(model(images), model(images.repeat(1, 3, 1, 1)))
    with pytest.raises(ValueError, match=r"1 channels.* 3;"):
        Embedder("small_conv", 8)(torch.zeros(2, 3, 32, 32))
    with pytest.raises(ValueError, match=r"3 channels.* 4;"):
        model(torch.zeros(2, 4, 32, 32))


def test_pixels_may_be_normalised_by_imagenet_in_training_alone():
    """The authors' code for faces: ImageNet's mean and deviation in dataset.py, 0.5 in verification.py."""
    plain = {"pooling": "avg", "norm": "none", "head": "none", "pretrained": False}
    model = Embedder("iresnet18", 512, train_normalization="imagenet", **plain)
    seen = []
    model.backbone.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    pixels = torch.randint(256, (2, 3, 112, 112), dtype=torch.uint8)
    with torch.no_grad():
        model.train()(pixels)
        model.eval()(pixels)
    mean, deviation = (
        torch.tensor([[[0.485]], [[0.456]], [[0.406]]]),
        torch.tensor([[[0.229]], [[0.224]], [[0.225]]]),
    )
    torch.testing.assert_close(seen[0], (pixels / 255 - mean) / deviation)
    torch.testing.assert_close(seen[1], (pixels / 255 - 0.5) / 0.5)
    assert not {name for name in model.state_dict() if "mean" in name and "backbone" not in name}
    with pytest.raises(ValueError, match=r"imagenet.*small_conv.*1 channels"):
        Embedder("small_conv", 8, train_normalization="imagenet")
    with pytest.raises(ValueError, match=r"train_normalization.*imagnet"):
        Embedder("small_conv", 8, train_normalization="imagnet")
