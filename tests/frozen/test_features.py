"""Features through the cache are those of the model itself, computed once for each content of a file."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
import torch
from PIL import Image

from softwarp.frozen import features
from softwarp.frozen.features import frozen_features, key_of, pooled_features
from softwarp.inference import EmbeddingModel
from softwarp.models.embedder import Embedder


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTWARP_CACHE", str(tmp_path / "cache"))


def tiny(*, seed=0, norm="before", pooling="native", **settings):
    torch.manual_seed(seed)
    network = Embedder("test_vit", None, norm=norm, pooling=pooling, head="none").eval()
    usual = {"distance": "cosine", "resize": 96, "crop": 96, "device": torch.device("cpu")}
    return EmbeddingModel(network, **usual | settings)


def painted(path, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (110, 130, 3), np.uint8)
    Image.fromarray(pixels).save(path, format="PNG")
    return path


@pytest.fixture
def files(tmp_path):
    return [painted(tmp_path / f"{number}.png", number) for number in range(20)]


@pytest.fixture
def forwards(monkeypatch):
    """How many images each call of the network was for."""
    counts, forward = [], features._forward

    def counted(model, files, together):
        counts.append(len(files))
        return forward(model, files, together)

    monkeypatch.setattr(features, "_forward", counted)
    return counts


def test_they_are_what_the_model_embeds(files):
    model = tiny()
    torch.testing.assert_close(frozen_features(model, files), model.embed(files))
    face = tiny(norm="none")
    torch.testing.assert_close(frozen_features(face, files), face.embed(files))


def test_they_are_computed_once_in_any_order_and_under_any_name(files, forwards, tmp_path):
    first = frozen_features(tiny(), files)
    assert sum(forwards) == len(files)
    (tmp_path / "copy.png").write_bytes(files[3].read_bytes())
    again = frozen_features(tiny(), [tmp_path / "copy.png", files[1], files[0]])
    assert sum(forwards) == len(files)
    assert torch.equal(again, first[[3, 1, 0]])


def test_a_vector_is_the_same_to_the_last_bit_whatever_else_was_there(files, monkeypatch):
    sizes, pooled = set(), Embedder.pooled
    monkeypatch.setattr(
        Embedder, "pooled", lambda self, images: sizes.add(len(images)) or pooled(self, images)
    )
    alone = frozen_features(tiny(), files[:1])
    together = frozen_features(tiny(), files[5:])
    whole = frozen_features(tiny(), files)
    assert torch.equal(whole[:1], alone)
    assert torch.equal(whole[5:], together)
    assert sizes == {features.TOGETHER}  # other networks than this one round otherwise in other batches


def test_a_file_whose_content_changes_has_another_vector(files, forwards):
    before = frozen_features(tiny(), files)
    painted(files[7], 100)
    after = frozen_features(tiny(), files)
    assert forwards[-1] == 1
    assert not torch.allclose(before[7], after[7])
    torch.testing.assert_close(after, tiny().embed(files))


def test_a_file_that_changes_while_it_is_worked_on_keeps_no_wrong_vector(files, monkeypatch):
    first, digest = files[0].read_bytes(), features._digest

    def changed_after(store, item):
        found = digest(store, item)
        painted(files[0], 100)
        return found

    monkeypatch.setattr(features, "_digest", changed_after)
    changed = frozen_features(tiny(), files[:1])
    monkeypatch.setattr(features, "_digest", digest)
    torch.testing.assert_close(changed, tiny().embed(files[:1]))
    files[0].write_bytes(first)
    torch.testing.assert_close(frozen_features(tiny(), files[:1]), tiny().embed(files[:1]))


OTHERS = [
    {"seed": 1},
    {"pooling": "max+avg"},
    {"pooling": "gem"},
    {"crop": 80},
    {"resize": 100},
    {"interpolation": "bicubic"},
    {"crop_mode": "squash"},
]


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: next(iter(other)))
def test_other_weights_or_another_preparation_have_vectors_of_their_own(files, other):
    frozen_features(tiny(), files[:2])
    torch.testing.assert_close(frozen_features(tiny(**other), files[:2]), tiny(**other).embed(files[:2]))
    assert key_of(tiny(**other)) != key_of(tiny())


def test_layer_norm_and_distance_share_the_vectors(files, forwards):
    frozen_features(tiny(), files)
    frozen_features(tiny(norm="none", distance="euclidean"), files)
    assert sum(forwards) == len(files)


def test_broken_images_are_rows_of_nan_and_say_why(files, forwards):
    files[2].write_bytes(b"no image")
    files[4].unlink()
    vectors, broken = pooled_features(tiny(), files)
    assert vectors.isnan().any(1).nonzero().flatten().tolist() == [2, 4] == list(broken)
    assert str(files[2]) in broken[2]
    assert torch.equal(frozen_features(tiny(), files).isnan().all(1), vectors.isnan().all(1))
    assert sum(forwards) == len(files) - 2


def test_some_items_of_a_store_in_an_order(files):
    model = tiny()
    store = features.files_of(model, files)
    vectors, broken = pooled_features(model, store, items=[5, 3])
    assert not broken
    assert torch.equal(features.after_pooling(model, vectors), frozen_features(model, [files[5], files[3]]))


def test_progress_begins_at_what_is_found(files):
    frozen_features(tiny(), files[:15])
    events = []
    frozen_features(tiny(), files, on_event=events.append)
    assert [(each.done, each.total) for each in events[:1]] == [(15, 20)]
    assert (events[-1].done, events[-1].ended) == (20, True)


def test_a_cache_that_cannot_be_written_is_told_and_nothing_is_lost(files, tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTWARP_CACHE", str(files[0]))
    told = []
    vectors = frozen_features(tiny(), files, on_event=told.append)
    torch.testing.assert_close(vectors, tiny().embed(files))
    assert len([each for each in told if "SOFTWARP_CACHE" in str(each)]) == 1


@pytest.mark.slow
def test_two_processes_work_on_the_same_images(files):
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        both = [pool.submit(frozen_features, tiny(), files) for _ in range(2)]
        first, second = (each.result() for each in both)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, tiny().embed(files), atol=1e-5)
