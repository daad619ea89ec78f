"""What training and evaluation read: the right images, with the right labels, in the right transform."""

import shutil
from dataclasses import replace

import pytest
import torch
from support.pictures import jpeg, noise, truncated

from softwarp.data.glyphs import load_glyphs
from softwarp.data.images import read_image, test_transform
from softwarp.data.sources import fingerprint, glyph_source, image_source
from softwarp.data.tables import read_table

SPLITS = {"train": "def", "query": "abc", "gallery": "abc"}
SETTINGS = {"transform": "random_resized_crop", "resize": 12, "crop": 8, "scale": (0.1, 1.0)}


@pytest.fixture
def root(tmp_path):
    """Three classes to train on, named after those that are evaluated; two images each in every split."""
    for split, classes in SPLITS.items():
        for name in classes:
            for number in (0, 1):
                jpeg(tmp_path / "images" / split / name / f"{number}.jpg", noise(30, 20, seed=number))
    return tmp_path / "images"


def opened(root, **settings):
    return image_source("folder", root, **{"protocol": "test"} | SETTINGS | settings)


def test_labels_count_from_0_in_training_and_agree_in_evaluation(root):
    source = opened(root)
    assert source.names == ["d", "e", "f"]
    assert source.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert source.query_labels.tolist() == source.gallery_labels.tolist() == [0, 0, 1, 1, 2, 2]
    parts = {"train": source.train, "query": source.queries, "gallery": source.gallery}
    for split, images in parts.items():
        batch = images.__getitems__([(3, 0), (4, 0)])
        assert batch.labels.tolist() == [1, 2]
        expected = [f"{split}/{SPLITS[split][i // 2]}/{i % 2}.jpg" for i in range(6)]
        assert images.paths_without(torch.tensor([0, 4])) == [expected[i] for i in (1, 2, 3, 5)]


def test_chance_is_for_training_alone(root):
    source, draws = opened(root), [(0, seed) for seed in range(4)]
    assert len(source.train.__getitems__(draws).images.unique(dim=0)) == 4
    whole = opened(root, scale=(1.0, 1.0)).train.__getitems__(draws).images
    assert len(whole.unique(dim=0)) == 2  # flipped or not
    expected = test_transform(resize=12, crop=8)(read_image(root / "train/d/0.jpg", shorter_side=12))
    for images in (source.plain, source.queries, source.gallery):
        assert all(torch.equal(image, expected) for image in images.__getitems__(draws).images)


def test_a_broken_image_is_replaced_in_training_left_out_elsewhere_and_raised_if_strict(root):
    for split, classes in SPLITS.items():
        truncated(root / split / classes[1] / "0.jpg")
    source, draws = opened(root), [(0, 0), (2, 0)]
    assert source.train.__getitems__(draws).items.tolist() == [0, 3]
    for images in (source.plain, source.queries, source.gallery):
        assert images.__getitems__(draws).items.tolist() == [0]
    strict = opened(root, strict=True)
    for images in (strict.train, strict.plain, strict.queries, strict.gallery):
        with pytest.raises(ValueError, match="truncated"):
            images.__getitems__(draws)


def test_max_classes_takes_the_first_of_either_side(root):
    source = opened(root, max_classes=2)
    assert source.names == ["d", "e"]
    assert source.labels.tolist() == [0, 0, 1, 1]
    assert source.query_labels.tolist() == source.gallery_labels.tolist() == [0, 0, 1, 1]
    assert [len(images) for images in (source.train, source.plain, source.queries, source.gallery)] == [4] * 4


def test_validation_leaves_test_images_alone(root):
    for split in ("query", "gallery"):
        shutil.rmtree(root / split / "c")
    jpeg(root / "train" / "g" / "0.jpg", noise(30, 20))
    source = opened(root, protocol="validation")
    assert (source.gallery, source.gallery_labels) == (None, None)
    assert source.names == ["d", "e"]
    assert source.queries.paths_without(torch.tensor([])) == [
        "train/f/0.jpg",
        "train/f/1.jpg",
        "train/g/0.jpg",
    ]


def test_a_cache_serves_all_images(root, tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTWARP_CACHE", str(tmp_path / "cache"))
    steps, draws = [], [(1, 5), (4, 6)]
    source = opened(root, cache=True, resize=20, advance=lambda: steps.append(1))
    assert len(steps) == 6  # the four parts hold the same pixels, here
    expected = opened(root, resize=20)
    parts = [(getattr(source, part), getattr(expected, part)) for part in ("train", "plain", "gallery")]
    wanted = [direct.__getitems__(draws).images for _, direct in parts]
    shutil.rmtree(root)
    for (cached, _), images in zip(parts, wanted, strict=True):
        assert torch.equal(cached.__getitems__(draws).images, images)


def test_the_fingerprint_is_of_names_and_labels_in_order_wherever_they_are(root, tmp_path):
    table = read_table("folder", root)
    assert opened(root).sha256 == fingerprint(table)
    assert fingerprint(replace(table, root=tmp_path)) == fingerprint(table)
    others = [
        replace(table, labels=table.labels.flip(0)),
        replace(table, paths=(*table.paths[:-1], "other.jpg")),
        replace(table, paths=table.paths[::-1], labels=table.labels.flip(0)),
    ]
    assert len({fingerprint(other) for other in [table, *others]}) == 4


def test_glyphs_of_validation_and_test_never_train():
    sources = {protocol: glyph_source(protocol=protocol) for protocol in ("validation", "test")}
    assert sources["validation"].names == sources["test"].names
    evaluated = {protocol: source.queries.images for protocol, source in sources.items()}
    looks = [sources["test"].train.images, *evaluated.values()]
    seen = [{image.numpy().tobytes() for image in images} for images in looks]
    assert all(seen)
    assert len(set().union(*seen)) == sum(map(len, seen))
    few, glyphs = glyph_source(protocol="test", max_classes=3), load_glyphs()
    assert few.names == sources["test"].names[:3]
    kept = [glyphs.images[glyphs.labels == glyphs.characters.index(name)] for name in few.names]
    assert torch.equal(few.train.images, torch.cat(kept))
    assert few.labels.unique().tolist() == few.query_labels.unique().tolist() == [0, 1, 2]
    assert torch.equal(few.queries.images, evaluated["test"][: len(few.query_labels)])
    assert few.sha256 == sources["test"].sha256
