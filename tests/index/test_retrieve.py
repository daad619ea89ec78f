"""Indexes: what they find, and that they follow their folder."""

import hashlib
import io
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFont
from support.pictures import jpeg, noise, truncated
from support.tiny_index import brute_force, glyph_files, state, tiny_model, vector_index
from support.tiny_runs import PHASE, tiny

import softwarp
from softwarp.data.glyphs import BASELINE, FONT_SIZE, SIZE, load_glyphs
from softwarp.index import embed_files, searching
from softwarp.index import faiss_index as index_faiss
from softwarp.index import updates as index_updates
from softwarp.index.images import NewImage
from softwarp.index.index import Index
from softwarp.index.queries import check_model
from softwarp.inference import EmbeddingModel
from softwarp.models.embedder import Embedder
from softwarp.studies.demo import demo_recipes
from softwarp.training.train import train_recipe

KILLS = Path(__file__).parents[1] / "support" / "kill_index.py"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train_recipe(tiny(phases=[PHASE]), tmp_path_factory.mktemp("run")).folder


@pytest.fixture(scope="module")
def glyphs(tmp_path_factory):
    return glyph_files(tmp_path_factory.mktemp("glyphs"))


@pytest.fixture(scope="module")
def built(run, glyphs, tmp_path_factory):
    return Index.build(run, glyphs, tmp_path_factory.mktemp("index"))


@pytest.fixture
def own(built, glyphs, tmp_path, run):
    """A copy of the images, and an index of it, that a test may change."""
    root = shutil.copytree(glyphs, tmp_path / "images")
    return root, Index.build(run, root, tmp_path / "index")


def gaussian(rows, dimensions, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, dimensions)).astype(np.float32)


@settings(max_examples=12)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 40),
    st.sampled_from(["euclidean", "cosine"]),
    st.sampled_from(["near", "far", "sphere"]),
)
def test_the_order_is_that_of_brute_force(tmp_path_factory, seed, rows, distance, where):
    """Also on a sphere around the query, where float32 cannot tell one distance from another."""
    vectors = gaussian(rows, 5, seed) + (1000 if where == "far" else 0)
    queries = gaussian(3, 5, seed + 1) + (1000 if where == "far" else 0)
    if where == "sphere":  # few enough to be candidates all
        vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True))[:15]
        queries = np.full((1, 5), 1e-9, np.float32)
    index = vector_index(tmp_path_factory.mktemp("index"), vectors, distance=distance)
    ids, distances = index.nearest(queries, 7)
    k = min(7, len(vectors))
    assert ids.shape == distances.shape == (len(queries), k)
    if distance == "cosine":  # unit vectors are rounded to float32; their order is that of the rounded ones
        queries = queries / np.linalg.norm(queries.astype(np.float64), axis=1, keepdims=True)
        exact = brute_force(queries.astype(np.float32), np.array(index.vectors), "euclidean") ** 2 / 2
        np.testing.assert_allclose(exact, brute_force(queries, vectors, "cosine"), atol=1e-6)
    else:
        exact = brute_force(queries, vectors, distance)
    assert (ids - 1 == np.argsort(exact, axis=1, kind="stable")[:, :k]).all()
    np.testing.assert_allclose(distances, np.sort(exact, axis=1)[:, :k], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("where", "few"), [((), 0.1), ("class=1", 0.1), ("class=1", 0.9)])
def test_few_queries_are_scanned_by_all_threads(tmp_path, monkeypatch, where, few):
    """faiss itself gives a query one thread."""
    vectors = gaussian(50, 8)
    labels = [str(row % 2) for row in range(50)]
    index = vector_index(tmp_path / "index", vectors, labels=labels)
    scanned, whole = [], index_faiss._scan
    monkeypatch.setattr("faiss.omp_get_max_threads", lambda: 4)
    monkeypatch.setattr(index_faiss, "DIVIDED", 0)
    monkeypatch.setattr(index_faiss, "FEW", few)
    monkeypatch.setattr(
        index_faiss, "_scan", lambda *words: (scanned.append(words[1].shape), whole(*words))[1]
    )
    for count, parts in ((1, 4), (2, 2), (3, 1)):
        scanned.clear()
        queries = vectors[:count] + np.float32(0.1)
        ids, distances = index.nearest(queries, 25, where=where)
        away = brute_force(queries, vectors, "euclidean")
        away[:, [where != () and label == "0" for label in labels]] = np.inf
        assert ids.tolist() == (np.argsort(away)[:, :25] + 1).tolist()
        np.testing.assert_allclose(distances, np.sort(away)[:, :25], rtol=1e-5)
        assert len(scanned) == parts


@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivfpq"])
@pytest.mark.parametrize("distance", ["euclidean", "cosine"])
def test_nothing_is_found_beyond_a_distance(tmp_path, kind, distance):
    vectors, queries = gaussian(400, 8), gaussian(3, 8, 1)
    index = vector_index(tmp_path, vectors, distance=distance, kind=kind, labels=list("ab") * 200)
    assert index.kind == kind
    whole = index.search(queries, 20, where="class=b")
    limit = whole.distances[0][5]  # that far, but no farther
    near = index.search(queries, 20, where="class=b", within=limit)
    assert near.distances == [[away for away in each if away <= limit] for each in whole.distances]
    assert near.ids == [each[: len(kept)] for each, kept in zip(whole.ids, near.ids, strict=True)]
    assert len(near.ids[0]) == 6
    assert index.search(queries, 3, within=limit).ids[0] == index.search(queries, 3).ids[0]
    exact = np.sort(brute_force(queries, vectors[1::2], distance))[:, :20]
    assert [len(each) for each in near.ids] == (exact <= limit + 1e-6).sum(1).tolist()
    nothing = index.search(queries, within=0)
    assert (len(nothing), nothing.queries) == (0, ((), (), ()))
    for wrong in (-0.1, float("nan")):
        with pytest.raises(ValueError, match=f"within is {wrong}"):
            index.search(queries, within=wrong)


def test_an_image_finds_itself_and_comes_with_its_class_and_thumbnail(built):
    assert len(built) == len(built.items) == len(built.ids) == len(built.vectors) == 24
    item = built.items[5]
    assert item.label == built.file(item).parent.name == "U+0042"
    ids, distances = built.nearest(built.model().embed(built.file(item)), 3)
    assert built.item(ids[0, 0]) == item
    assert distances[0, 0] < 1e-4 < distances[0, 1]
    assert Image.open(io.BytesIO(built.thumbnail(item.id))).size == (32, 32)
    with pytest.raises(ValueError, match="no image with id 99"):
        built.item(99)
    with pytest.raises(ValueError, match="no thumbnail of id 99"):
        built.thumbnail(99)


def test_filters_by_class_and_path(built):
    query = built.vectors[-1]  # which is where row -1 would lead
    ids, _ = built.nearest(query, 30, where="class=U+0043")
    assert {built.item(each).label for each in ids[0]} == {"U+0043"}
    assert ids.shape == (1, 4)
    ids, _ = built.nearest(query, 30, where=["path=*/DejaVuSans.png", "class=U+0044"])
    assert [built.item(each).path for each in ids[0]] == ["U+0044/DejaVuSans.png"]
    assert built.nearest(query, 3, where="path=nothing/*")[0].shape == (1, 0)
    with pytest.raises(ValueError, match=r"'U\+0O44'; did you mean U\+0044"):
        built.nearest(query, 3, where="class=U+0O44")
    with pytest.raises(ValueError, match=r"'label=x'.*class=NAME"):
        built.nearest(query, 3, where="label=x")


def test_wrong_queries_are_refused(built):
    with pytest.raises(ValueError, match=r"16 dimensions, not \[1, 3\]"):
        built.nearest(np.zeros(3))
    with pytest.raises(ValueError, match="NaN"):
        built.nearest(np.full(16, np.nan))
    with pytest.raises(ValueError, match="k is 0"):
        built.nearest(np.zeros(16), 0)


def test_an_index_is_mapped_not_read(built):
    again = Index.open(built.folder)
    assert isinstance(again.vectors, np.memmap)
    assert not again.vectors.flags.writeable
    assert np.array_equal(again.vectors, built.vectors)


def test_a_refresh_follows_the_folder(own):
    root, index = own
    before = {item.path: item.id for item in index.items}
    Image.fromarray(np.full((32, 32), 99, np.uint8)).save(root / "U+0041" / "DejaVuSans.png")
    os.utime(root / "U+0042" / "DejaVuSans.png")  # touched, the content is the same
    (root / "U+0043" / "DejaVuSans.png").unlink()
    truncated(root / "U+0044" / "DejaVuSans.png")
    shutil.copy(root / "U+0042" / "DejaVuSans.png", root / "new.png")
    changes = index.refresh()
    assert (changes.added, changes.changed, changes.removed, changes.unchanged) == (1, 1, 2, 21)
    assert len(changes.broken) == 1
    assert "U+0044" in changes.broken[0]
    after = {item.path: item.id for item in index.items}
    assert set(after) == set(before) - {"U+0043/DejaVuSans.png", "U+0044/DejaVuSans.png"} | {"new.png"}
    assert after["U+0042/DejaVuSans.png"] == before["U+0042/DejaVuSans.png"]
    assert after["U+0041/DejaVuSans.png"] > max(before.values())
    expected = index.model().embed([index.file(item) for item in index.items]).numpy()
    np.testing.assert_allclose(index.vectors, expected, atol=1e-5)
    ids, _ = index.nearest(expected, len(index))
    assert (np.sort(ids) == index.ids).all()
    again = index.refresh()
    assert (again.added, again.changed, again.removed) == (0, 0, 0)


def test_what_is_removed_stays_away_until_it_is_added(own, tmp_path):
    root, index = own
    assert index.remove([root / "U+0041", root / "U+0042" / "DejaVuSans.png"]).removed == 5
    assert index.refresh().added == 0
    assert len(index) == len(index.items) == len(index.vectors) == 19
    everything = index.nearest(index.vectors[:3], 24)[0]
    assert everything.shape == (3, 19)
    assert index.add([root / "U+0042"]).added == 1
    outside = jpeg(tmp_path / "elsewhere" / "1.jpg", noise(32, 32))
    assert index.add([outside]).added == 1
    item = index.items[-1]
    assert (item.path, item.label, index.file(item)) == (str(outside), "elsewhere", outside)
    outside.unlink()
    with pytest.raises(ValueError, match=r"1 of 1 images.*1\.jpg.*--remove-missing"):
        index.refresh()
    assert index.refresh(remove_missing=True).removed == 1


def test_a_folder_that_has_vanished_empties_nothing(own):
    root, index = own
    root.rename(root.with_name("elsewhere"))
    with pytest.raises(FileNotFoundError, match="images does not exist"):
        index.refresh()
    assert len(Index.open(index.folder)) == 24


def empty(folder, but=0):
    for path in sorted(folder.rglob("*.png"))[but:]:
        path.unlink()


def test_an_empty_folder_empties_nothing(own, run):
    """As a disk that is not mounted leaves one."""
    root, index = own
    empty(root)
    for remove_missing in (False, True):
        with pytest.raises(ValueError, match=f"{root} shows none of its 24.*mounted.*index remove"):
            index.refresh(remove_missing=remove_missing)
    for again in (lambda: index.add([root]), lambda: Index.build(run, root, index.folder)):
        with pytest.raises(ValueError, match=f"no images in {root}"):
            again()
    assert len(Index.open(index.folder)) == 24
    assert index.remove([root]).removed == 24


def test_one_of_several_folders_may_be_the_one_that_is_not_mounted(own, tmp_path):
    root, index = own
    other = glyph_files(tmp_path / "other", classes=2)
    index.add([other])
    empty(other)
    with pytest.raises(ValueError, match=f"{other} shows none of its 8 "):
        index.refresh()
    assert len(Index.open(index.folder)) == 32
    assert index.remove([root]).removed == 24  # and not those outside of it
    assert len(index) == 8


def test_when_most_images_are_gone_it_asks_first(own):
    root, index = own
    empty(root, 12)
    assert index.refresh().removed == 12
    empty(root, 5)
    with pytest.raises(ValueError, match=f"7 of 12 images of {root} are gone.*U.0042.*--remove-missing"):
        index.refresh()
    assert len(Index.open(index.folder)) == 12
    assert index.refresh(remove_missing=True).removed == 7


def test_a_file_that_the_disk_does_not_give_is_not_taken_for_a_changed_one(own, monkeypatch):
    root, index = own
    bad = root / "U+0042" / "DejaVuSans.png"
    read = embed_files.read_content

    def failing(path):
        if path == bad:
            raise OSError(5, "Input/output error", str(path))
        return read(path)

    monkeypatch.setattr(embed_files, "read_content", failing)
    changes = index.refresh()
    assert "Input/output error" in changes.broken[0]
    assert (changes.removed, len(index)) == (0, 24)


def test_an_index_of_no_images_is_refused_and_leaves_nothing(run, tmp_path):
    truncated(tmp_path / "images" / "bad.jpg")
    with pytest.raises(ValueError, match=r"none of 1 images.*bad\.jpg"):
        Index.build(run, tmp_path / "images", tmp_path / "new" / "index")
    assert [path.name for path in tmp_path.iterdir()] == ["images"]
    (tmp_path / "there").mkdir()
    with pytest.raises(ValueError, match="none of 1 images"):
        Index.build(run, tmp_path / "images", tmp_path / "there")
    assert list((tmp_path / "there").iterdir()) == []


def test_a_query_may_be_a_file_or_an_image(built):
    item = built.items[5]
    expected = built.nearest(built.model().embed(built.file(item)), 3)
    image = Image.open(built.file(item))
    for query in (built.file(item), str(built.file(item)), image, [image]):
        ids, distances = built.nearest(query, 3)
        assert ids.tolist() == expected[0].tolist()
        np.testing.assert_allclose(distances, expected[1], atol=1e-4)
        assert built.search(query, 3).ids == ids.tolist()
    assert built.nearest([built.file(each) for each in built.items[:2]], 1)[0].tolist() == [[1], [2]]
    assert built.nearest(built.vectors[:2].tolist(), 1)[0].tolist() == [[1], [2]]


@pytest.mark.parametrize("query", [b"content", np.zeros((4, 4, 3), np.uint8), [b"content"]])
def test_other_pictures_are_handed_to_the_model(built, monkeypatch, query):
    class Model:
        def embed(self, pictures):
            assert pictures is query
            return torch.from_numpy(built.vectors[3:4].copy())

    again = Index.open(built.folder)
    monkeypatch.setattr(again, "model", Model)
    assert again.nearest(query, 1)[0].tolist() == [[4]]


@pytest.mark.parametrize("value", [1e17, 1e19, 3e38, -3e38])
def test_numbers_whose_squares_overflow_are_refused(tmp_path, value):
    vectors = gaussian(30, 8)
    vectors[3, 2] = value
    with pytest.raises(ValueError, match=r"3\.jpg holds a number beyond 1e\+16"):
        vector_index(tmp_path / "index", vectors)
    index = vector_index(tmp_path / "index", gaussian(30, 8))
    for queries in (vectors[3], vectors):
        with pytest.raises(ValueError, match=r"1e\+16"):
            index.nearest(queries, 5)
    cosine = vector_index(tmp_path / "cosine", vectors, distance="cosine")
    assert (cosine.nearest(vectors, 1)[0][:, 0] == np.arange(1, 31)).all()


@pytest.mark.parametrize("rows", [1, 15, 30])
def test_vectors_from_before_that_check_never_give_another_id(tmp_path, monkeypatch, rows):
    monkeypatch.setattr(searching, "LARGEST", np.inf)
    vectors = gaussian(30, 8) + np.float32(2e19) * np.eye(30, 8, dtype=np.float32)
    index = vector_index(tmp_path, vectors)
    with pytest.raises(ValueError, match="too large"):
        index.nearest(vectors[:rows] * np.float32(3), 9)


def test_a_vector_that_is_not_finite_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"1\.jpg holds NaN"):
        vector_index(tmp_path, np.array([[1, 2], [np.nan, 3]], np.float32))
    with pytest.raises(ValueError, match=r"0\.jpg holds NaN or infinity"):
        vector_index(tmp_path, np.array([[1e300, 2]]))


@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17])
@pytest.mark.parametrize("kind", ["hnsw", "ivfpq"])
def test_few_images_are_searched_whatever_the_kind(tmp_path, kind, rows):
    vectors = gaussian(rows, 8)
    index = vector_index(tmp_path, vectors, kind=kind)
    assert index.kind == ("flat" if kind == "ivfpq" and rows < 16 else kind)
    assert (index.nearest(vectors, 1)[0][:, 0] == np.arange(1, rows + 1)).all()


@pytest.mark.parametrize("kind", ["hnsw", "ivfpq"])
@pytest.mark.parametrize("left", [None, 0.0, 0.3, 0.975, 0.999, "garbage"])
def test_an_approximate_index_that_is_damaged_is_scanned_and_built_again(tmp_path, kind, left):
    vectors = gaussian(1000, 16)
    index = vector_index(tmp_path, vectors, kind=kind)
    expected = index.nearest(vectors[:50], 1)[0]
    path, whole = tmp_path / index.store.settings["search"], index.recall
    content = path.read_bytes()
    path.unlink()
    if left is not None:
        path.write_bytes(b"?" * len(content) if left == "garbage" else content[: int(len(content) * left)])
    damaged = Index.open(tmp_path)
    assert (damaged.kind, damaged.recall, damaged.damaged) == ("flat", 1.0, True)
    assert (damaged.nearest(vectors[:50], 1)[0] == expected).all()
    damaged.append(gaussian(1, 16, 9), [NewImage("again.jpg")])  # or a refresh
    for mended in (damaged, Index.open(tmp_path)):
        assert (mended.kind, mended.damaged) == (kind, False)
        assert mended.recall >= min(whole, 0.95)
        assert (mended.nearest(vectors[:50], 1)[0] == expected).mean() >= 0.95


def test_removed_rows_are_never_found_and_ids_outlive_compaction(tmp_path):
    vectors = gaussian(100, 8)
    index = vector_index(tmp_path / "index", vectors)
    index.remove([f"{row}.jpg" for row in range(5)])  # few: marked
    assert index.store.settings["generation"] == 0
    assert index.nearest(vectors[:5], 95)[0].min() == 6
    index.remove([f"{row}.jpg" for row in range(5, 50)])  # many: written again
    assert index.store.settings["generation"] == 1
    assert len(index.store.ids) == 50
    assert index.ids.tolist() == list(range(51, 101))
    assert np.array_equal(index.vectors, vectors[50:])
    assert index.nearest(vectors[70], 1)[0].item() == 71
    assert len(list(index.folder.glob("*.f32"))) == 1
    index.append(vectors[:1], [NewImage("again.jpg")])
    assert index.items[-1].id == 101


@pytest.mark.parametrize("kind", ["hnsw", "ivfpq"])
@pytest.mark.parametrize("distance", ["euclidean", "cosine"])
def test_an_approximate_index_finds_nearly_all(tmp_path, kind, distance):
    centres = gaussian(40, 16)
    vectors = (centres[np.arange(2000) % 40] + 0.3 * gaussian(2000, 16, 1)).astype(np.float32)
    labels = [f"class {row % 40}" for row in range(2000)]
    index = vector_index(tmp_path, vectors[:1950], distance=distance, kind=kind, labels=labels[:1950])
    assert index.kind == kind
    assert 0.95 <= index.recall <= 1
    assert index.store.settings["indexed"] == 1950
    index.append(vectors[1950:], [NewImage(f"{row}.jpg", labels[row]) for row in range(1950, 2000)])
    assert index.store.settings["indexed"] == 1950  # the last 50 are scanned
    queries = (centres + 0.3 * gaussian(40, 16, 2)).astype(np.float32)
    truth = brute_force(queries, vectors, distance)
    again = Index.open(tmp_path)
    ids, distances = again.nearest(queries, 10)
    hits = np.mean([np.isin(ids[row] - 1, np.argsort(truth[row])[:10]).mean() for row in range(40)])
    assert hits >= 0.9
    np.testing.assert_allclose(distances, np.take_along_axis(truth, ids - 1, 1), atol=1e-5)
    assert (again.nearest(vectors[1950:], 1)[0][:, 0] == np.arange(1951, 2001)).all()
    half = again.nearest(queries, 10, where="path=*[02468].jpg")[0]
    assert ((half - 1) % 2 == 0).all()
    few = again.nearest(queries[:1], 60, where="class=class 3")[0]
    assert sorted(few[0] - 1) == list(range(3, 2000, 40))
    again.remove([f"{row}.jpg" for row in range(100)])
    assert again.nearest(queries, 10)[0].min() > 100
    assert again.store.settings["indexed"] == 1950


def test_a_filter_that_the_graph_answers_short_is_answered_in_full(tmp_path, monkeypatch):
    vectors = gaussian(3000, 8)
    index = vector_index(tmp_path, vectors, kind="hnsw")
    far = np.argsort(-np.linalg.norm(vectors - vectors[0], axis=1))[:400]
    allowed = np.zeros(3000, bool)
    allowed[far] = True
    monkeypatch.setattr("softwarp.index.index.allowed_rows", lambda store, where: allowed)
    ids, _ = index.nearest(vectors[0], 350, where="path=*")
    expected = far[np.argsort(np.linalg.norm(vectors[far] - vectors[0], axis=1))][:350]
    assert (ids[0] > 0).all()
    assert np.isin(ids[0] - 1, expected).mean() > 0.95


def test_the_kind_follows_size_and_memory(tmp_path, monkeypatch):
    choose = index_updates.choose_kind

    def small(rows, dimensions):
        return choose(rows, dimensions, scanned=500 * 8 * 4, memory=2 * 1500 * (8 * 4 + 256))

    monkeypatch.setattr(index_updates, "choose_kind", small)
    index = vector_index(tmp_path, gaussian(500, 8))
    kinds = [(index.kind, index.recall)]
    for first in (500, 1500):
        names = [NewImage(f"{row}.jpg") for row in range(first, first + 1000)]
        index.append(gaussian(1000, 8, first), names)
        kinds.append((index.kind, index.recall >= 0.95))
    assert kinds == [("flat", 1.0), ("hnsw", True), ("ivfpq", True)]
    assert len(list(index.folder.glob("*.faiss"))) == 1
    assert len(index.nearest(gaussian(3, 8), 5)[0]) == 3


def test_hostile_names_are_kept_byte_by_byte(run, tmp_path):
    names = [b"line\nbreak", b"not \xff utf-8", b"<script>", b"$(touch x)", "é".encode()]
    root = tmp_path / "images"
    for number, name in enumerate(names):
        folder = os.fsencode(root) + b"/" + name
        os.makedirs(folder)  # noqa: PTH103  # bytes
        Image.fromarray(np.full((32, 32), 40 * number, np.uint8)).save(
            os.fsdecode(folder + b"/" + name + b".png")
        )
    index = Index.build(run, root, tmp_path / "index")
    assert not index.changes.broken
    assert {os.fsencode(item.label) for item in index.items} == set(names)
    assert {os.fsencode(item.path) for item in index.items} == {
        name + b"/" + name + b".png" for name in names
    }
    for item in Index.open(index.folder).items:
        ids, _ = index.nearest(index.model().embed(index.file(item)), 1, where=f"class={item.label}")
        assert ids.tolist() == [[item.id]]
    assert index.refresh().unchanged == len(names)


def test_a_build_is_refused_with_another_model_or_folder(built, run, glyphs, tmp_path):
    glyph_files(tmp_path, classes=1)
    with pytest.raises(ValueError, match=f"index of {glyphs}, not of {tmp_path}"):
        Index.build(run, tmp_path, built.folder)
    other = train_recipe(tiny(phases=[PHASE], seed=1), tmp_path / "other").folder
    with pytest.raises(ValueError, match="another model"):
        Index.build(other, glyphs, built.folder)
    with pytest.raises(ValueError, match="'fast'"):
        Index.build(run, glyphs, tmp_path / "index", kind="fast")
    with pytest.raises(FileNotFoundError, match="missing does not exist"):
        Index.build(run, glyphs / "missing", tmp_path / "index")


def test_another_pooling_of_the_same_weights_is_noticed():
    torch.manual_seed(0)
    network = Embedder("test_resnet", None, pooling="max+avg", head="none")
    model = EmbeddingModel(network, "cosine", resize=32, crop=32, device=torch.device("cpu"))
    digest = hashlib.sha256()
    for name, tensor in network.state_dict().items():
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    assert index_updates.weights_digest(model) == digest.hexdigest()  # that of every index so far
    native = Embedder("test_resnet", None, head="none")
    native.load_state_dict(network.state_dict())
    with pytest.raises(ValueError, match="how it pools"):
        check_model(replace(model, network=native), digest.hexdigest(), "an index")


def test_a_run_that_was_trained_again_is_noticed(run, glyphs, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    index = Index.build(copy, glyphs, tmp_path / "index")
    other = train_recipe(tiny(phases=[PHASE], seed=1), tmp_path / "other").folder
    shutil.copy(other / "model.safetensors", copy / "model.safetensors")
    with pytest.raises(ValueError, match="weights differ"):
        Index.open(index.folder).model()


def test_splits_are_not_part_of_a_class(run, glyphs, tmp_path):
    for split, name in (("train", "U+0041"), ("test", "U+0041"), ("test", "U+0042")):
        shutil.copytree(glyphs / name, tmp_path / "images" / split / name)
    index = Index.build(run, tmp_path / "images", tmp_path / "index")
    assert {item.label for item in index.items} == {"U+0041", "U+0042"}
    assert {item.label for item in Index.build(run, glyphs.parent, tmp_path / "two", depth=1).items} >= {
        glyphs.name
    }


def kill(folder, times):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, KILLS, folder, str(times)], check=True, env=environment)


def test_killed_processes_lose_nothing_that_was_confirmed(tmp_path):
    kill(tmp_path, 2)


@pytest.mark.slow
def test_ten_killed_processes_lose_nothing_that_was_confirmed(tmp_path):
    kill(tmp_path, 10)


@pytest.mark.slow
def test_a_freshly_drawn_glyph_finds_its_class_among_all(tmp_path):
    """With the model of the whole demo, not of the quick one."""
    train_recipe(demo_recipes()["warped_softmax"], tmp_path / "run")
    glyphs = load_glyphs()
    glyph_files(tmp_path / "glyphs", first=0, classes=len(glyphs.characters), styles=12)
    index = Index.build(tmp_path / "run", tmp_path / "glyphs", tmp_path / "index")
    assert len(index) == len(glyphs.images)
    font = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    drawn = []
    for character in "ARÄgk8&":  # in another size, and tilted
        image = Image.new("L", (SIZE, SIZE))
        pen = ImageDraw.Draw(image)
        pen.text((SIZE / 2, BASELINE), character, 255, ImageFont.truetype(font, FONT_SIZE + 1), anchor="ms")
        drawn.append(tmp_path / f"{ord(character):04X}.png")
        image.rotate(4, Image.Resampling.BILINEAR).save(drawn[-1])
    ids, _ = index.nearest(index.model().embed(drawn), 5)
    classes = [{index.item(each).label for each in row} for row in ids]
    found = [f"U+{path.stem}" in labels for path, labels in zip(drawn, classes, strict=True)]
    assert sum(found) >= 6, found


def test_a_loaded_model_builds_as_its_run_does(run, tmp_path):
    model, images = softwarp.load(run), glyph_files(tmp_path / "images")
    one, other = Index.build(model, images, tmp_path / "one"), Index.build(run, images, tmp_path / "other")
    assert state(one) == state(other)
    assert one.model() is model
    assert one.model_name == other.model_name == str(run)
    assert Index.open(tmp_path / "one").search(images / one.items[3].path, 1)[0].id == 4


def test_a_model_from_no_run_is_given_when_the_index_is_opened(tmp_path):
    images = glyph_files(tmp_path / "images", classes=2)
    model = replace(tiny_model(8), source="")
    built = Index.build(model, images, tmp_path / "index")
    query = images / built.items[2].path
    with pytest.raises(ValueError, match=r"names no model.*Index\.open"):
        Index.open(built.folder).search(query)
    assert Index.open(built.folder, model=model).search(query, 1)[0].id == 3
    with pytest.raises(ValueError, match="weights differ"):
        Index.open(built.folder, model=tiny_model(16))


def test_a_class_is_named_by_file_without_the_files_own_vote(built):
    files = [built.file(item) for item in built.items[:3]]
    answers = built.classify(files, 5)
    assert [each.query for each in answers] == [str(file) for file in files]
    assert all(item.id not in each.ids for item, each in zip(built.items, answers, strict=False))
    by_vector = built.classify(built.vectors[:3], 5, calibration=built.calibrate(5))
    assert [each.query for each in by_vector] == ["0", "1", "2"]
    assert all(item.id in each.ids for item, each in zip(built.items, by_vector, strict=False))
