import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.pictures import pictures

from softwarp.data.sources import load_source
from softwarp.data.splits import SplitPlan
from softwarp.models.embedder import Embedder
from softwarp.recipe.schema import DataPart, ModelPart
from softwarp.training.budget import (
    Pace,
    Workload,
    _saving_seconds,
    crops_below,
    fit,
    measure_pace,
    parse_budget,
    whole_looks,
)

CROPS = [224, 192, 160]
WORK = Workload(trained=100, judged=30, choosing=True)


def pace(crop):
    """A second per image of 100 x 100 pixels that trains, a third of that for one that is embedded."""
    seconds = (crop / 100) ** 2
    return Pace(seconds, seconds / 3, 1.0)


def needed(crop, epochs, work=WORK):
    return work.seconds(pace(crop), epochs)


def plan(budget, epochs=16, fewest=4, work=WORK, measured=pace, clock=lambda: 0.0):
    return fit(measured, work, crops=CROPS, epochs=epochs, fewest=fewest, budget=budget, clock=clock)


@pytest.mark.parametrize(
    "text", ["10", "m", "0s", "-5m", "1d", "nanh", "infh", "1 h 5 m", "9" * 400 + "h", ""]
)
def test_a_budget_is_a_number_and_a_unit(text):
    with pytest.raises(ValueError, match="90s, 10 min"):
        parse_budget(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10min", 600),
        ("1 h", 3600),
        ("90 sec", 90),
        ("1.5 hours", 5400),
        ("2 Minutes", 120),
        (" 10 m ", 600),
        (".5h", 1800),
    ],
)
def test_units_are_written_as_people_write_them(text, seconds):
    assert parse_budget(text) == seconds


def test_time_counts_every_image_that_is_trained_or_embedded():
    only_training = Pace(train=1.0, embed=0.0, save=0.0)
    assert Workload(100, 30, choosing=False).seconds(only_training, 5) == 500
    assert Workload(100, 30, choosing=True).seconds(only_training, 5) == 1000  # each half once, then all
    assert Workload(100, 30, choosing=True, seeds=3).seconds(only_training, 5) == 2000
    only_embedding = Pace(train=0.0, embed=1.0, save=0.0)
    assert Workload(100, 30, choosing=False).seconds(only_embedding, 0) == 100 + 60  # head, judged twice
    assert Workload(100, 30, choosing=True).seconds(only_embedding, 0) == 200 + 60  # and the features
    assert Workload(100, 30, choosing=False).seconds(only_embedding, 5) == 200 + 60
    among_all = Workload(100, 30, choosing=False, distractors=70)
    assert among_all.seconds(only_embedding, 5) == 200 + 60 + 70
    assert among_all.seconds(only_embedding, 0) == 100 + 60  # the features of the start
    shipped = Workload(100, 30, choosing=False, seeds=2, shipped=130)  # one, whatever the seeds
    assert shipped.seconds(only_training, 5) == 2 * 500 + 130 * 5
    assert shipped.seconds(only_embedding, 5) == 2 * (200 + 60) + 2 * 130
    # four looks at four shares, head and rates; the features, and the final model
    assert Workload(100, 30, choosing=True).seconds(only_embedding, 8) == 18 * 100 + 300 + 60
    chosen = Workload(100, 30, choosing=True, spent=7.0, known=True)
    assert chosen.seconds(only_embedding, 0) == 7 + 100 + 60  # the features are there by now
    # in a closed set a look embeds the half that trains, too
    closed = Workload(100, 30, choosing=True, closed=True)
    assert closed.seconds(only_embedding, 8) == (2 * 16 + 2) * 100 + 300 + 60
    assert Workload(100, 30, choosing=False, observed=9).seconds(only_embedding, 5) == 200 + 60 + 5 * 9


def test_time_counts_every_checkpoint():
    only_saving = Pace(train=0.0, embed=0.0, save=1.0)
    assert Workload(100, 30, choosing=False, seeds=3).seconds(only_saving, 5) == 15
    assert Workload(100, 30, choosing=True).seconds(only_saving, 5) == 15  # of both halves, then of all
    assert Workload(100, 30, choosing=True).seconds(only_saving, 0) == 0


def test_the_largest_crop_is_kept_and_epochs_give_way_first():
    assert plan(needed(224, 16)).epochs == 16
    shorter = plan(needed(224, 8))
    assert (shorter.crop, shorter.epochs) == (224, 8)
    assert shorter.seconds == needed(224, 8)
    assert plan(needed(224, 4)).crop == 224


def test_finding_out_how_long_it_takes_takes_time_too():
    asked = []

    def slowly(crop):
        asked.append(crop)
        return pace(crop)

    later = plan(needed(224, 8) + 20, measured=slowly, clock=lambda: 20.0 * len(asked))
    assert (later.epochs, later.measuring, later.seconds) == (8, 20.0, needed(224, 8) + 20)
    assert plan(needed(224, 8) + 10, measured=slowly, clock=lambda: 20.0 * len(asked)).epochs < 8


def test_smaller_crops_are_not_measured_where_even_the_smallest_must_be_too_slow():
    asked = []

    def noted(crop):
        asked.append(crop)
        return pace(crop)

    assert plan(needed(224, 4) / 4, measured=noted).epochs == 0
    assert asked == [224]


def test_then_the_crop_gives_way_and_at_last_training():
    assert plan(needed(224, 4) - 1).crop == 192
    assert plan(needed(160, 4)) == plan(needed(160, 4) + 1)
    assert (plan(needed(160, 4)).crop, plan(needed(160, 4)).epochs) == (160, 4)
    nothing = plan(needed(160, 4) - 1)
    assert (nothing.crop, nothing.epochs) == (224, 0)  # untrained, but with all its detail
    assert nothing.seconds == needed(224, 0)


def test_without_a_budget_the_crop_stays_and_something_is_trained():
    huge = Workload(trained=10**6, judged=100, choosing=True)
    found = plan(None, work=huge)
    assert (found.crop, found.epochs) == (224, 4)
    assert found.seconds == needed(224, 4, huge)
    tiny = Workload(trained=1, judged=1, choosing=True)
    assert plan(None, work=tiny).epochs == 16


@given(st.floats(1, 1e6), st.integers(1, 60), st.integers(1, 5000), st.booleans())
def test_a_plan_stays_within_its_budget_or_trains_nothing(budget, epochs, images, choosing):
    work = Workload(images, images, choosing)
    found = plan(budget, epochs, whole_looks(epochs)[0], work)
    assert found.epochs == 0 or found.seconds <= budget
    assert found.epochs <= epochs
    assert found.epochs == whole_looks(found.epochs)[1]


@given(st.integers(1, 200))
def test_training_ends_with_a_look(epochs):
    every, last = whole_looks(epochs)
    assert last % every == 0
    assert min(4, epochs) <= last // every <= 7
    assert epochs - every < last <= epochs


@given(st.integers(1, 60))
def test_a_planned_number_of_epochs_is_looked_at_as_planned(epochs):
    _, last = whole_looks(epochs)
    assert whole_looks(last)[1] == last


@given(st.sampled_from([32, 64, 96, 128, 160, 192, 224, 500]))
def test_a_crop_keeps_half_of_the_pixels(largest):
    crops = crops_below(largest)
    assert crops == sorted(set(crops), reverse=True)
    assert crops[0] == largest
    assert all(2 * crop**2 >= largest**2 for crop in crops)


@pytest.mark.parametrize(("step", "expected"), [(14, [224, 182]), (16, [224, 192, 160]), (0, [224])])
def test_crops_are_sizes_that_the_network_reads(step, expected):
    assert crops_below(224, step) == expected


def test_the_pace_is_measured_on_the_model_and_the_images(tmp_path):
    root = pictures(tmp_path, *(f"{name}/{number}.jpg" for name in "abcd" for number in range(2)))
    data = DataPart(name="folder", root=str(root), resize=18, crop=16)
    source = load_source(data, SplitPlan("test"))
    model = ModelPart(backbone="test_efficientnet.r160_in1k", embedding_size=8, freeze_batch_norm=True)
    (tmp_path / "run").mkdir()
    found = measure_pace(model, source, 32, torch.device("cpu"), tmp_path / "run")
    assert found.train > 0
    assert found.embed > 0
    assert found.save > 0
    assert not list((tmp_path / "run").iterdir())


def test_weights_that_cannot_be_had_are_refused_before_anything_is_timed(tmp_path, monkeypatch):
    monkeypatch.setattr("softwarp.training.budget.seconds_of", None)
    model = ModelPart(backbone="test_efficientnet.r160_in1k", pretrained=str(tmp_path / "gone.pth"))
    with pytest.raises(FileNotFoundError, match=r"gone\.pth does not exist"):
        measure_pace(model, None, 32, torch.device("cpu"), tmp_path)


def test_a_checkpoint_of_adapters_is_timed_at_its_size(tmp_path, monkeypatch):
    sizes, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (sizes.append(os.fstat(file).st_size), fsync(file)))
    for adapter in (None, {"rank": 2, "dropout": 0.0}):
        network = Embedder("test_vit", 8, adapter=adapter)
        _saving_seconds(network, tmp_path)
        kept = [each for each in network.parameters() if adapter is None or each.requires_grad]
        assert sizes[-1] == 4 * 4 * sum(each.numel() for each in kept)  # with the start and two moments
    assert sizes[1] < sizes[0] / 5
