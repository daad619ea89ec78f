"""Indexes: what they find, and that they follow their folder."""

import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny_index import brute_force, glyph_files, vector_index
from support.tiny_runs import PHASE, tiny

from softwarp.retrieve import build
from softwarp.train import train

RANDOM = np.random.default_rng(0)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tiny(phases=[PHASE]), tmp_path_factory.mktemp("run")).folder


@pytest.fixture(scope="module")
def glyphs(tmp_path_factory):
    return glyph_files(tmp_path_factory.mktemp("glyphs"))


@pytest.fixture(scope="module")
def built(run, glyphs, tmp_path_factory):
    return build(run, glyphs, tmp_path_factory.mktemp("index"))


@pytest.fixture
def own(built, glyphs, tmp_path, run):
    """A copy of images and index that a test may change."""
    root = shutil.copytree(glyphs, tmp_path / "images")
    return root, build(run, root, tmp_path / "index")


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.sampled_from(["euclidean", "cosine"]), st.booleans())
def test_the_order_is_that_of_brute_force(tmp_path_factory, seed, rows, distance, large):
    generator = np.random.default_rng(seed)
    vectors = generator.standard_normal((rows, 5)).astype(np.float32) + (100 if large else 0)
    queries = generator.standard_normal((30 if large else 3, 5)).astype(np.float32) + (100 if large else 0)
    index = vector_index(tmp_path_factory.mktemp("index"), vectors, distance=distance)
    ids, distances = index.search(queries, 7)
    truth = brute_force(queries, vectors, distance)
    k = min(7, rows)
    assert ids.shape == distances.shape == (len(queries), k)
    np.testing.assert_allclose(distances, np.sort(truth, axis=1)[:, :k], rtol=1e-3, atol=1e-6)
    if distance == "euclidean":
        assert (ids - 1 == np.argsort(truth, axis=1, kind="stable")[:, :k]).all()


def test_an_image_finds_itself_and_its_class(built, glyphs):
    assert len(built) == len(built.items) == len(built.vectors) == 24
    item = built.items[5]
    assert built.file(item).is_file()
    assert item.label == built.file(item).parent.name
    ids, distances = built.search(built.model().embed(built.file(item)), 3)
    assert built.item(ids[0, 0]) == item
    assert distances[0, 0] < 1e-4 < distances[0, 1]
