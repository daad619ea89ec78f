"""Maps: where images lie, in which order, and what is kept of them."""

import io
import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.tiny_index import glyph_index, vector_index

from softwarp.index.index import Index
from softwarp.serve import map_file
from softwarp.serve.map_file import (
    COLUMNS,
    NO_CLASS,
    POINT,
    TILE,
    lay_out,
    open_map,
    overview_first,
    principal,
    write_map,
)


def silent(*progress):
    pass


def points_of(found):
    return np.frombuffer(found.part("points"), POINT)


def test_principal_components_are_those_of_a_decomposition():
    vectors = np.random.default_rng(0).standard_normal((50, 6)).astype(np.float32) * [9, 5, 1, 1, 1, 1]
    found = principal(vectors.astype(np.float32), 2)
    u, s, _ = np.linalg.svd(vectors - vectors.mean(0))
    np.testing.assert_allclose(np.abs(found), np.abs(u[:, :2] * s[:2]), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("rows", [0, 1, 2, 50])
@pytest.mark.parametrize("dimensions", [1, 2, 8])
def test_places_lie_in_the_unit_square(rows, dimensions):
    vectors = np.random.default_rng(0).standard_normal((rows, dimensions)).astype(np.float32) * 1e4
    places = lay_out(vectors, "pca", silent)
    assert places.shape == (rows, 2)
    assert (places >= 0).all()
    assert (places < 1).all()
    if rows == 50:
        assert np.ptp(places, 0).max() > 0.9


def test_copies_do_not_lie_on_each_other():
    vectors = np.repeat(np.eye(4, dtype=np.float32), 3, axis=0)
    assert len(np.unique(lay_out(vectors, "pca", silent), axis=0)) == 12


@given(st.lists(st.tuples(st.integers(0, 1023), st.integers(0, 1023)), max_size=40))
def test_in_each_grid_the_first_of_a_cell_was_the_first_before(cells):
    """So a thumbnail that is shown stays when one zooms in."""
    places = (np.array(cells, np.float32).reshape(-1, 2) + 0.5) / 1024
    order = overview_first(places)
    assert sorted(order.tolist()) == list(range(len(places)))
    before: set[int] = set()
    for level in range(11):
        first = {tuple(np.floor(places[each] * 2**level)): each for each in reversed(order.tolist())}
        shown = set(first.values())
        assert before <= shown
        before = shown


def test_overviews_come_first():
    places = np.random.default_rng(0).uniform(0, 1, (3000, 2)).astype(np.float32)
    order = overview_first(places)
    for level in (1, 2, 3, 4):
        first = np.floor(places[order[: 4**level]] * 2**level).astype(int)
        assert len(np.unique(first, axis=0)) == 4**level  # every cell has its own
    later = places[order[1024:1100]]
    assert np.abs(np.diff(later, axis=0)).max(1).mean() < 0.2  # neighbours are together


def test_a_map_holds_every_image_with_its_class_and_colour(tmp_path):
    index = glyph_index(tmp_path, classes=3)
    steps = []
    write_map(index.folder, lambda *step: steps.append(step))
    found = open_map(index.store)
    points = points_of(found)
    assert sorted(points["id"].tolist()) == index.ids.tolist()
    names = found.about["classes"]
    for point in points:
        assert names[point["class"]] == index.item(int(point["id"])).label
    atlas = Image.open(io.BytesIO(found.part("atlas-0"))).convert("RGB")
    assert atlas.width == COLUMNS * TILE
    for place, point in enumerate(points):
        corner = (place % COLUMNS * TILE, place // COLUMNS * TILE)
        tile = np.asarray(atlas.crop((*corner, corner[0] + TILE, corner[1] + TILE)), np.float64)
        thumbnail = Image.open(io.BytesIO(index.thumbnail(int(point["id"])))).convert("RGB")
        truth = np.asarray(thumbnail.resize((TILE, TILE), Image.Resampling.BILINEAR), np.float64)
        assert np.abs(tile - truth).mean() < 12
        np.testing.assert_allclose(point["colour"], truth.mean((0, 1)), atol=8)
    assert ("thumbnails", 12, 12) in steps
    assert [path.name for path in index.folder.iterdir() if path.name.startswith(".map")] == []


def test_a_map_of_other_images_is_not_used(tmp_path):
    index = glyph_index(tmp_path, classes=2)
    assert open_map(index.store) is None
    write_map(index.folder, silent)
    assert open_map(Index.open(index.folder).store) is not None
    index.remove([index.root / "U+0041"])
    assert open_map(index.store) is None
    (index.folder / map_file.NAME).write_bytes(b"damaged")
    assert open_map(index.store) is None


def test_of_many_images_a_sample_is_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(map_file, "LARGEST", 10)
    vectors = np.random.default_rng(0).standard_normal((95, 4)).astype(np.float32)
    index = vector_index(tmp_path / "index", vectors)
    write_map(index.folder, silent)
    found = open_map(index.store)
    assert (found.about["images"], found.about["of"]) == (10, 95)
    points = points_of(found)
    assert (points["class"] == NO_CLASS).all()
    assert np.diff(np.sort(points["id"])).max() < 12
    assert (points["colour"] == 128).all()  # no thumbnails


def test_the_process_that_makes_it_says_how_far_it_is(tmp_path):
    index = vector_index(tmp_path / "index", np.eye(5, dtype=np.float32))
    words = [sys.executable, "-m", "softwarp.serve.map_file", str(index.folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == ["thumbnails", 5, 5]
    assert open_map(index.store) is not None


@pytest.mark.slow
def test_umap_keeps_neighbours_together():
    pytest.importorskip("umap", reason="umap-learn is not installed")
    generator = np.random.default_rng(0)
    centres = generator.standard_normal((6, 20)) * 4
    labels = np.repeat(np.arange(6), 40)
    vectors = (centres[labels] + generator.standard_normal((240, 20)) * 0.3).astype(np.float32)
    steps = []
    places = lay_out(vectors, "umap", lambda *step: steps.append(step))
    apart = ((places[:, None] - places[None]) ** 2).sum(-1)
    np.fill_diagonal(apart, np.inf)
    assert (labels[apart.argmin(1)] == labels).mean() > 0.98
    assert any(what == "laying out" for what, _, _ in steps)
