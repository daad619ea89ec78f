"""When the halves go on and when they stop."""

import re
from dataclasses import replace

import pytest

from softwarp.recipe.schema import StartPart
from softwarp.runs.choice import Candidate, Choice, Rung
from softwarp.training.budget import Pace, Plan, Workload
from softwarp.training.choice import Way
from softwarp.training.own_images import _rising
from softwarp.training.tuned import MOST_LOOKS, Tuning, looks_of, outlook, seconds_to_come, why_stop

WORK = Workload(trained=100, judged=40, choosing=True)
PACE = Pace(train=1.0, embed=0.1, save=0.0)
LOOK = 2 * WORK.fold(PACE, 2, 2)  # seconds that a look of two epochs takes on both halves, as planned
TUNING = Tuning(
    halves=(None, None),
    start=None,
    start_value=0.5,
    every=2,
    exactly=0,
    budget=1e9,
    plan=Plan(224, 8, 0.0, PACE),
    work=WORK,
)


def looks(*values):
    """What the halves said at looks of two epochs each; half of the way is a little worse."""
    classes = {}
    for number, value in enumerate(values, 1):
        classes |= {Way(2 * number, 1.0): {"a": value}, Way(2 * number, 0.5): {"a": value - 0.01}}
    return classes, {}


def stops(*values, tuning=TUNING, before=0.0, spent=LOOK):
    return why_stop(tuning, looks(*values), 2 * len(values), before, [spent] * len(values))


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ((0.6,), ""),
        ((0.4,), ""),  # one look without a gain
        ((0.4, 0.45), "flat"),  # rising, but never above its start
        ((0.4, 0.55), ""),
        ((0.6, 0.59, 0.61), ""),
        ((0.6, 0.59, 0.6), "flat"),
        ((0.6, 0.59, 0.58), "flat"),
    ],
)
def test_the_halves_go_on_while_one_of_two_looks_is_the_best_so_far(values, why):
    assert stops(*values) == why


def test_in_a_closed_set_held_out_images_decide():
    classes, _ = looks(0.4, 0.3)
    assert why_stop(TUNING, (classes, looks(0.6, 0.7)[0]), 4, 0.0, [LOOK] * 2) == ""


def test_no_look_begins_that_would_not_leave_time_for_the_final_model():
    whole = 300 + 2 * LOOK + WORK.final(PACE, 4)
    assert stops(0.6, tuning=replace(TUNING, budget=whole + 1), before=300) == ""
    assert stops(0.6, tuning=replace(TUNING, budget=whole - 1), before=300) == "time"


def test_the_model_that_is_shipped_needs_time_too():
    shipped = replace(TUNING, work=replace(WORK, shipped=140))
    more = 1.4 * replace(WORK, judged=0).final(PACE, 4)  # 140 images in place of 100, and none is judged
    assert seconds_to_come(shipped, 2, [LOOK]) == pytest.approx(seconds_to_come(TUNING, 2, [LOOK]) + more)


@pytest.mark.parametrize("slower", [0.25, 4.0])
def test_the_pace_of_the_last_look_corrects_the_plan_either_way(slower):
    planned = LOOK + WORK.final(PACE, 4)
    assert seconds_to_come(TUNING, 2, [slower * LOOK]) == pytest.approx(slower * planned)


def test_epochs_that_were_asked_for_are_trained_whatever_the_halves_say():
    exactly = replace(TUNING, exactly=6, budget=0.0)
    assert stops(0.4, 0.3, tuning=exactly) == ""
    assert stops(0.4, 0.3, 0.2, tuning=exactly) == "asked"
    assert stops(*[0.5 + 1e-4 * look for look in range(MOST_LOOKS)]) == "most"


def test_looks_and_their_seconds_are_read_from_both_halves_up_to_an_epoch(tmp_path, monkeypatch):
    def history(run):
        own = run.folder.name[-1]
        rows = [{"epoch": epoch, "seconds": 10.0 * epoch} for epoch in (1, 2, 3, 4)]
        for row in rows[1::2]:
            row["interpolations"] = {"1.0": {own: 0.1 * row["epoch"]}}
        return [{"event": "blow_up"}, *rows]

    monkeypatch.setattr(
        "softwarp.training.tuned.Run", lambda folder: type("R", (), {"folder": folder, "history": history})()
    )
    start = StartPart(shrinkage=3.0)
    (classes, images), spent = looks_of(replace(TUNING, start=start), tmp_path, 2)
    assert classes == {Way(2, 1.0, start): {"0": 0.2, "1": 0.2}}
    assert (images, spent) == ({}, [40.0])
    assert looks_of(TUNING, tmp_path, 4)[1] == [40.0, 40.0]


def rungs(*values, seconds):
    """A choice that ends with looks of two epochs at these values, after a minute on the features."""

    def made(epochs, value):
        return Candidate(epochs=epochs, share=1.0, map_at_r=value, difference=0.1, interval=(0.05, 0.15))

    candidates = [made(0, 0.5), *(made(2 * number, value) for number, value in enumerate(values, 1))]
    took = {"frozen": (60.0, candidates[0]), "fine-tuned": (seconds, candidates[-1])}
    return Choice(
        classes=9,
        chosen=candidates[-1],
        best=candidates[-1],
        candidates=tuple(candidates),
        rungs=tuple(Rung(name=name, seconds=each, best=best) for name, (each, best) in took.items()),
    )


@pytest.mark.parametrize(
    ("values", "seconds", "gain", "expected"),
    [
        ((0.50, 0.53, 0.55), 300, "+2.0", "+2.0"),  # dozens of looks more: as much again
        ((0.50, 0.54), 1573, "+4.0", "+3.0"),  # 4.5 looks in 3540 s, so two more: half and a quarter
        ((0.50, 0.54), 2500, "+4.0", ""),  # not a whole one
        ((0.50, 0.54), 4000, "+4.0", ""),  # it took longer than an hour
        ((0.54,), 300, "", ""),
        ((0.54, 0.53), 300, "", ""),
    ],
)
def test_an_hour_brings_half_of_the_last_look_with_each_further_one(values, seconds, gain, expected):
    said = outlook(rungs(*values, seconds=seconds - 100), final=100.0)
    assert bool(said) == bool(expected)
    if expected:
        assert f"brought {gain} MAP@R" in said
        assert f"about {expected} more" in said
        assert "a guess" in said


@pytest.mark.parametrize(
    ("values", "stopped", "cause"),
    [
        ((0.51, 0.54), "time", "after 4 epochs; the last look brought"),
        ((0.54,), "time", "after 2 epochs; a longer budget may give more"),
        ((0.51, 0.54), "asked", r"after 4 epochs; more epochs \(phases.0.epochs=8\)"),
        ((0.54,), "asked", "^$"),
        ((0.51, 0.54), "flat", "^$"),
    ],
)
def test_a_curve_that_was_still_rising_is_said_to_be(values, stopped, cause):
    assert re.search(cause, _rising(rungs(*values, seconds=300), stopped, 100.0))
