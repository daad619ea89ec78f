"""What a run works on: built from its recipe, saved and restored."""

import random

import numpy as np
import torch
from support.results import RECIPE

from softwarp.runs.run import Run
from softwarp.training.job import State
from softwarp.training.random_state import random_state, set_random_state


def draws():
    return torch.rand(1).item(), np.random.rand(), random.random(), random.gauss(0, 1)  # noqa: NPY002


def test_every_generator_resumes_from_a_checkpoint(tmp_path):
    run = Run.create(tmp_path, RECIPE)
    random.gauss(0, 1)  # leaves its second value behind
    run.save_checkpoint({"random": random_state()})
    expected, others = draws(), draws()
    assert all(a != b for a, b in zip(expected, others, strict=True))
    set_random_state(run.load_checkpoint()[0]["random"])
    assert draws() == expected


def test_the_best_validation_is_remembered():
    state = State()
    assert [state.look(value, epoch) for epoch, value in enumerate((0.5, 0.4, 0.6, 0.6), start=1)] == [
        True,
        False,
        True,
        False,
    ]
    assert (state.best, state.best_epoch, state.since_best, state.since_drop) == (0.6, 3, 1, 1)
