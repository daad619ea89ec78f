"""Settings that training measures itself: the same after an interruption and in several processes."""

import signal

import pytest
from support.tiny_runs import PHASE, Steps, outcome, tiny

from softwarp.runs.run import Run
from softwarp.training.train import StoppedError, train_recipe

AUTO = {"name": "warped_softmax", "settings": {"alpha": "auto", "scale": "auto", "k1": 0.8, "k2": 1.2}}


def test_scale_and_alpha_are_in_the_history_and_phases_set_them(tmp_path):
    second = {**PHASE, "loss_settings": {"scale": 2.0}}
    third = {**PHASE, "loss_settings": {"scale": "auto", "alpha": "auto"}}
    rows = train_recipe(tiny(loss=AUTO, phases=[PHASE, second, third]), tmp_path).history()
    assert rows[0]["scale"] > 0
    assert rows[1]["scale"] == 2.0
    assert rows[2]["scale"] != 2.0
    assert rows[0]["alpha"] == rows[1]["alpha"] != rows[2]["alpha"]
    assert train_recipe(tiny(phases=[PHASE]), tmp_path / "numbers").history()[0]["alpha"] == 4.0


def test_an_automatic_run_resumes_to_the_very_same_end(tmp_path):
    recipe = tiny(loss=AUTO, phases=[{**PHASE, "epochs": 2}])
    whole = train_recipe(recipe, tmp_path / "whole")
    with pytest.raises(StoppedError):
        train_recipe(recipe, tmp_path / "cut", on_event=Steps(4, lambda: signal.raise_signal(signal.SIGINT)))
    assert Run(tmp_path / "cut").load_checkpoint()[0]["loss"]["lengths.batches"] == 4
    assert outcome(train_recipe(recipe, tmp_path / "cut", resume=True)) == outcome(whole)
