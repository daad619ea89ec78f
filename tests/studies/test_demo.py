"""A stopped demo is resumed, a finished one restarts."""

import pytest
from support.results import result
from support.tiny_runs import Steps, tiny

from softwarp.runs.repeats import summarise
from softwarp.runs.run import Run
from softwarp.studies import demo
from softwarp.training.train import StoppedError

STEPS = 12  # of a tiny run


@pytest.fixture(autouse=True)
def tiny_demo(monkeypatch):
    """Three losses on 20 characters, and no report."""
    recipes = {"warped_softmax": tiny()}
    for name in ("euclidean_softmax", "proxy_nca_pp"):
        recipes[name] = tiny(loss={"name": name}, phases=tiny().model_dump()["phases"][:1] * 2)
    monkeypatch.setattr(demo, "demo_recipes", lambda: recipes)
    monkeypatch.setattr(demo, "write_report", lambda *_: None)


def stop():
    raise StoppedError


def metrics(runs):
    return {title: run.result().metrics for title, run in runs.items()}


def test_a_stopped_demo_resumes_to_the_same_table(tmp_path):
    whole = demo.run_demo(tmp_path / "whole")
    with pytest.raises(StoppedError):
        demo.run_demo(tmp_path / "cut", on_event=Steps(STEPS + 8, stop))
    first = tmp_path / "cut" / "warped_softmax" / "result.json"
    before = first.stat().st_mtime_ns
    assert not (tmp_path / "cut" / "demo.json").exists()
    bars = Steps(0, None)
    assert metrics(demo.run_demo(tmp_path / "cut", on_event=bars)) == metrics(whole)
    assert first.stat().st_mtime_ns == before
    assert -bars.steps == 2 * STEPS - 6  # the second resumes after its first epoch


def test_a_finished_demo_restarts_and_what_it_left_is_not_taken_for_the_new_one(tmp_path):
    demo.run_demo(tmp_path)
    with pytest.raises(StoppedError):
        demo.run_demo(tmp_path, on_event=Steps(8, stop))
    assert not any(Run(tmp_path / name).finished() for name in demo.LOSSES)
    bars = Steps(0, None)
    demo.run_demo(tmp_path, on_event=bars)
    assert -bars.steps == 3 * STEPS - 6


def test_a_stopped_demo_of_another_seed_restarts(tmp_path):
    with pytest.raises(StoppedError):
        demo.run_demo(tmp_path, seed=1, on_event=Steps(STEPS + 8, stop))
    bars = Steps(0, None)
    runs = demo.run_demo(tmp_path, seed=0, on_event=bars)
    assert -bars.steps == 3 * STEPS
    assert {run.recipe().seed for run in runs.values()} == {0}


def test_a_demo_without_its_report_is_not_finished(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "write_report", lambda *_: stop())
    with pytest.raises(StoppedError):
        demo.run_demo(tmp_path)
    assert not (tmp_path / "demo.json").exists()


def test_the_kept_row_has_mean_deviation_and_interval():
    values = [result(metrics=dict.fromkeys(demo.METRICS, value), seconds=value) for value in (1.0, 2.0, 3.0)]
    row = demo._row("a", summarise(values))
    assert (row["mean"]["map@r"], row["deviation"]["map@r"], row["seconds"]) == (2.0, 1.0, 2.0)
    assert row["interval"]["map@r"] == pytest.approx((-0.484, 4.484), abs=1e-3)
