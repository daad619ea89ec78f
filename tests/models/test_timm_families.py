"""Each family of timm's networks, with random weights and small where timm lets us: held to timm itself."""

import re

import numpy as np
import pytest
import torch
from PIL import Image
from support.timm_families import FAMILIES, make_small

from softwarp.data.images import test_transform as evaluation_transform
from softwarp.models.backbones import build_backbone
from softwarp.models.embedder import Embedder
from softwarp.models.preparation import Preparation, Sizes, check_side, preparation_of, sizes_of
from softwarp.models.weights import load_weights

timm = pytest.importorskip("timm")

SIZES = {  # those that do not read every size
    "vit_small_patch14_dinov2": Sizes(518, 14),
    "vit_small_patch14_reg4_dinov2": Sizes(518, 14),
    "vit_small_patch16_dinov3": Sizes(256, 16),
    "vit_base_patch16_siglip_224": Sizes(224, 16),
    "vit_base_patch16_clip_224": Sizes(224, 16),
    "eva02_tiny_patch14_224": Sizes(224, 14),
    "deit_tiny_distilled_patch16_224": Sizes(224, 16),
    "tiny_vit_5m_224": Sizes(224, 0),
    "swin_tiny_patch4_window7_224": Sizes(224, 0),
}
MAPS = [name for name in FAMILIES if "distilled" not in name]  # timm pools those by their tokens alone
CLASS_TOKENS = {name for name in FAMILIES if name.startswith(("vit", "eva", "deit"))} - {
    "vit_base_patch16_siglip_224"
}


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """All networks that timm builds are small, and nothing is remembered of them."""
    make_small(monkeypatch)
    sizes_of.cache_clear()
    yield
    sizes_of.cache_clear()


def at_own_size(name):
    side = preparation_of(name).crop
    return torch.rand(1, 3, side, side, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def seeded(name, pooling):
    torch.manual_seed(0)
    return build_backbone(name, pooling=pooling).double().eval()


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_native_is_what_timm_does(name):
    backbone, images = seeded(name, "native"), at_own_size(name)
    theirs = timm.create_model(name, num_classes=0).double().eval()
    theirs.load_state_dict(backbone.model.state_dict())  # strict
    expected = theirs.forward_head(theirs.forward_features(images), pre_logits=True)
    assert expected.shape == (1, backbone.channels)
    torch.testing.assert_close(backbone(images), expected)


@pytest.mark.parametrize("name", MAPS)
@torch.no_grad()
def test_other_poolings_are_of_the_map_or_the_patches_as_before(name):
    backbone, images = seeded(name, "max+avg"), at_own_size(name)
    before = timm.create_model(name, num_classes=0, global_pool="").double().eval()
    before.load_state_dict(backbone.model.state_dict())  # strict: older runs load
    output, found = before(images), backbone(images)
    if output.ndim == 3:  # of its tokens the last are those of the patches
        patches = SIZES[name].own // SIZES[name].step
        assert found.shape == (1, backbone.channels, patches, patches)
        output = output[:, -(patches**2) :].transpose(1, 2)
    elif output.shape[3] == backbone.channels:
        output = output.permute(0, 3, 1, 2)
    torch.testing.assert_close(found.flatten(2), output.flatten(2))


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_the_class_token_stands_beside_the_mean_of_the_patches(name):
    if name not in CLASS_TOKENS:
        with pytest.raises(ValueError, match=rf"class token, which {name[:8]}.*model\.pooling=native"):
            build_backbone(name, pooling="token+mean")
        return
    backbone, images = seeded(name, "token+mean"), at_own_size(name)
    tokens = backbone.model.forward_features(images)
    patches = tokens[:, -((SIZES[name].own // SIZES[name].step) ** 2) :]
    norm = backbone.model.fc_norm
    expected = torch.cat([norm(tokens[:, 0]), norm(patches.mean(1))], dim=1)
    assert backbone.channels == expected.shape[1] == 2 * seeded(name, "native").channels
    torch.testing.assert_close(backbone(images), expected)


@pytest.mark.parametrize(
    ("name", "pooling"), [*((name, "native") for name in FAMILIES), *((name, "max+avg") for name in MAPS)]
)
def test_weights_of_timm_load_from_a_file(name, pooling, tmp_path):
    torch.save(timm.create_model(name, num_classes=10).state_dict(), tmp_path / "weights.pth")
    weights = torch.load(tmp_path / "weights.pth", weights_only=True)
    backbone = build_backbone(name, pretrained=str(tmp_path / "weights.pth"), pooling=pooling)
    for key, value in backbone.model.state_dict().items():
        given = key if key in weights else key.replace("norm.", "fc_norm.")
        assert torch.equal(value, weights[given]), key


@pytest.mark.parametrize("name", FAMILIES)
def test_models_are_saved_and_loaded_strictly(name, tmp_path):
    models = [Embedder(name, 8, pooling="native") for _ in range(2)]
    torch.save(models[0].state_dict(), tmp_path / "model.pt")
    load_weights(models[1], tmp_path / "model.pt")
    for key, value in models[0].state_dict().items():
        assert torch.equal(models[1].state_dict()[key], value), key
    torch.save(dict(list(models[0].state_dict().items())[1:]), tmp_path / "model.pt")
    with pytest.raises(ValueError, match="missing"):
        load_weights(models[1], tmp_path / "model.pt")


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_every_size_is_read_or_refused_with_sizes_that_are_read(name):
    sizes, model = sizes_of(name), Embedder(name, None, head="none").eval()
    assert sizes == SIZES.get(name, Sizes(preparation_of(name).crop, 1))

    def reads(side):
        return model(torch.zeros(1, 3, side, side, dtype=torch.uint8)).shape == (1, model.embedding_size)

    near = set()
    for side in (96, 97, 161, 182, 224, 225, 320, 518):
        if sizes.fits(side):
            check_side(name, side)
            assert reads(side)
            continue
        with pytest.raises(ValueError, match=rf"^{name} reads .* not {side}; set data\.crop=") as refused:
            check_side(name, side)
        near |= {
            int(each) for each in re.findall(r"data\.crop=(\d+)(?: or (\d+))?", str(refused.value))[0] if each
        }
        assert sizes.fits(sizes.at_most(side))
    assert all(reads(side) for side in near)
    assert bool(near) == (name in SIZES)


def test_asking_for_sizes_draws_no_random_numbers():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    sizes_of("vit_small_patch14_dinov2")
    assert torch.equal(torch.rand(1), expected)


PREPARED = [
    "vit_small_patch14_dinov2",
    "vit_base_patch16_siglip_224",
    "vit_base_patch16_clip_224",
    "tiny_vit_5m_224",
    "tiny_vit_21m_512",  # squash
    "dm_nfnet_f0",  # squash, and cropped after that
    "efficientnet_b3",
    "swin_tiny_patch4_window7_224",
    "mobilenetv4_conv_small",
    "resnet18.tv_in1k",  # bilinear
]


@pytest.mark.parametrize("name", PREPARED)
@pytest.mark.parametrize("size", [(400, 300), (131, 170), (90, 700)])
def test_images_are_prepared_as_timm_does(name, size):
    """Up to one grey level, and two or three in one value of 5,000: Pillow and torch round differently."""
    config = timm.data.resolve_data_config({}, pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
    theirs = timm.data.create_transform(**config, is_training=False, normalize=False)
    seen = preparation_of(name)
    ours = evaluation_transform(
        resize=seen.resize, crop=seen.crop, interpolation=seen.interpolation, crop_mode=seen.crop_mode
    )
    pixels = np.random.default_rng(0).integers(0, 256, (size[1] // 6, size[0] // 6, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC)
    found, expected = ours(image).int(), theirs(image).int()
    assert found.shape == expected.shape == (3, seen.crop, seen.crop)
    difference = (found - expected).abs()
    assert difference.max() <= 3
    assert (difference > 1).float().mean() < 2e-4


def test_the_preparation_says_the_licence_of_the_weights():
    assert preparation_of("vit_small_patch16_dinov3").licence == "dinov3-license"
    assert preparation_of("small_conv") == Preparation(224, 256, "bilinear", "center", None)
    with pytest.raises(ValueError, match=r"resnet18\.nonsense"):
        preparation_of("resnet18.nonsense")
