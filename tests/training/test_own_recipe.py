from pathlib import Path

import pytest
from PIL import Image

from softwarp.data.tables import read_table
from softwarp.recipe.schema import parse_recipe
from softwarp.training.choice import Way, made_as
from softwarp.training.own_recipe import SAMPLED, crop_size, recipe_for, settings_for


def draw(root, classes, images, size=(40, 40)):
    """A folder of grey images, `images` of each class: one file under all these names."""
    first = root.with_name(f"{root.name}.bmp")
    Image.new("L", size).save(first)
    for label in range(classes):
        (root / f"{label:04d}").mkdir(parents=True)
        for number in range(images):
            (root / f"{label:04d}" / f"{number}.bmp").hardlink_to(first)
    return root


def test_settings_follow_the_data(tmp_path):
    few = settings_for(draw(tmp_path / "few", 6, 3), protocol="test")
    assert few["data"]["crop"] == 160
    assert few["data"]["resize"] == 180
    assert few["batches"] == {"classes": 4, "samples": 3}
    assert [phase["epochs"] for phase in few["phases"]] == [60]  # as many steps, for an epoch has one
    assert parse_recipe(few).evaluation.split == "test"
    large = settings_for(draw(tmp_path / "large", 24, 40, (300, 160)), protocol="test")
    assert (large["data"]["crop"], large["data"]["resize"]) == (224, 252)
    assert large["batches"] == {"classes": 16, "samples": 4}
    assert [phase["epochs"] for phase in large["phases"]] == [6]  # 60 steps of 64 in 18 x 40 images


def test_training_starts_at_the_frozen_features_and_in_units_of_them(tmp_path):
    recipe = parse_recipe(settings_for(draw(tmp_path / "images", 6, 3), protocol="test"))
    assert (recipe.model.head_init, recipe.loss.proxy_init) == ("pca", "means")
    assert recipe.loss.settings == {"alpha": "auto", "scale": "auto"}
    (phase,) = recipe.phases
    assert phase.proxy_learning_rate is None
    assert phase.schedule == "constant"  # so that training may end after any epoch


def test_the_protocol_decides_which_classes_count(tmp_path):
    root = draw(tmp_path / "images", 12, 2)
    for protocol, classes in (("test", 9), ("validation", 5)):
        settings = settings_for(root, protocol=protocol)
        assert settings["batches"]["classes"] == classes
        assert settings["evaluation"]["split"] == protocol


def test_a_csv_file_of_single_images(tmp_path):
    root = draw(tmp_path / "images", 7, 1)
    rows = [
        f"{label:04d}/0.bmp,{name},{'test' if name in 'xy' else 'train'}"
        for label, name in enumerate("abcxxyy")
    ]
    (root / "list.CSV").write_text("\n".join(["path,label,split", *rows]))
    settings = settings_for(root / "list.CSV", protocol="test")
    assert (settings["data"]["name"], settings["data"]["root"]) == ("csv", str(root / "list.CSV"))
    assert settings["batches"] == {"classes": 3, "samples": 2}


def test_the_crop_is_what_most_images_fill_when_enlarged(tmp_path, monkeypatch):
    root = draw(tmp_path / "images", 1, 1, (400, 130))
    for name, size in {"small": (9, 200), "broken": None, "wide": (300, 140), "tall": (120, 125)}.items():
        path = root / "0000" / f"{name}.bmp"
        if size is None:
            path.write_text("no image")
        else:
            Image.new("L", size).save(path)
    table = read_table("folder", root)
    assert crop_size(table, 224) == 160  # 1.4 times the median of 9, 120, 130 and 140 is 175
    assert crop_size(table, 64) == 64
    assert crop_size(read_table("folder", draw(tmp_path / "tiny", 1, 1, (5, 5))), 224) == 160
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)  # all are decompression bombs now
    assert crop_size(table, 192) == 192


def test_another_backbone_pools_and_sees_images_in_its_own_way(tmp_path):
    large = draw(tmp_path / "large", 24, 40, (300, 260))
    small = draw(tmp_path / "small", 6, 3)

    def settings(root, backbone=None):
        found = settings_for(root, protocol="test", backbone=backbone)
        data = found["data"]
        sizes = data["crop"], data["resize"]
        return found["model"]["pooling"], *sizes, data["interpolation"], data["crop_mode"]

    assert settings(large) == settings(large, "efficientnet_lite0")
    assert settings(large) == ("max+avg", 224, 252, "bilinear", "center")
    assert settings(large, "vit_small_patch14_dinov2") == ("native", 224, 224, "bicubic", "center")
    assert settings(small, "vit_small_patch14_dinov2")[1:3] == (154, 154)
    assert settings(small, "tiny_vit_5m_224") == ("native", 224, 235, "bicubic", "center")
    assert settings(small, "dm_nfnet_f0")[1:] == (160, 177, "bicubic", "squash")


@pytest.mark.parametrize(
    ("backbone", "adapter"),
    [(name, {"kind": "lora", "rank": 8}) for name in ("test_vit", "tiny_vit_5m_224")]
    + [(name, None) for name in (None, "test_resnet", "convnext_atto")],
)
def test_transformers_have_adapters_and_the_rest_trains_its_own_weights(tmp_path, backbone, adapter):
    settings = settings_for(draw(tmp_path / "images", 6, 3), protocol="test", backbone=backbone)
    assert settings["model"].get("adapter") == adapter
    assert settings["model"]["head_init"] == "pca"
    recipe = parse_recipe(settings)
    assert recipe.model.freeze_batch_norm == (adapter is None)  # adapters leave it alone themselves
    frozen = made_as(recipe, Way()).model
    assert (frozen.adapter, frozen.head) == (None, "none")


def test_changes_name_the_backbone_and_have_the_last_word(tmp_path):
    root = draw(tmp_path / "images", 6, 3)
    recipe = recipe_for(root, ["model.backbone=tiny_vit_5m_224"])
    assert (recipe.model.backbone, recipe.model.pooling, recipe.data.crop) == (
        "tiny_vit_5m_224",
        "native",
        224,
    )
    changes = ["model.backbone=test_vit", "model.pooling=token+mean", "data.interpolation=bilinear"]
    recipe = recipe_for(root, changes)
    assert (recipe.model.pooling, recipe.data.interpolation) == ("token+mean", "bilinear")


def test_only_some_headers_are_read(tmp_path, monkeypatch):
    table, opened, original = read_table("folder", draw(tmp_path / "images", 3, 64)), [], Image.open
    monkeypatch.setattr(Image, "open", lambda path: opened.append(path) or original(path))
    crop_size(table, 224)
    assert len(opened) == SAMPLED
    assert {Path(file.name).parent.name for file in opened} == {"0000", "0001", "0002"}


def test_the_resizing_follows_a_crop_that_is_set_alone(tmp_path):
    root = draw(tmp_path / "images", 6, 3)
    data = recipe_for(root, ["data.crop=288"]).data
    assert (data.crop, data.resize) == (288, 324)
    data = recipe_for(root, ["data.crop=288", "data.resize=300"]).data
    assert (data.crop, data.resize) == (288, 300)
    with pytest.raises(ValueError, match=r"crop of 288 .* resized to 200 .*set data.resize=288 or more"):
        recipe_for(root, ["data.crop=288", "data.resize=200"])
