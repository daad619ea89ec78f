import threading

import numpy as np
import pytest
from support.pictures import two_broken

from softwarp.data import check
from softwarp.data.check import Broken, check_images, foresee, roles, sizes
from softwarp.data.readers import ImageTable
from softwarp.data.splits import SplitPlan, divide
from softwarp.data.tables import read_table


@pytest.mark.parametrize("workers", [None, 1, 3])
def test_broken_images_are_found_in_order(tmp_path, workers):
    images = two_broken(tmp_path)
    ticks = []
    broken = check_images(read_table("folder", images), workers=workers, advance=lambda: ticks.append(1))
    assert [image.path for image in broken] == ["owl/1.jpg", "wren/0.jpg"]
    assert all(image.path in image.reason for image in broken)
    assert len(ticks) == 8


def test_a_file_that_vanished_is_broken(tmp_path):
    table = ImageTable(tmp_path, ("gone.jpg",), np.array([0]), ("wren",), None)
    assert [image.path for image in check_images(table)] == ["gone.jpg"]


def test_workers_decode_side_by_side_over_several_blocks(tmp_path, monkeypatch):
    images = two_broken(tmp_path)
    meeting = threading.Barrier(2, timeout=10)  # passes only where two are at it together
    monkeypatch.setattr(check, "BLOCK", 4)
    monkeypatch.setattr(check, "decode_image", lambda *_: meeting.wait())
    assert check_images(read_table("folder", images), workers=2) == []


def table_of(classes, images=3, splits=None):
    """A table of nothing but names: so many images of each class."""
    labels = np.repeat(np.arange(classes), images)
    paths = tuple(f"{label}/{k}.jpg" for label in range(classes) for k in range(images))
    return ImageTable(None, paths, labels, tuple(f"c{label:02d}" for label in range(classes)), splits)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_what_is_foreseen_is_what_training_divides(split):
    table = table_of(12)
    prospect = foresee(table, [], split)
    division = divide(table.labels, None, SplitPlan(split))
    for side, items in ((prospect.trained, division.train), (prospect.judged, division.queries)):
        assert side.images == len(items)
        assert side.classes == tuple(
            table.names[label] for label in sorted(set(table.labels[items].tolist()))
        )
    assert prospect.refusal is None
    named = roles(table, foresee(table, [], "test"))
    assert sorted(named) == list(table.names)
    assert sorted(name for name in named if named[name] == "held out") == list(
        foresee(table, [], "test").judged.classes
    )


def test_what_training_would_refuse_is_foreseen():
    assert "3 classes: " in foresee(table_of(3), [], "test").refusal
    table = table_of(6, splits=("train",) * 12 + ("test",) * 6)
    lost = [Broken(f"1/{k}.jpg", "") for k in range(3)]
    assert "'c01'" in foresee(table, lost, "test").refusal
    assert foresee(table, lost[:2], "test").refusal is None
    judged = [Broken(f"5/{k}.jpg", "") for k in range(3)]
    assert foresee(table, judged, "test").refusal is None, "what is judged is left out, not fatal"


def test_a_gallery_is_held_out_too_and_splits_of_a_class_are_listed():
    table = table_of(5, splits=("train",) * 9 + ("query", "gallery", "gallery") * 2)
    assert foresee(table, [], "test").judged.images == 6
    named = roles(table, foresee(table, [], "test"))
    assert (named["c00"], named["c04"]) == ("train", "query, gallery")
    assert sizes(table) == dict.fromkeys(table.names, 3)
