import pytest
from support.blobs import blobs

from softwarp.models.whitening import ClassScatter
from softwarp.recipe.schema import StartPart
from softwarp.training.choice import FROZEN, Way, mean_of
from softwarp.training.ladder import Ladder
from softwarp.training.rungs import SHRINKAGES, Half, calibrated, frozen, head_alone

NAMES = [f"class {number}" for number in range(12)]


@pytest.fixture
def halves():
    """Each half of twelve classes trains, and the other judges."""
    features, labels = blobs(classes=12)
    first = labels < 6
    sides = [
        (features[side], labels[side] - offset, NAMES[offset:][:6])
        for side, offset in ((first, 0), (~first, 6))
    ]
    return [Half(*sides[0], *sides[1]), Half(*sides[1], *sides[0])]


@pytest.fixture
def scatters(halves):
    return [ClassScatter.of(half.trained, half.labels) for half in halves]


def test_every_class_judges_each_candidate_once(halves, scatters):
    for seen in (frozen(halves), calibrated(halves, scatters, 10)):
        assert seen[1] == {}
        assert all(sorted(each) == sorted(NAMES) for each in seen[0].values())
    assert list(calibrated(halves, scatters, 10)[0]) == [
        Way(start=StartPart(shrinkage=each)) for each in SHRINKAGES
    ]


def test_calibrated_features_are_better_where_images_of_a_class_scatter_along_axes(halves, scatters):
    before = mean_of(frozen(halves)[0][FROZEN])
    values = {way.start.shrinkage: mean_of(each) for way, each in calibrated(halves, scatters, 10)[0].items()}
    assert values[0.01] > before + 0.2
    assert values[0.01] > values[None]


def test_a_smaller_embedding_is_judged_as_it_is_made(halves, scatters):
    whole, small = (calibrated(halves, scatters, size)[0] for size in (10, 2))
    way = Way(start=StartPart(shrinkage=0.01))
    assert mean_of(small[way]) < mean_of(whole[way])


def test_a_head_trains_on_while_its_looks_get_better(halves, scatters, monkeypatch):
    values = iter((0.6, 0.7, 0.7))
    monkeypatch.setattr("softwarp.training.rungs.mean_of", lambda each: next(values))
    seen = head_alone(
        halves, scatters, 10, loss="normalized_softmax", shrinkage=None, start_value=0.5, seed=0
    )
    assert [way.start.steps for way in seen[0]] == [15, 30, 60]
    assert {(way.start.loss, way.start.shrinkage) for way in seen[0]} == {("normalized_softmax", None)}


def test_a_closed_set_also_looks_held_out_images_up_among_those_that_train(halves):
    half = halves[0]
    kept = Half(
        half.trained[1:], half.labels[1:], half.names, half.judged, half.judged_labels, half.judged_names,
        half.trained[:1], half.labels[:1],
    )  # fmt: skip
    classes, images = kept.look(lambda each: each)
    assert (len(classes), list(images)) == (6, ["class 0"])


def test_what_was_climbed_is_not_climbed_again_and_the_seconds_of_a_rung_add_up(tmp_path):
    file, calls = tmp_path / "ladder.json", []

    def look(value, start=None):
        calls.append(value)
        return {Way(start=start): dict.fromkeys("abcdef", value)}, {}

    def climb():
        ladder = Ladder.open(file, {"seed": 0}, budget=60.0, fresh=False)
        ladder.climb(file, "frozen", "frozen", lambda: look(0.5))
        for loss in ("normalized_softmax", "proxy_nca_pp"):
            start = StartPart(loss=loss, steps=15)
            ladder.climb(file, "head", loss, lambda start=start: look(0.6, start))
        return ladder

    ladder = climb()
    assert climb().climbed == ladder.climbed
    assert len(calls) == 3
    choice = ladder.choice()
    assert [rung.name for rung in choice.rungs] == ["frozen", "head"]
    assert choice.rungs[1].seconds == sum(each.seconds for each in ladder.climbed[1:])
    assert choice.chosen.rung == "head"
    assert "15 steps of normalized_softmax" in choice.sentence()
    later = Ladder.open(file, {"seed": 0}, budget=60.0, fresh=False, spent=30.0)
    assert later.seconds == ladder.seconds + 30
    assert not Ladder.open(file, {"seed": 1}, budget=60.0, fresh=False).climbed
    assert not Ladder.open(file, {"seed": 0}, budget=60.0, fresh=True).climbed


@pytest.mark.parametrize(("stopped", "then"), [("time", ""), ("flat", "flat")])
def test_another_budget_goes_on_where_time_had_ended_it(tmp_path, stopped, then):
    file = tmp_path / "ladder.json"
    ladder = Ladder.open(file, {}, budget=60.0, fresh=False)
    ladder.stopped = stopped
    ladder.save(file)
    assert Ladder.open(file, {}, budget=60.0, fresh=False).stopped == stopped
    assert Ladder.open(file, {}, budget=90.0, fresh=False).stopped == then
