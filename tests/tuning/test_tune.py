"""Hyper-parameter search: on validation classes, shared by workers, resumed where it stopped."""

import errno
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from support.pictures import jpeg, noise
from support.postgres import postgres
from support.tiny_runs import PHASE, tiny

from softwarp.runs.run import Run
from softwarp.training.train import BlowUpError, training
from softwarp.tuning import search as tune
from softwarp.tuning import trial_queue
from softwarp.tuning.space import Parameter

RATE, ALPHA = "phases.0.learning_rate", "loss.settings.alpha"
SPACE = {RATE: Parameter("log", 1e-4, 1.0), ALPHA: Parameter("float", 0.0, 10.0)}
TINY = tiny(phases=[PHASE])


def hill(recipe, folder, **_):
    """Best, with 1, at a learning rate of 0.01 and alpha 7."""
    import math

    rate, alpha = recipe.phases[0].learning_rate, recipe.loss.settings["alpha"]
    return 1 - (math.log10(rate) + 2) ** 2 / 4 - (alpha - 7) ** 2 / 50


@pytest.fixture
def formula(monkeypatch):
    """Trials are the formula above; returns how many there were."""
    calls = []

    def judge(*inputs, **keywords):
        calls.append(1)
        return hill(*inputs, **keywords)

    monkeypatch.setattr(tune, "evaluate_trial", judge)
    return calls


def search(folder, trials=6, **options):
    return tune.search(TINY, folder, trials=trials, **{"space": SPACE} | options)


def test_a_search_resumes_where_it_stopped(tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    first = tune.search(TINY, tmp_path, trials=1)
    with monkeypatch.context() as patch:
        patch.setattr(tune, "training", interrupt)
        with pytest.raises(KeyboardInterrupt):
            tune.search(TINY, tmp_path, trials=2)
    both = tune.search(TINY, tmp_path, trials=2)
    assert len(both.trials) == 2  # the interrupted one does not count
    assert len({trial.settings[RATE] for trial in both.trials}) == 2
    assert first.best in both.trials
    assert both.trials[0].value >= both.trials[1].value
    assert both.best_recipe().loss.settings["k1"] == both.best.settings["loss.settings.k1"]
    assert both.best_recipe().evaluation == TINY.evaluation
    kept = [Run(trial.folder).load_checkpoint()[0] is not None for trial in both.trials]
    assert kept == [True, False]  # weights of the best alone
    assert all(Run(trial.folder).result().metrics["map@r"] == trial.value for trial in both.trials)


@pytest.mark.parametrize("sampler", ["tpe", pytest.param("gp", marks=pytest.mark.slow), "random", "grid"])
def test_each_sampler_finds_a_known_optimum(sampler, tmp_path, formula):
    study = search(tmp_path, 49 if sampler == "grid" else 40, sampler=sampler)
    assert study.best.value > (0.98 if sampler in ("tpe", "gp") else 0.9)
    assert len(formula) == len(study.trials) == (49 if sampler == "grid" else 40)
    if sampler == "grid":
        assert len({trial.settings[RATE] for trial in study.trials}) == 7


@pytest.mark.slow
def test_the_gaussian_process_needs_fewer_trials_than_chance(tmp_path, formula):
    def needed(sampler, seed):
        recipe = TINY.model_copy(update={"seed": seed})
        folder = tmp_path / f"{sampler}{seed}"
        study = tune.search(recipe, folder, trials=30, space=SPACE, sampler=sampler)
        return min((trial.number for trial in study.trials if trial.value > 0.99), default=30)

    medians = {name: statistics.median(needed(name, seed) for seed in range(10)) for name in ("gp", "random")}
    assert medians["gp"] < medians["random"], medians


def test_workers_that_start_together_draw_different_trials_and_the_same_search_the_same(tmp_path, formula):
    whole = search(tmp_path / "whole", 8)
    assert len({trial.settings[RATE] for trial in whole.trials}) == 8
    again = search(tmp_path / "again", 8)
    drawn = [{trial.number: trial.settings for trial in study.trials} for study in (whole, again)]
    assert drawn[0] == drawn[1]
    other = tune.search(TINY.model_copy(update={"seed": 1}), tmp_path / "seed", trials=2, space=SPACE)
    assert {trial.number: trial.settings for trial in other.trials}[1] != drawn[0][1]


@pytest.mark.parametrize("sampler", ["tpe", "gp", "random"])
def test_the_first_trial_has_the_recipe_s_own_settings(sampler, tmp_path, formula):
    for trials in (1, 2):  # once, however often it is resumed
        study = tune.search(TINY, tmp_path / "search", trials=trials, space=SPACE, sampler=sampler)
    own = [trial.settings for trial in study.trials if trial.settings[RATE] == TINY.phases[0].learning_rate]
    assert own == [{RATE: 0.005, "loss.settings.alpha": 4.0}]


@pytest.mark.parametrize("place", ["asked", "began", "ended"])
def test_a_killed_search_draws_what_it_would_have_drawn(place, tmp_path, formula, monkeypatch):
    """The process dies in the third trial; -9 leaves no chance to tidy up."""
    whole = search(tmp_path / "whole")
    number = os.fork()
    if number == 0:
        suggest, judge = tune.suggest, tune.evaluate_trial

        def die(trial, space):
            if trial.number == 2 and place == "asked":
                os.kill(os.getpid(), 9)
            drawn = suggest(trial, space)
            if trial.number == 2 and place == "began":
                os.kill(os.getpid(), 9)
            return drawn

        def die_at_the_end(recipe, folder, **rest):
            value = judge(recipe, folder, **rest)
            if folder.name == "trial-0002":
                os.kill(os.getpid(), 9)
            return value

        tune.suggest, tune.evaluate_trial = die, die_at_the_end
        search(tmp_path / "killed")
        os._exit(0)
    assert os.waitpid(number, 0)[1] == 9
    killed = search(tmp_path / "killed")
    assert [trial.settings for trial in killed.trials] == [trial.settings for trial in whole.trials]
    assert len(killed.trials) == 6
    assert {trial.folder.name for trial in killed.trials} >= {"trial-0002"}  # resumed in its folder


@pytest.mark.slow
def test_four_workers_share_a_database_and_two_are_killed(tmp_path):
    with postgres() as url:
        share(tmp_path, 4, 2, url)


@pytest.mark.slow
def test_two_workers_share_a_journal_and_both_are_killed(tmp_path):
    share(tmp_path, 2, 2)  # a third one finishes


def share(folder, workers, kills, *storage):
    script = Path(__file__).parents[1] / "support" / "search_workers.py"
    command = [sys.executable, str(script), str(folder), str(workers), str(kills), *storage]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert f"{kills} killed mid-trial" in done.stdout


def test_too_many_trials_at_once_are_given_back(tmp_path, formula, monkeypatch):
    """Without turns, as in a database, workers may take more than asked for."""
    queue = trial_queue.TrialQueue("study", tmp_path, None)
    for _ in range(4):
        queue.study.ask()
    assert [queue.is_surplus(number, 3) for number in range(4)] == [False] * 3 + [True]
    queue.study.tell(1, state=trial_queue.TrialState.FAIL)
    assert not queue.is_surplus(3, 3)


@pytest.mark.parametrize("sampler", ["random", "grid"])
def test_points_that_two_workers_queue_at_once_are_tried_once(sampler, tmp_path, formula, monkeypatch):
    """Workers of a database that start together may all find no trial, and queue the first ones."""
    enqueue = optuna.Study.enqueue_trial
    monkeypatch.setattr(
        optuna.Study, "enqueue_trial", lambda self, point, **_: [enqueue(self, point) for _ in range(2)]
    )
    study = tune.search(TINY, tmp_path, trials=4, space=SPACE, sampler=sampler)
    assert len({str(trial.settings) for trial in study.trials}) == len(study.trials) == 4


def test_a_blow_up_is_the_worst_outcome_and_any_other_error_the_end(tmp_path, monkeypatch):
    def some_blow_up(recipe, folder, **rest):
        if folder.name == "trial-0001":
            raise BlowUpError("the loss is nan")
        return hill(recipe, folder, **rest)

    monkeypatch.setattr(tune, "evaluate_trial", some_blow_up)
    study = search(tmp_path / "some", 3)
    assert [(trial.state, trial.value) for trial in study.trials][-1] == ("blew up", 0.0)
    assert "nan" in study.trials[-1].error
    monkeypatch.setattr(
        tune, "evaluate_trial", lambda *_, **__: (_ for _ in ()).throw(BlowUpError("the loss is inf"))
    )
    with pytest.raises(ValueError, match=r"all 2 trials blew up.*inf"):
        search(tmp_path / "all", 2)
    monkeypatch.setattr(tune, "evaluate_trial", lambda *_, **__: (_ for _ in ()).throw(ValueError("owl")))
    with pytest.raises(ValueError, match="owl"):
        search(tmp_path / "other", 2)
    monkeypatch.setattr(tune, "evaluate_trial", hill)
    assert len(search(tmp_path / "other", 2).trials) == 2  # once the cause is gone


def test_hopeless_trials_end_early_and_count(tmp_path, monkeypatch):
    steps = []

    def with_looks(recipe, folder, *, look, **rest):
        for epoch in range(1, 5):
            look(epoch, hill(recipe, folder) * epoch / 4)
            steps.append(epoch)
        return hill(recipe, folder)

    monkeypatch.setattr(tune, "evaluate_trial", with_looks)
    recipe = tiny(phases=[{**PHASE, "epochs": 4}])
    study = tune.search(recipe, tmp_path / "a", trials=20, space=SPACE, sampler="random")
    pruned = [trial for trial in study.trials if trial.state == "pruned"]
    assert len(study.trials) == 20
    assert len(pruned) > 2
    assert len(steps) < 80
    assert study.best.state == "complete"
    assert min(len(trial.looks) for trial in pruned) == 2  # not in the first third
    whole = tune.search(recipe, tmp_path / "b", trials=20, space=SPACE, sampler="random", prune=False)
    assert {trial.state for trial in whole.trials} == {"complete"}


def test_looks_come_from_training_itself(tmp_path):
    recipe = tiny(phases=[{**PHASE, "epochs": 2}])
    study = tune.search(recipe, tmp_path, trials=1)
    history = Run(study.best.folder).history()
    assert study.best.looks == tuple((row["epoch"], row["validation"]["map@r"]) for row in history)
    assert len(study.best.looks) == 2


def test_folds_are_judged_by_their_mean(tmp_path):
    study = tune.search(TINY, tmp_path, trials=1, folds=2, objective="recall@1")
    values = [Run(study.best.folder / f"fold-{fold}").result().metrics["recall@1"] for fold in range(2)]
    assert study.best.value == pytest.approx(statistics.mean(values))
    recipes = [Run(study.best.folder / f"fold-{fold}").recipe().evaluation for fold in range(2)]
    assert [(each.fold, each.folds, each.split) for each in recipes] == [
        (0, 2, "validation"),
        (1, 2, "validation"),
    ]


def test_test_classes_are_never_loaded(tmp_path, monkeypatch):
    """Images of test classes cannot be read: the search does not notice."""
    from softwarp.data import stores

    root = tmp_path / "birds"
    for number in range(8):
        for image in range(4):
            role = "train" if number < 6 else "test"
            jpeg(root / role / f"bird{number}" / f"{image}.jpg", noise(40, 40, 10 * number + image))
    touched = []
    read_image = stores.read_image

    def watch(path, *rest, **keywords):
        touched.append(str(path))
        if "/test/" in str(path):
            raise AssertionError(f"{path} is of a test class")
        return read_image(path, *rest, **keywords)

    monkeypatch.setattr(stores, "read_image", watch)
    recipe = tiny(
        data={"name": "folder", "root": str(root), "resize": 32, "crop": 32, "workers": 0},
        model={"backbone": "test_efficientnet.r160_in1k", "embedding_size": 8},
        batches={"classes": 2, "samples": 2},
        phases=[PHASE],
        evaluation={"split": "test", "ks": [1]},
    )
    tune.search(recipe, tmp_path / "out", trials=1)
    tune.search(recipe, tmp_path / "folds", trials=1, folds=2)
    assert len(touched) > 20
    from softwarp.training.train import train_recipe

    with pytest.raises(AssertionError, match="of a test class"):
        train_recipe(recipe, tmp_path / "test")  # which does load them


def test_another_study_in_its_place_is_refused_with_the_difference(tmp_path, formula):
    search(tmp_path, 1)
    with pytest.raises(ValueError, match=r"model\.embedding_size is 16 there and 8 here"):
        tune.search(tiny(phases=[PHASE], model={"embedding_size": 8}), tmp_path, trials=1, space=SPACE)
    with pytest.raises(ValueError, match=r"alpha.*float:0:10 there and float:0:5 here"):
        search(tmp_path, 1, space=SPACE | {ALPHA: Parameter("float", 0.0, 5.0)})
    with pytest.raises(ValueError, match=r"objective is map@r there and recall@1 here"):
        search(tmp_path, 1, objective="recall@1")
    with pytest.raises(ValueError, match="data"):
        search_on_other_data(tmp_path)
    assert len(search(tmp_path, 2).trials) == 2


def test_a_search_begun_under_an_older_rule_is_refused(tmp_path, formula):
    search(tmp_path, 1)
    study = json.loads((tmp_path / "study.json").read_text())
    study["rules"]["metrics"] -= 1
    (tmp_path / "study.json").write_text(json.dumps(study))
    with pytest.raises(ValueError, match=r"change of metrics .*another folder"):
        search(tmp_path, 2)
    del study["rules"]  # one of before they were written down
    (tmp_path / "study.json").write_text(json.dumps(study))
    assert len(search(tmp_path, 2).trials) == 2


def search_on_other_data(folder):
    with pytest.MonkeyPatch.context() as patch:
        source = type("Source", (), {"sha256": "other"})
        patch.setattr(tune, "load_source", lambda *_: source)
        search(folder, 1)


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"objective": "map@rr"}, "did you mean map@r"),
        ({"sampler": "tpee"}, "tpe, gp, random, grid"),
        ({"trials": 0}, "trials .*above 0"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(options, cause, tmp_path):
    with pytest.raises(ValueError, match=cause):
        search(tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()


def test_a_storage_that_does_not_answer_is_named_without_its_password(tmp_path, formula):
    pytest.importorskip("psycopg")
    with pytest.raises(OSError, match=r"127\.0\.0\.1:9/") as error:
        search(tmp_path, storage="postgresql://me:secret@127.0.0.1:9/trials")
    assert "secret" not in str(error.value)
    assert "start the server" in str(error.value)


def test_a_database_that_no_longer_answers_is_named(tmp_path, formula, monkeypatch):
    from sqlalchemy.exc import OperationalError

    def gone(*_, **__):
        raise OperationalError("SELECT", None, Exception("the server closed the connection"))

    storage = f"sqlite:///{tmp_path}/trials.db"
    assert len(search(tmp_path / "out", 2, storage=storage).trials) == 2
    with monkeypatch.context() as patch:
        patch.setattr(tune, "evaluate_trial", gone)
        with pytest.raises(OSError, match=r"server closed.*same command again"):
            search(tmp_path / "out", 3, storage=storage)
    elsewhere = search(tmp_path / "another_machine", 3, storage=storage)
    assert len(elsewhere.trials) == 3
    assert len(formula) == 3


def test_a_driver_that_is_not_installed_is_named(tmp_path, formula, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ValueError, match=r"softwarp\[postgres\]"):
        search(tmp_path, storage="postgresql://me@127.0.0.1:9/trials")


def test_a_full_disk_is_named_and_nothing_is_lost(tmp_path, formula, monkeypatch):
    search(tmp_path, 2)
    size = (tmp_path / trial_queue.JOURNAL).stat().st_size
    with monkeypatch.context() as patch:

        def full(handle):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(trial_queue.os, "fsync", full)
        with pytest.raises(OSError, match=r"journal\.log.*No space left.*free disk space"):
            search(tmp_path, 3)
    assert (tmp_path / trial_queue.JOURNAL).stat().st_size == size

    def full_later(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "recipe.yaml")

    with monkeypatch.context() as patch:
        patch.setattr(tune, "evaluate_trial", full_later)
        with pytest.raises(OSError, match=r"recipe\.yaml.*No space left.*free disk space"):
            search(tmp_path, 3)
        patch.setattr(tune, "write_json", full_later)
        with pytest.raises(OSError, match="free disk space"):
            search(tmp_path / "new", 3)
    assert len(search(tmp_path, 3).trials) == 3


def test_a_line_that_a_crash_cut_off_is_removed(tmp_path, formula):
    search(tmp_path, 2)
    with (tmp_path / trial_queue.JOURNAL).open("ab") as file:
        file.write(b'{"op_code":4,"wor')
    assert len(search(tmp_path, 3).trials) == 3


def test_a_stopped_training_resumes_with_all_its_epochs_and_a_finished_one_tells_them_again(tmp_path):
    recipe = tiny(phases=[{**PHASE, "epochs": 3}], evaluation={"every": 1})
    rows = training(recipe, tmp_path)
    first = next(rows)
    rows.close()
    assert not Run(tmp_path).finished()
    resumed = list(training(recipe, tmp_path, resume=True))
    assert resumed[0] == first
    assert [row["epoch"] for row in resumed] == [1, 2, 3]
    assert list(training(recipe, tmp_path, resume=True)) == resumed
