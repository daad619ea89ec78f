"""The plans of tune, benchmark and reality-check: what fits into a budget, and what is refused at once."""

import json

import pytest
import yaml
from support.tiny_runs import tiny
from typer.testing import CliRunner

from softwarp.cli import app
from softwarp.fair.tasks import open_study
from softwarp.studies.variants import numbers_of
from softwarp.tuning.cost import Sizes, StudyPace, TrainingKind
from softwarp.tuning.plan import Asked, fit_study

RECIPE = tiny()  # two phases of one epoch


def long_recipe():
    phases = tuple(
        phase.model_copy(update={"epochs": epochs})
        for phase, epochs in zip(RECIPE.phases, (8, 4), strict=True)
    )
    return RECIPE.model_copy(update={"phases": phases})


@pytest.fixture
def pace(monkeypatch):
    """A second per step, ten steps per epoch, nothing else."""
    plan = RECIPE.evaluation.plan()
    known = StudyPace(1.0, 0.0, 0.0, 100, {plan: Sizes(10, 5, 50, 20)}, {(RECIPE.loss.name, plan): 0.0})
    monkeypatch.setattr("softwarp.tuning.plan.time_steps", lambda *_: known)


def trainings(recipes, trials):
    return [TrainingKind(recipe, trials + 2) for recipe in recipes.values()]


def fit(folder, budget, trials=None, dry_run=False):
    recipes = {"a": long_recipe(), "b": long_recipe()}
    return fit_study(recipes, trainings, folder, Asked(trials, 6, budget, dry_run))


def shape(plan):
    return plan.trials, [[phase.epochs for phase in recipe.phases] for recipe in plan.recipes.values()]


def test_a_budget_takes_trials_first_then_epochs_then_what_is_left(pace, tmp_path):
    assert shape(fit(tmp_path, None)) == (6, [[8, 4], [8, 4]])  # 2 x 8 trainings of 120 seconds
    assert shape(fit(tmp_path, "1h")) == (6, [[8, 4], [8, 4]])
    assert shape(fit(tmp_path, "1000s")) == (5, [[5, 2], [5, 2]])
    assert shape(fit(tmp_path, "600s")) == (5, [[3, 1], [3, 1]])
    assert shape(fit(tmp_path, "150s")) == (1, [[1, 1], [1, 1]])
    assert shape(fit(tmp_path, "960s", trials=6)) == (6, [[4, 2], [4, 2]])


def test_a_budget_that_nothing_fits_into_is_refused_with_what_it_would_take(pace, tmp_path):
    with pytest.raises(ValueError, match=r"10s is too short: one epoch and 1 trial are 6 trainings"):
        fit(tmp_path, "10s")


def test_a_study_keeps_its_plan_whatever_is_measured_later(pace, tmp_path, monkeypatch):
    first = fit(tmp_path, "1000 s")
    first.keep(tmp_path)
    slower = StudyPace(50.0, 0.0, 0.0, 100, {}, {})
    monkeypatch.setattr("softwarp.tuning.plan.time_steps", lambda *_: slower)
    slower.sizes[RECIPE.evaluation.plan()] = Sizes(10, 5, 50, 20)
    assert shape(fit(tmp_path, "1000s")) == shape(first)
    monkeypatch.setattr("softwarp.tuning.plan.time_steps", None)  # refused before anything is timed
    with pytest.raises(ValueError, match=r"budget is 1000\.0 there and 60\.0 here"):
        fit(tmp_path, "1 min")
    with pytest.raises(ValueError, match="trials is None there and 3 here"):
        fit(tmp_path, "1000s", trials=3)


def test_of_two_workers_that_plan_at_once_the_first_one_decides(pace, tmp_path, monkeypatch):
    first = fit(tmp_path, "1000s")
    slower = StudyPace(2.0, 0.0, 0.0, 100, {}, {})
    slower.sizes[RECIPE.evaluation.plan()] = Sizes(10, 5, 50, 20)
    monkeypatch.setattr("softwarp.tuning.plan.time_steps", lambda *_: slower)
    second = fit(tmp_path, "1000s")
    assert shape(second) != shape(first)
    first.keep(tmp_path)
    with pytest.raises(ValueError, match="give the same command again"):
        second.keep(tmp_path)
    assert shape(fit(tmp_path, "1000s")) == shape(first)


def test_a_budget_for_a_study_that_had_none_is_refused_and_leaves_it_as_it_was(pace, tmp_path):
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(ValueError, match="made without a budget"):
        fit(tmp_path, "1h")
    assert fit(tmp_path, "1h", dry_run=True).trials == 6  # asks only
    assert fit(tmp_path, None).trials == 6


def run(*words):
    return CliRunner().invoke(app, [*map(str, words)])


SMALL = ["data.max_classes=8", "model.embedding_size=4", "batches.classes=4", "evaluation.clustering=false"]


def test_a_dry_run_of_a_search_plans_and_writes_nothing(tmp_path):
    said = run("tune", *SMALL, "--dry-run", "--trials", 3, "--output", tmp_path / "x")
    assert said.exit_code == 0, said.output
    assert "3 trials of 12 epochs: 3 trainings, about" in said.stderr
    assert "batches: search 4 classes x 4 images, from 8 classes" in said.stderr
    assert not (tmp_path / "x").exists()


def test_a_search_within_a_budget_trains_what_was_planned(pace, tmp_path, monkeypatch):
    monkeypatch.setattr("softwarp.tuning.search.evaluate_trial", lambda *_, **__: 0.5)
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(long_recipe().model_dump(mode="json")))
    words = ("tune", tmp_path / "own.yaml", "--budget", "4 min", "--output", tmp_path / "study")
    assert run(*words).exit_code == 0
    assert len(json.loads((tmp_path / "study" / "trials.json").read_text())["search"]) == 5
    assert json.loads((tmp_path / "study" / "plan.json").read_text())["trials"] == 5


@pytest.mark.parametrize("words", [("clusters", "--fineness"), ("classify", "q.jpg", "--false-rejection")])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_options_refuse_what_is_not_a_finite_number(words, value, tmp_path):
    assert run("index", words[0], tmp_path, *words[1:], value).exit_code == 2


@pytest.mark.parametrize("text", ["nan", "1,inf", ""])
def test_a_list_of_numbers_holds_numbers(text):
    with pytest.raises(ValueError, match="list of numbers"):
        numbers_of(text)


@pytest.mark.parametrize("command", [("tune",), ("benchmark", "--losses", "arcface,triplet")])
def test_refusals_come_before_anything_is_timed(command, tmp_path, monkeypatch):
    monkeypatch.setattr("softwarp.tuning.plan.time_steps", None)
    (tmp_path / "file").write_text("")
    assert "is a file" in str(run(*command, *SMALL, "--output", tmp_path / "file").exception)
    for wrong in (("--trials", "0"), ("--trials", "-3")):
        assert run(*command, *SMALL, *wrong).exit_code == 2
    assert "budget is a time" in str(run(*command, *SMALL, "--budget", "nan").exception)


@pytest.mark.parametrize(
    "command", [("benchmark", "--losses", "arcface,triplet"), ("reality-check", "arcface")]
)
def test_a_study_that_is_killed_when_it_is_opened_has_its_plan(command, tmp_path, monkeypatch):
    monkeypatch.setattr("softwarp.tuning.plan.time_steps", lambda *_: StudyPace(0.1, 0.0, 0.0, 100))

    def end(folder, content, write):
        open_study(folder, content, write=write)
        raise MemoryError

    monkeypatch.setattr("softwarp.fair.each_loss.open_study", end)
    words = (*command, *SMALL, "--budget", "1000h", "--output", tmp_path / "study")
    assert isinstance(run(*words).exception, MemoryError)
    assert isinstance(run(*words).exception, MemoryError)  # resumed, not refused


def test_samples_that_the_loss_cannot_take_are_refused_before_the_search(tmp_path):
    space = ("--space", "batches.samples=int:1:4")
    said = run("tune", "loss.name=triplet", *SMALL, *space, "--output", tmp_path / "x")
    assert "triplet needs 2 classes x 2 samples" in str(said.exception)
