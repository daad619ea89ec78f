"""What training and evaluation read: the right images, with the right labels, in the right transform."""

import shutil
from dataclasses import replace

import pytest
import torch
from support.pictures import jpeg, noise, truncated

from softwarp.data.decode import read_image
from softwarp.data.glyphs import STYLES, load_glyphs
from softwarp.data.images import test_transform
from softwarp.data.sources import glyph_source, hash_of_list, load_source
from softwarp.data.splits import SplitPlan
from softwarp.data.tables import read_table
from softwarp.recipe.schema import DataPart, parse_recipe

SPLITS = {"train": "def", "query": "abc", "gallery": "abc"}
SETTINGS = {"resize": 12, "crop": 8, "scale": (0.1, 1.0)}


@pytest.fixture
def root(tmp_path):
    """Three classes to train on, named after those that are evaluated; two images each in every split."""
    for split, classes in SPLITS.items():
        for name in classes:
            for number in (0, 1):
                jpeg(tmp_path / "images" / split / name / f"{number}.jpg", noise(30, 20, seed=number))
    return tmp_path / "images"


def opened(root, *, plan=None, advance=None, **settings):
    data = DataPart(name="folder", root=str(root), **SETTINGS | settings)
    return load_source(data, plan or SplitPlan("test"), advance=advance)


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
    source = opened(root, plan=SplitPlan("validation"))
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
    assert opened(root).sha256 == hash_of_list(table)
    assert hash_of_list(replace(table, root=tmp_path)) == hash_of_list(table)
    others = [
        replace(table, labels=table.labels[::-1]),
        replace(table, paths=(*table.paths[:-1], "other.jpg")),
        replace(table, paths=table.paths[::-1], labels=table.labels[::-1]),
    ]
    assert len({hash_of_list(other) for other in [table, *others]}) == 4


def test_glyphs_of_validation_and_test_never_train():
    sources = {split: glyph_source(plan=SplitPlan(split)) for split in ("validation", "test")}
    assert sources["validation"].names == sources["test"].names
    evaluated = {split: source.queries.store.images for split, source in sources.items()}
    looks = [sources["test"].train.store.images, *evaluated.values()]
    seen = [{image.numpy().tobytes() for image in images} for images in looks]
    assert all(seen)
    assert len(set().union(*seen)) == sum(map(len, seen))
    few, glyphs = glyph_source(plan=SplitPlan("test"), max_classes=3), load_glyphs()
    assert few.names == sources["test"].names[:3]
    kept = [glyphs.images[glyphs.labels == glyphs.characters.index(name)] for name in few.names]
    assert torch.equal(few.train.store.images, torch.cat(kept))
    assert few.labels.unique().tolist() == few.query_labels.unique().tolist() == [0, 1, 2]
    assert torch.equal(few.queries.store.images, evaluated["test"][: len(few.query_labels)])
    assert few.sha256 == sources["test"].sha256


def test_a_source_says_what_each_item_is(root):
    source = opened(root)
    expected = {
        "train": (source.train, source.labels, source.train_items, source.names),
        "query": (source.queries, source.query_labels, source.query_items, source.evaluated_names),
        "gallery": (source.gallery, source.gallery_labels, source.gallery_items, source.evaluated_names),
    }
    for role, (images, labels, items, names) in expected.items():
        assert (items.role, items.root) == (role, str(root))
        assert list(items.files) == images.paths_without(torch.tensor([]))
        assert items.files[3] == f"{role}/{SPLITS[role][1]}/1.jpg"
        assert list(items.classes) == [names[label] for label in labels.tolist()]
        assert items.classes[:3] == tuple(SPLITS[role][i] for i in (0, 0, 1))
    for query_folder in ("query", "gallery"):
        shutil.rmtree(root / query_folder)
    for name in "ab":
        jpeg(root / "test" / name / "0.jpg", noise(30, 20))
        jpeg(root / "test" / name / "1.jpg", noise(30, 20))
    alone = opened(root)
    assert (alone.query_items.role, alone.gallery_items) == ("test", None)
    assert alone.evaluated_names == ["a", "b"]


def test_labels_of_evaluated_classes_count_from_0_wherever_their_names_are(root):
    for folder in ("query", "gallery"):
        for old, new in zip("abc", "xyz", strict=True):
            (root / folder / old).rename(root / folder / new)
    shutil.rmtree(root / "query" / "z")  # which stays to be searched
    source = opened(root)
    assert source.evaluated_names == ["x", "y", "z"]
    assert source.query_labels.tolist() == [0, 0, 1, 1]
    assert source.gallery_labels.tolist() == [0, 0, 1, 1, 2, 2]


def test_glyphs_are_named_by_code_point_and_style():
    source = glyph_source(plan=SplitPlan("test"), max_classes=3)
    for items, labels, names in (
        (source.train_items, source.labels, source.names),
        (source.query_items, source.query_labels, source.evaluated_names),
    ):
        assert items.root is None
        assert items.files[12] == f"U+{ord(names[1]):04X} {STYLES[0]}"
        assert items.files[-1] == f"U+{ord(names[2]):04X} {STYLES[11]}"
        assert list(items.classes) == [names[label] for label in labels.tolist()]
    assert source.queries.paths_without(torch.arange(1, 36)) == [source.query_items.files[0]]
    assert (source.train_items.role, source.query_items.role) == ("train", "test")


def test_folds_of_glyphs_leave_search_and_test_characters_alone():
    plans = [SplitPlan("validation", fold=fold, fold_seed=3) for fold in range(4)]
    folds = [set(glyph_source(plan=plan).evaluated_names) for plan in plans]
    whole = {split: glyph_source(plan=SplitPlan(split)) for split in ("validation", "test")}
    assert set().union(*folds) == set(whole["test"].names)
    assert sum(map(len, folds)) == len(whole["test"].names)
    third = glyph_source(plan=SplitPlan("test", fold=2, fold_seed=3))
    assert set(third.names) == set(whole["test"].names) - folds[2]
    assert third.evaluated_names == whole["test"].evaluated_names
    reserved = set(whole["validation"].evaluated_names) | set(third.evaluated_names)
    assert not reserved & set(whole["test"].names)


def test_load_source_takes_the_data_part_of_a_recipe(root):
    recipe = parse_recipe(
        {
            "data": {"name": "folder", "root": str(root), "resize": 12, "crop": 8},
            "loss": {"name": "warped_softmax"},
            "phases": [{"epochs": 1, "learning_rate": 1, "proxy_learning_rate": 1}],
            "evaluation": {"split": "test"},
        }
    )
    plan = recipe.evaluation.plan()
    source = load_source(recipe.data, plan)
    assert source.query_items == opened(root).query_items
    assert source.train.__getitems__([(0, 0)]).images.shape == (1, 3, 8, 8)
    with pytest.raises(ValueError, match=r"data\.root"):
        load_source(recipe.data.model_copy(update={"root": None}), plan)
    few = load_source(DataPart(name="glyphs", max_classes=2), plan)
    assert len(few.names) == 2


def test_a_missing_image_is_skipped_like_a_broken_one_unless_strict(root):
    for split, classes in SPLITS.items():
        link = root / split / classes[1] / "0.jpg"
        link.unlink()
        link.symlink_to(root / "gone.jpg")
    source, draws = opened(root), [(0, 0), (2, 0)]
    assert any("3 of 18 " in note for note in source.notes)
    batch = source.train.__getitems__(draws)
    assert (batch.items.tolist(), batch.broken) == ([0, 3], ["train/e/0.jpg"])
    assert source.queries.__getitems__(draws).items.tolist() == [0]
    with pytest.raises(FileNotFoundError, match="3 of 18"):
        opened(root, strict=True)
    (root / "train" / "d" / "0.jpg").unlink()  # while it trains
    assert source.train.__getitems__(draws).items.tolist() == [1, 3]


@pytest.fixture
def closed(tmp_path):
    """Five classes with three images to train on and one to test; the first has no training image."""
    for name in "abcde":
        for number in range(4):
            split = "test" if number == 3 or name == "a" else "train"
            jpeg(tmp_path / "images" / split / name / f"{number}.jpg", noise(30, 20, seed=number))
    return tmp_path / "images"


def test_the_gallery_of_a_closed_set_is_what_trains_as_evaluation_sees_it(closed):
    source = opened(closed)
    assert source.closed
    assert source.names == source.evaluated_names == ["b", "c", "d", "e"]
    assert source.gallery is source.plain  # decoded and cached once
    assert source.gallery_labels.tolist() == source.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert source.query_labels.tolist() == [0, 1, 2, 3]
    assert (source.query_items.role, source.gallery_items.role) == ("query", "gallery")
    assert source.gallery_items.files == source.train_items.files
    assert not set(source.query_items.files) & set(source.gallery_items.files)
    assert any("4 test images of 1 class " in note and "'a'" in note for note in source.notes)
    assert source.protocol.startswith("closed set: the same 4 classes")


def test_a_cached_closed_set_is_the_same(closed, tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTWARP_CACHE", str(tmp_path / "cache"))
    plain, cached = opened(closed), opened(closed, cache=True)
    for images, other in ((plain.gallery, cached.gallery), (plain.queries, cached.queries)):
        draws = [(item, 0) for item in range(len(images))]
        assert torch.equal(images.__getitems__(draws).images, other.__getitems__(draws).images)


def test_images_that_a_fold_keeps_have_the_labels_of_training(closed):
    source = opened(closed, plan=SplitPlan("validation", 0, 2, images=True))
    assert not source.closed
    assert len(source.kept) == len(source.kept_labels) == len(source.names) == 2
    assert source.kept_labels.tolist() == [0, 1]
    batch = source.kept.__getitems__([(0, 0), (1, 0)])
    assert batch.labels.tolist() == [0, 1]
    judged = {*source.train_items.files, *source.query_items.files}
    assert not judged & set(source.kept.paths_without(torch.tensor([], dtype=torch.long)))


def test_an_open_set_says_so_and_keeps_nothing(root):
    source = opened(root)
    assert (source.closed, source.kept) == (False, None)
    assert source.protocol.startswith("open set: 3 classes train, 3 others are judged; 6 test images")
