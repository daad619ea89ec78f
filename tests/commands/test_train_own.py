"""`softwarp train --data` from a drawn folder to a model, with a network that takes a second."""

import json
import re
import shlex
import shutil
import signal

import numpy as np
import pytest
import yaml
from support.own_images import QUICK, small_crops  # noqa: F401
from support.pictures import stripes
from typer.testing import CliRunner

from softwarp.cli import app
from softwarp.data.class_groups import fold_classes, given_or_drawn
from softwarp.recipe.schema import parse_recipe
from softwarp.runs.run import Run
from softwarp.training.budget import Pace
from softwarp.training.earlier import replace_other
from softwarp.training.train import train_recipe


def answer(root, folder, *words):
    return CliRunner().invoke(app, ["train", "--data", str(root), "--output", str(folder), *QUICK, *words])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder of images, a finished run on it and what was printed."""
    place = tmp_path_factory.mktemp("own")
    root = stripes(place / "images")
    return root, place / "run", answer(root, place / "run", "phases.0.epochs=2")


def test_what_is_chosen_on_held_out_classes_is_trained_and_reported(finished):
    _, folder, said = finished
    assert said.exit_code == 0, said.output
    choice = choice_in(folder)
    assert choice["classes"] == 9  # three of twelve are for test
    keys = [(each["epochs"], each["share"]) for each in choice["candidates"]]
    assert keys[0] == (0, 0.0)
    tuned = sorted(key for key in keys if key[0])
    assert tuned == [(epochs, share) for epochs in (1, 2) for share in (0.25, 0.5, 0.75, 1.0)]
    assert [each["name"] for each in choice["rungs"]] == ["frozen", "calibrated", "head", "fine-tuned"]
    assert sum(f"{each['name']} *" in said.stdout for each in choice["rungs"]) == 1
    recipe, result = Run(folder).recipe(), Run(folder).result()
    assert recipe.phases[0].epochs == result.epochs == choice["chosen"]["epochs"]
    assert (recipe.optimizer.wise_ft or 0.0) in (choice["chosen"]["share"], 0.0)
    assert (result.split, result.classes.train, result.classes.evaluated) == ("test", 9, 3)
    assert "chosen: " in said.stdout
    assert f"before: the frozen features; all figures at a crop of {recipe.data.crop} px" in said.stdout
    assert "expected time: " in said.stderr
    assert "up to 2 epochs on each half of the training classes" in said.stderr


def choice_in(folder):
    return json.loads((folder / "choice" / "choice.json").read_text())


def judged_by(folder, fold):
    """The classes that judged one half."""
    return set(Run(folder / "choice" / f"fold-{fold}").history()[-1]["interpolations"]["1.0"])


def test_classes_that_choose_are_training_classes_each_held_out_once(finished):
    _, folder, _ = finished
    judged = [judged_by(folder, fold) for fold in (0, 1)]
    tested = {item.class_name for item in Run(folder).items()}
    assert sorted(map(len, judged)) == [4, 5]
    assert not judged[0] & judged[1]
    assert not tested & (judged[0] | judged[1])


def test_the_same_command_trains_nothing_again_and_measures_no_pace(finished, monkeypatch):
    root, folder, said = finished
    monkeypatch.setattr("softwarp.training.train.work_through", None)
    monkeypatch.setattr("softwarp.training.own_plan.measure_pace", None)
    again = answer(root, folder, "phases.0.epochs=2")
    assert again.exit_code == 0, again.output
    assert "already finished; to train again" in again.stderr
    assert again.stdout == said.stdout


def test_a_stop_while_choosing_is_resumed_to_the_same_choice(finished, tmp_path, monkeypatch):
    root, folder, _ = finished
    looks, looked = [], train_recipe.__globals__["end_epoch"]

    def stop(*inputs):
        looks.append(1)
        if len(looks) == 3:  # in the second epoch of the first half
            signal.raise_signal(signal.SIGINT)
        return looked(*inputs)

    monkeypatch.setattr("softwarp.training.train.end_epoch", stop)
    cut = answer(root, tmp_path / "run", "phases.0.epochs=2")
    assert cut.exit_code == 130
    assert "To resume: " in cut.stderr
    assert Run(tmp_path / "run").result().epochs == 0  # the best so far is there
    assert not (tmp_path / "run" / "choice" / "choice.json").exists()
    monkeypatch.setattr("softwarp.training.train.end_epoch", looked)
    assert answer(root, tmp_path / "run", "phases.0.epochs=2").exit_code == 0
    choices = [
        json.loads((place / "choice" / "choice.json").read_text()) for place in (folder, tmp_path / "run")
    ]
    assert choices[0].pop("rungs")
    assert choices[1].pop("rungs")
    assert choices[0] == choices[1]
    assert Run(tmp_path / "run").result().metrics == Run(folder).result().metrics


def test_a_fresh_start_that_is_stopped_leaves_no_earlier_run_to_resume(tmp_path, monkeypatch):
    root, folder, looked = (
        stripes(tmp_path / "images"),
        tmp_path / "run",
        train_recipe.__globals__["end_epoch"],
    )
    assert answer(root, folder, "phases.0.epochs=1").exit_code == 0
    assert answer(root, folder, "phases.0.epochs=1", "--fresh", "loss.settings.k1=2").exit_code == 1
    assert Run(folder).finished()  # what is refused removes nothing

    def stop(*inputs):
        signal.raise_signal(signal.SIGINT)
        return looked(*inputs)

    monkeypatch.setattr("softwarp.training.train.end_epoch", stop)
    assert answer(root, folder, "phases.0.epochs=1", "--fresh").exit_code == 130
    assert [path.parent for path in folder.glob("**/result.json")] == [folder]
    assert Run(folder).result().epochs == 0
    monkeypatch.setattr("softwarp.training.train.end_epoch", looked)
    again = answer(root, folder, "phases.0.epochs=1")
    assert again.exit_code == 0, again.output
    assert Run(folder).result().epochs == choice_in(folder)["chosen"]["epochs"]


def test_too_few_classes_to_choose_by_leave_the_frozen_features(tmp_path):
    said = answer(stripes(tmp_path / "images", classes=4), tmp_path / "run")
    assert said.exit_code == 0, said.output
    assert "too few to tell whether training helps; 4 are needed" in said.stdout
    assert Run(tmp_path / "run").result().epochs == 0


def test_a_half_of_single_images_leaves_the_frozen_features(tmp_path):
    root = stripes(tmp_path / "images", images=2)
    names = [path.name for path in sorted(root.iterdir())]
    roles = given_or_drawn(np.arange(12), None)
    trained = [name for name, role in zip(names, roles, strict=True) if role == "train"]
    for place in fold_classes(np.arange(9), folds=2, seed=0)[0]:
        (root / trained[place] / "1.png").unlink()
    said = answer(root, tmp_path / "run")
    assert said.exit_code == 0, said.output
    assert "a single image" in said.stdout
    assert Run(tmp_path / "run").result().epochs == 0


def test_a_fold_that_was_asked_for_is_trained_and_said_to_be_unchecked(finished, tmp_path):
    said = answer(finished[0], tmp_path, "phases.0.epochs=1", "evaluation.fold=0", "batches.classes=4")
    assert said.exit_code == 0, said.output
    assert "not checked" in said.stdout
    assert Run(tmp_path).result().epochs == 1


def test_without_held_out_classes_it_is_trained_and_said_to_be_unchecked(finished, tmp_path):
    none = ("evaluation.test_classes=none", "evaluation.baseline=false", "phases.0.epochs=1")
    said = answer(finished[0], tmp_path, *none)
    assert said.exit_code == 0, said.output
    assert "not checked" in said.stdout
    assert "test_classes=none" in said.stdout
    assert (Run(tmp_path).result().epochs, Run(tmp_path).result().classes.train) == (1, 12)


def test_no_epochs_is_not_a_matter_of_time(finished, tmp_path):
    said = answer(finished[0], tmp_path, "phases.0.epochs=0")
    assert said.exit_code == 0, said.output
    assert "phases.0.epochs is 0" in said.stdout
    assert "--budget" not in said.output


def test_more_than_one_phase_is_refused(finished, tmp_path):
    phase = "{epochs: 1, learning_rate: 1e-4, proxy_travel: 0.5}"
    assert "phases has 2" in str(answer(finished[0], tmp_path, f"phases=[{phase}, {phase}]").exception)


def test_a_schedule_is_refused_where_epochs_are_chosen(finished, tmp_path):
    text = str(answer(finished[0], tmp_path / "run", "phases.0.schedule=cosine").exception)
    assert "schedule=cosine" in text
    assert "softwarp show --data" in text


def test_images_are_resized_to_suit_a_crop_that_was_given(finished, tmp_path):
    answer(finished[0], tmp_path / "run", "data.crop=64", "phases.0.epochs=0")
    assert Run(tmp_path / "run").recipe().data.resize == 67  # this network crops 0.95 of it
    answer(finished[0], tmp_path / "both", "data.crop=64", "data.resize=64", "phases.0.epochs=0")
    assert Run(tmp_path / "both").recipe().data.resize == 64


def test_the_recipe_that_it_begins_with_can_be_shown(finished):
    shown = CliRunner().invoke(app, ["show", "--data", str(finished[0]), "phases.0.epochs=3"])
    assert shown.exit_code == 0
    recipe = parse_recipe(yaml.safe_load(shown.stdout))
    assert (recipe.model.head_init, recipe.phases[0].epochs, recipe.data.root) == ("pca", 3, str(finished[0]))


def test_a_whole_phase_keeps_its_epochs(finished, tmp_path, monkeypatch):
    monkeypatch.setattr("softwarp.training.own_plan.measure_pace", lambda *_: Pace(1e3, 1e3, 1e3))
    monkeypatch.setattr("softwarp.training.own_images.climb_on_features", None)
    phase = "{epochs: 4, learning_rate: 1e-4, proxy_travel: 0.5}"
    assert "up to 4 epochs" in answer(finished[0], tmp_path, f"phases=[{phase}]").stderr


def test_a_batch_larger_than_the_classes_is_refused_before_the_choice(finished, tmp_path):
    said = answer(finished[0], tmp_path / "run", "phases.0.epochs=1", "data.max_classes=4")
    assert "only 4 classes; lower batches.classes" in str(said.exception)
    assert not (tmp_path / "run").exists()


def test_validation_classes_choose_nothing(tmp_path):
    words = ("--protocol", "validation", "phases.0.epochs=1")
    root = stripes(tmp_path / "more", classes=22, images=2)
    assert answer(root, tmp_path / "run", *words).exit_code == 0
    final = Run(tmp_path / "run")
    judged = {item.class_name for item in final.items()}
    assert (final.result().split, len(judged)) == ("validation", 8)
    for fold in (0, 1):
        choosing = judged_by(tmp_path / "run", fold)
        assert len(choosing) == 4
        assert not choosing & judged


def test_a_budget_decides_crop_and_epochs_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "softwarp.training.own_plan.measure_pace",
        lambda model, source, crop, device, folder: Pace(crop**2 / 1e5, crop**2 / 3e5, 0.0),
    )
    monkeypatch.setattr(
        "softwarp.training.own_images.climb_on_features", None
    )  # a plan is made before anything is trained
    root = stripes(tmp_path / "images", side=140)
    plans = {}
    for budget in ("1h", "8m", "1s"):
        answer(root, tmp_path / budget, "--budget", budget)
        plans[budget] = json.loads((tmp_path / budget / "choice" / "plan.json").read_text())["plan"]
    assert plans["1h"]["crop"] == 192
    assert plans["8m"]["crop"] == 160
    assert 0 < plans["8m"]["epochs"] < plans["1h"]["epochs"]
    assert (plans["1s"]["crop"], plans["1s"]["epochs"]) == (192, 0)


def test_a_kept_plan_is_for_these_seeds_and_this_network(tmp_path, monkeypatch):
    measured = []
    monkeypatch.setattr("softwarp.training.own_images.climb_on_features", None)
    monkeypatch.setattr(
        "softwarp.training.own_plan.measure_pace",
        lambda model, *_: measured.append(model.embedding_size) or Pace(1.0, 1.0, 1.0),
    )
    root, folder = stripes(tmp_path / "images"), tmp_path / "run"
    one, three = (answer(root, folder, "phases.0.epochs=4", "--seeds", seeds).stderr for seeds in "13")
    assert measured == [8]
    assert "expected time: 21 minutes" in one
    assert "expected time: 35 minutes" in three
    answer(root, folder, "phases.0.epochs=4", "model.embedding_size=16")
    assert measured == [8, 16]


def test_a_slower_machine_than_planned_looks_once_and_resumes_so(finished, tmp_path, monkeypatch):
    monkeypatch.setattr("softwarp.training.own_recipe.STEPS", 4)
    monkeypatch.setattr("softwarp.training.own_plan.measure_pace", lambda *_: Pace(1e-6, 1e-6, 1e-6))
    said = answer(finished[0], tmp_path, "--budget", "0.01s")
    assert said.exit_code == 0, said.output
    for fold in (0, 1):
        assert len(Run(tmp_path / "choice" / f"fold-{fold}").history()) == 1
    choice = choice_in(tmp_path)
    assert choice["classes"] == 9
    assert {each["epochs"] for each in choice["candidates"]} == {0, 1}
    assert [each["name"] for each in choice["rungs"]] == ["frozen", "calibrated", "fine-tuned"]
    assert Run(tmp_path).result().epochs <= 1
    monkeypatch.setattr("softwarp.training.train.work_through", None)
    assert answer(finished[0], tmp_path, "--budget", "0.01s").stdout == said.stdout


def test_seeds_share_one_choice(finished, tmp_path):
    root, _, _ = finished
    said = answer(root, tmp_path, "phases.0.epochs=1", "--seeds", "2")
    assert said.exit_code == 0, said.output
    assert len(list(tmp_path.glob("**/choice.json"))) == 1
    recipes = [Run(tmp_path / f"seed-{seed}").recipe() for seed in (0, 1)]
    assert recipes[0].phases == recipes[1].phases
    assert [recipe.seed for recipe in recipes] == [0, 1]


def test_a_budget_without_data_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(app, ["train", "--budget", "5m"])
    assert said.exit_code != 0
    assert "--budget needs --data" in str(said.exception)


def slowly(seconds):
    return lambda *_: Pace(seconds, seconds / 3, 0.0)


def test_a_longer_budget_goes_on_where_a_shorter_one_ended(finished, tmp_path, monkeypatch):
    monkeypatch.setattr("softwarp.training.own_recipe.STEPS", 4)
    monkeypatch.setattr("softwarp.training.own_plan.measure_pace", slowly(1.0))
    short = answer(finished[0], tmp_path, "--budget", "2 s")
    assert "give a longer budget" in short.stdout
    assert Run(tmp_path).result().epochs == 0
    monkeypatch.setattr("softwarp.training.tuned.why_stop", lambda *_: "time")
    some = answer(finished[0], tmp_path, "--budget", "20min")
    assert some.exit_code == 0, some.output
    assert "for as long as it pays" in some.stderr
    monkeypatch.setattr(
        "softwarp.training.tuned.why_stop", lambda tuning, seen, epochs, *_: "flat" if epochs == 2 else ""
    )
    long = answer(finished[0], tmp_path, "--budget", "30min")
    assert long.exit_code == 0, long.output
    assert [len(Run(tmp_path / "choice" / f"fold-{fold}").history()) for fold in (0, 1)] == [2, 2]
    chosen = choice_in(tmp_path)["chosen"]["epochs"]
    assert Run(tmp_path).result().epochs == chosen


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["phases.0.epochs=4"], r"phases\.0\.epochs was 2 there and is 4 here"),
        (["phases.0.epochs=2", "data.crop=32"], r"data\.crop was 64 there and is 32 here"),
        (["phases.0.epochs=2", "seed=3"], "seed is 0 there and 3 here"),
        (["phases.0.epochs=2", "loss.settings.k1=0.5"], "k1"),
        (["phases.0.epochs=2", "--protocol", "validation"], "batches.classes is 9 there and 5 here"),
    ],
)
def test_another_recipe_in_the_folder_is_refused_before_anything_is_timed(
    finished, words, cause, monkeypatch
):
    root, folder, _ = finished
    monkeypatch.setattr("softwarp.training.own_plan.measure_pace", None)
    monkeypatch.setattr("softwarp.training.train.work_through", None)
    before = sorted(path for path in folder.glob("**/*") if path.is_file())
    said = answer(root, folder, *words)
    assert isinstance(said.exception, ValueError), said.output
    assert re.search(cause, str(said.exception)), said.exception
    assert "--fresh" in str(said.exception)
    assert sorted(path for path in folder.glob("**/*") if path.is_file()) == before


def test_other_images_are_refused_before_anything_is_timed(tmp_path, monkeypatch):
    root, folder = stripes(tmp_path / "images"), tmp_path / "run"
    assert answer(root, folder, "phases.0.epochs=1").exit_code == 0
    shutil.copy(root / "class 00" / "0.png", root / "class 00" / "more.png")
    monkeypatch.setattr("softwarp.training.own_plan.measure_pace", None)
    for seeds in "12":
        said = answer(root, folder, "phases.0.epochs=1", "--seeds", seeds)
        assert "other images" in str(said.exception)


def test_a_later_seed_s_folder_is_checked_before_the_first_seed_trains(finished, tmp_path, monkeypatch):
    shutil.copytree(finished[1], tmp_path / "run" / "seed-1")
    monkeypatch.setattr("softwarp.training.train.work_through", None)
    recipe = finished[1] / "recipe.yaml"
    words = ["train", str(recipe), "--seeds", "2", "--output", str(tmp_path / "run")]
    said = CliRunner().invoke(app, words)
    assert "seed is 0 there and 1 here" in str(said.exception)
    assert not (tmp_path / "run" / "seed-0").exists()


def test_an_output_that_is_a_file_is_refused_at_once(finished, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("softwarp.training.own_plan.measure_pace", None)
    for place in ("file", "file/run"):
        said = answer(finished[0], tmp_path / place)
        assert f"{tmp_path / 'file'} is a file" in str(said.exception)


def test_the_recipe_is_printed_only_on_request(finished):
    root, folder, said = finished
    assert "recipe.yaml" not in said.stdout
    assert f"# {folder}/recipe.yaml" in answer(root, folder, "phases.0.epochs=2", "--verbose").stdout


def test_a_model_that_was_not_trained_is_called_so(tmp_path):
    root = stripes(tmp_path / "images", classes=4)
    said = answer(root, tmp_path / "run")
    assert "untrained features: 2 unseen test classes" in " ".join(said.stdout.split())
    assert "warped_softmax" not in said.stdout
    compared = CliRunner().invoke(app, ["compare", str(tmp_path / "run")]).stdout
    assert "untrained features" in compared
    assert "warped_softmax" not in compared


def test_the_batches_are_said_and_the_last_line_makes_an_index(finished):
    root, folder, said = finished
    assert "batches: 9 classes x 4 images, 4 classes x 4 images on the halves" in said.stderr
    index = shlex.join(["softwarp", "index", str(folder), str(root), "-o", "images.index"])
    assert said.stdout.strip().splitlines()[-1] == f"next: {index}"


def test_every_process_takes_part_in_replacing_a_run(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr("softwarp.processes.from_main", calls.append)  # as in a process that is not the main
    replace_other(tmp_path / "removed by the main process already", None, None)
    assert len(calls) == 1  # otherwise the main process would wait for this one for ever
