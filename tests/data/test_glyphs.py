import struct

import numpy as np
import pytest
import torch

from softwarp.data import glyphs as module
from softwarp.data.glyphs import STYLES, draw_glyphs, drawn_alike, load_glyphs


@pytest.fixture(scope="module")
def glyphs():
    return load_glyphs()


def test_about_two_thousand_characters_in_twelve_styles(glyphs):
    assert len(STYLES) == 12
    assert 1900 < len(glyphs.characters) < 2200
    assert glyphs.images.shape == (12 * len(glyphs.characters), 1, 32, 32)
    assert glyphs.images.dtype == torch.uint8
    assert torch.equal(glyphs.labels.bincount(), torch.full((len(glyphs.characters),), 12))
    assert len(set(glyphs.characters)) == len(glyphs.characters)


def test_no_two_classes_draw_alike_in_any_style(glyphs):
    images = glyphs.images.reshape(-1, 12, 32, 32).numpy()
    assert not (drawn_alike(images) & ~np.eye(len(images), dtype=bool)).any()
    assert (images.reshape(len(images), 12, -1).max(axis=2) > 0).all()  # nothing is blank


def test_look_alikes_are_found_in_a_single_style():
    images = np.zeros((3, 12, 32, 32), np.uint8)
    for character in range(3):
        images[character, :, character * 5, :] = 255
    images[2, 7] = images[0, 7]
    expected = np.eye(3, dtype=bool)
    expected[0, 2] = expected[2, 0] = True
    assert (drawn_alike(images) == expected).all()


def test_latin_a_and_cyrillic_a_are_one_class(glyphs):
    assert "A" in glyphs.characters
    assert "А" not in glyphs.characters  # Cyrillic


def test_drawing_is_deterministic_and_equals_the_cache(glyphs):
    images, codes = draw_glyphs()
    assert "".join(map(chr, codes)) == glyphs.characters
    assert np.array_equal(images.reshape(-1, 1, 32, 32), glyphs.images.numpy())


def test_a_damaged_cache_is_drawn_again(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTWARP_CACHE", str(tmp_path))
    drawings = []

    def few():
        drawings.append(1)
        return np.full((2, 12, 32, 32), 7, np.uint8), np.array([65, 66])

    monkeypatch.setattr(module, "draw_glyphs", few)
    first = load_glyphs()
    (file,) = tmp_path.iterdir()
    assert load_glyphs().sha256 == first.sha256
    assert len(drawings) == 1  # the second came from the cache
    whole = file.read_bytes()
    file.write_bytes(whole[:100])
    assert load_glyphs().sha256 == first.sha256
    assert len(drawings) == 2
    start = 30 + sum(struct.unpack("<HH", whole[26:30]))  # of what is compressed
    file.write_bytes(whole[:start] + b"\xff" + whole[start + 1 :])
    assert load_glyphs().sha256 == first.sha256
    assert len(drawings) == 3


def test_a_cache_that_cannot_be_written_is_no_obstacle(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SOFTWARP_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(
        module, "draw_glyphs", lambda: (np.zeros((2, 12, 32, 32), np.uint8), np.array([65, 66]))
    )
    assert load_glyphs().characters == "AB"
