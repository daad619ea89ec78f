"""Copies of images: the same files, and those that look the same."""

import numpy as np
from PIL import Image, ImageFilter
from support.pictures import jpeg, noise

from softwarp.data.check import check_images
from softwarp.data.duplicates import Looks, alike, identical
from softwarp.data.readers import ImageTable
from softwarp.data.tables import read_table


def photograph(seed, size=(160, 120)):
    """Something as smooth as a photograph."""
    return noise(20, 15, seed=seed).resize(size, Image.Resampling.BICUBIC).filter(ImageFilter.GaussianBlur(2))


def look(table, **settings):
    looks = Looks(len(table.paths), **settings)
    check_images(table, looks=looks)
    return looks


def test_identical_files_are_found_under_labels_and_in_splits(tmp_path):
    for place, seed in {
        "train/ant/1.jpg": 0,
        "train/ant/2.jpg": 0,
        "train/bee/3.jpg": 1,
        "test/ant/4.jpg": 0,
        "test/cat/5.jpg": 1,
        "test/cat/6.jpg": 2,
    }.items():
        jpeg(tmp_path / place, noise(9, 9, seed=seed))
    (tmp_path / "train" / "bee" / "broken.jpg").write_bytes(b"")
    (tmp_path / "test" / "cat" / "broken.jpg").write_bytes(b"")
    table = read_table("folder", tmp_path)
    copies = identical(table, look(table))
    assert copies.labels == [("test/cat/5.jpg", "train/bee/3.jpg")]
    assert copies.splits == [
        ("test/ant/4.jpg", "train/ant/1.jpg"),
        ("test/ant/4.jpg", "train/ant/2.jpg"),
        ("test/cat/5.jpg", "train/bee/3.jpg"),
    ]
    assert copies.others == 0


def test_copies_that_were_resized_or_encoded_again_look_alike(tmp_path):
    for number in range(40):
        photograph(number).save(tmp_path / f"{number}.png")
    photograph(3).resize((80, 60)).save(tmp_path / "half.png")
    photograph(7).save(tmp_path / "worse.jpg", quality=30)
    for number in range(3):  # nothing to compare
        Image.new("RGB", (50 + number, 50), "white").save(tmp_path / f"white {number}.png")
    paths = sorted(path.name for path in tmp_path.iterdir())
    labels = np.array([0 if path == "3.png" else 1 for path in paths])
    table = ImageTable(tmp_path, tuple(paths), labels, ("ant", "bee"), None)
    looks = look(table, deep=True)
    copies, plain = alike(table, looks)
    assert copies.labels == [("3.png", "half.png")]
    assert (copies.others, copies.splits, plain) == (1, [], 3)
    assert identical(table, looks).others == 0


def test_neighbours_are_those_of_all_pairs():
    """The search in few directions misses none."""
    random = np.random.default_rng(0)
    looks = Looks(300, deep=True)
    base = random.integers(0, 256, (100, 256)).astype(np.float64)
    small = np.concatenate(
        [base, base + random.normal(0, 8, base.shape), base + random.normal(0, 20, base.shape)]
    )
    looks.small[:] = small.clip(0, 255)
    looks.digests = [bytes([number // 256, number % 256]) for number in range(300)]
    table = ImageTable(None, tuple(map(str, range(300))), np.arange(300), tuple(map(str, range(300))), None)
    units = looks.small - looks.small.mean(1, keepdims=True)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    distances = np.linalg.norm(units[:, None] - units[None], axis=2)
    expected = {
        (str(one), str(other)) for one, other in zip(*np.where(distances < 0.15), strict=True) if one < other
    }
    assert 100 <= len(expected) < 300
    assert set(alike(table, looks)[0].labels) == expected


def test_thousands_of_copies_of_one_image_are_no_square(tmp_path):
    looks = Looks(20_000, deep=True)
    looks.small[:] = np.random.default_rng(0).integers(0, 256, 256)
    looks.digests = [number.to_bytes(4) for number in range(20_000)]
    table = ImageTable(None, ("x",) * 20_000, np.zeros(20_000, int), ("ant",), None)
    copies, _ = alike(table, looks)
    assert 0 < copies.others <= 9 * 20_000
