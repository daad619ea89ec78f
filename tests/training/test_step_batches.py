"""Batches of a step follow from the classes that it trains on."""

import pytest
from support.tiny_runs import tiny

from softwarp.losses import LOSSES
from softwarp.training.step_batches import Room, divide_able, fit_batches, room_of


@pytest.mark.parametrize(
    ("given", "room", "expected"),
    [
        ({"classes": 16, "samples": 4}, Room(3, 18), (3, 4, None)),
        ({"classes": 16, "samples": 4}, Room(40, 400), (16, 4, None)),
        ({"classes": 16, "samples": 4, "accumulate": 4}, Room(10, 60), (8, 4, None)),
        ({"size": 64}, Room(3, 18), (None, None, 18)),
        ({"size": 64, "accumulate": 4}, Room(3, 18), (None, None, 16)),
    ],
)
def test_batches_are_lowered_to_what_is_there_and_never_raised(given, room, expected):
    batches = fit_batches(tiny(batches=given), room).batches
    assert (batches.classes, batches.samples, batches.size) == expected


def test_fewer_classes_than_pieces_are_refused():
    recipe = tiny(batches={"classes": 16, "samples": 4, "accumulate": 4})
    with pytest.raises(ValueError, match=r"3 classes train.*batches\.accumulate=4"):
        fit_batches(recipe, Room(3, 18))


def test_the_room_is_that_of_the_plan():
    recipe = tiny(data={"max_classes": 6}, batches={"classes": 10, "samples": 2})
    folds = recipe.evaluation.model_copy(update={"fold": 0, "folds": 3})
    held_out = recipe.model_copy(update={"evaluation": folds})
    assert (room_of(recipe).classes, room_of(held_out).classes) == (6, 4)
    assert fit_batches(held_out).batches.classes == 4


def test_every_loss_trains_on_two_classes_and_those_that_need_two_are_named_with_one():
    able, reasons = divide_able(LOSSES, 1, Room(2, 8))
    assert able == list(LOSSES)
    assert not reasons
    able, reasons = divide_able(LOSSES, 1, Room(1, 8))
    assert "warped_softmax" in able
    assert "triplet needs 2 classes in a batch, but only 1 trains" in reasons
    assert len(able) + len(reasons) == len(LOSSES)
