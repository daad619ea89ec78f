import pytest

from softwarp.recipe.phases import Phase
from softwarp.training.job import State
from softwarp.training.schedule import factor, warm_up


def phase(**settings):
    return Phase(epochs=6, learning_rate=1, proxy_learning_rate=1, **settings)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [1, 1, 1, 1]),
        ({"schedule": "step", "step_epochs": 2, "gamma": 0.5}, [1, 1, 0.5, 0.25]),
        ({"schedule": "cosine"}, [1, (2 + 3**0.5) / 4, 0.75, 0.25]),
    ],
)
def test_rates_follow_the_schedule(settings, expected):
    assert [factor(phase(**settings), epoch) for epoch in (0, 1, 2, 4)] == pytest.approx(expected)
    assert factor(phase(**settings), 0, drops=3) == 1


def test_inside_an_epoch_steps_wait_and_the_cosine_goes_on():
    assert factor(phase(schedule="step", step_epochs=2), 1.99) == 1
    assert factor(phase(schedule="cosine"), 3.5) < factor(phase(schedule="cosine"), 3) == pytest.approx(0.5)


def test_a_warm_up_rises_to_one_and_stays():
    rising = phase(warm_up_steps=100)
    assert [warm_up(rising, step) for step in (0, 49, 99, 100, 5000)] == [0.01, 0.5, 1, 1, 1]
    assert warm_up(phase(), 0) == 1


def test_a_plateau_counts_drops_not_epochs():
    plateau = phase(schedule="plateau", gamma=0.5)
    assert [factor(plateau, 5, drops) for drops in (0, 1, 2)] == [1, 0.5, 0.25]


def test_only_a_better_value_is_the_best():
    state = State(since_drop=5)
    assert [state.look(value, epoch) for epoch, value in enumerate([0.5, 0.5, 0.4, 0.6, 0.1], 1)] == [
        True,
        False,
        False,
        True,
        False,
    ]
    assert (state.best, state.best_epoch, state.since_best, state.since_drop) == (0.6, 4, 1, 1)
    state.look(0.6, 6)
    assert (state.best_epoch, state.since_best, state.since_drop) == (4, 2, 2)
