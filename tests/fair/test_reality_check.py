"""The reality check: its protocol, its three categories, its intervals, and nothing lost to a kill."""

import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy import stats
from support.references_metrics import retrieval
from support.tiny_data import draw_cub
from support.tiny_studies import LOSSES, PLATEAU, REPRODUCTIONS, SIZE, run_reality_check
from typer.testing import CliRunner

from softwarp.cli import app
from softwarp.data.sources import load_source
from softwarp.data.splits import SplitPlan
from softwarp.fair import reality_check
from softwarp.fair.benchmark_result import search_lines, search_table
from softwarp.fair.each_loss import open_for_losses, recipe_for_each
from softwarp.fair.reality_check import (
    check_protocol,
    complete_epochs,
    epochs_to_best,
    space_with_follow_up,
)
from softwarp.fair.reality_table import CATEGORIES, METRICS, RealityCheck, category_table
from softwarp.recipe.files import find_recipe, read_recipe, recipe_names
from softwarp.recipe.schema import parse_recipe
from softwarp.report.benchmark import published_table
from softwarp.runs.run import Run
from softwarp.training.train import BlowUpError

KILL = Path(__file__).parents[1] / "support" / "kill_studies.py"
LOSS = LOSSES[0]
FOLDS = PLATEAU.evaluation.folds
RECIPES = ("cub", "cars", "sop", "glyphs")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study") / "reality"
    return folder, run_reality_check(folder)


def rows(*phases, metric="map@r"):
    """A history: the values that each phase's validations gave; None for an epoch without one."""
    return [
        {"phase": number, "validation": {metric: value}} if value is not None else {"phase": number}
        for number, phase in enumerate(phases)
        for value in phase
    ]


@pytest.mark.parametrize(
    ("history", "epochs"),
    [
        (rows([0.1, 0.3, 0.2, 0.2], [0.2, 0.4, 0.3]), [4, 2]),  # the first phase trained to its end
        (rows([0.1, 0.5, 0.2, 0.2], [0.4, 0.4, 0.3]), [2, 0]),  # the second did not help
        (rows([0.1, 0.3, 0.2], [0.4, 0.2, 0.4]), [3, 1]),  # of equals the first, as training keeps it
        (rows([None, 0.3, None, 0.2], [None, 0.4, None, 0.1]), [4, 2]),  # validated every second epoch
        (rows([0.1, 0.2], []), [2, 0]),
    ],
)
def test_a_fold_model_took_the_epochs_up_to_its_best(history, epochs):
    assert epochs_to_best(history, "map@r", 2) == epochs


@pytest.mark.parametrize(
    ("runs", "epochs"),
    [
        ([[12, 5], [11, 6], [14, 4], [13, 5]], [15, 5]),
        ([[12, 6], [11, 6], [14, 4], [13, 5]], [15, 10]),  # 5.25 is rounded up
        ([[10, 1], [10, 0], [10, 0], [10, 0]], [10, 5]),  # 10 stays, 0.25 is rounded up
        ([[3, 0], [4, 0]], [5, 0]),
        ([[16, 20], [16, 20], [15, 20]], [20, 20]),
    ],
)
def test_the_complete_model_takes_the_mean_rounded_up_to_the_next_five(runs, epochs):
    assert complete_epochs(runs) == epochs


def test_classes_are_divided_as_the_protocol_says(study):
    folder, outcome = study
    held_out, trained = [], []
    for fold in range(FOLDS):
        run = Run(folder / LOSS / "0" / f"fold-{fold}")
        held_out.append({item.class_name for item in run.items()})
        trained.append(set(load_source(PLATEAU.data, run.recipe().evaluation.plan()).names))
        tested = Run(run.folder / "test")
        assert {item.split for item in tested.items()} == {"test"}
        assert tested.result().classes.train == len(trained[-1])
    test = {item.class_name for item in Run(folder / LOSS / "0" / "complete").items()}
    groups = [*held_out, test]
    assert len(set().union(*groups)) == sum(map(len, groups))  # pairwise disjoint
    for fold in range(FOLDS):
        assert trained[fold] == set().union(*held_out) - held_out[fold]
    assert outcome.classes.train == sum(map(len, held_out)) == 8
    assert outcome.classes.evaluated == len(test) == 8
    assert max(set().union(*held_out)) < min(test)  # characters in order: test is the second half


def test_the_search_is_by_the_mean_over_folds(study):
    folder, outcome = study
    (trial,) = (folder / LOSS / "search").glob("trial-*")
    values = [Run(trial / f"fold-{fold}").result().metrics["map@r"] for fold in range(FOLDS)]
    assert outcome.entries[0].validation == pytest.approx(statistics.mean(values))
    assert {Run(trial / f"fold-{fold}").result().split for fold in range(FOLDS)} == {"validation"}


def test_intervals_are_those_of_scipy(study):
    (entry,) = study[1].entries
    assert set(entry.values) == set(CATEGORIES)
    for kind in CATEGORIES:
        assert set(entry.values[kind]) == set(METRICS)
        for metric, values in entry.values[kind].items():
            assert len(values) == REPRODUCTIONS
            mean, error = np.mean(values), stats.sem(values)
            # Of equal values, scipy makes NaN and a warning.
            expected = stats.t.interval(0.95, len(values) - 1, mean, error) if error else (mean, mean)
            assert entry.interval[kind][metric] == pytest.approx(expected)
            assert entry.mean[kind][metric] == pytest.approx(mean)


def test_aggregate_is_the_mean_of_the_fold_models(study):
    folder, outcome = study
    for number in range(REPRODUCTIONS):
        models = [
            Run(folder / LOSS / str(number) / f"fold-{fold}" / "test").result() for fold in range(FOLDS)
        ]
        assert {model.seed for model in models} == {number}
        for metric in METRICS:
            mean = np.mean([model.metrics[metric] for model in models])
            assert outcome.entries[0].values["aggregate"][metric][number] == pytest.approx(mean)


def test_ensemble_is_what_the_saved_embeddings_give_side_by_side(study):
    folder, outcome = study
    for number in range(REPRODUCTIONS):
        parts = [
            Run(folder / LOSS / str(number) / f"fold-{fold}" / "test").load_embeddings()
            for fold in range(FOLDS)
        ]
        points = [part["embeddings"].numpy().astype(np.float64) for part in parts]
        whole = np.hstack([each / np.linalg.norm(each, axis=1, keepdims=True) for each in points])
        assert whole.shape[1] == FOLDS * PLATEAU.model.embedding_size == outcome.sizes["ensemble"]
        labels = parts[0]["labels"].tolist()
        found = retrieval(whole, labels, whole, labels, range(len(labels)), (1,), "euclidean")
        for metric, name in (("map@r", "map@r"), ("r_precision", "r_precision"), ("precision@1", "recall@1")):
            expected = np.mean([row[name] for row in found])
            assert outcome.entries[0].values["ensemble"][metric][number] == pytest.approx(expected, abs=1e-6)


def test_the_complete_model_is_wide_and_trained_on_all_for_as_long_as_the_folds(study):
    folder, outcome = study
    histories = [
        Run(folder / LOSS / str(number) / f"fold-{fold}").history()
        for number in range(REPRODUCTIONS)
        for fold in range(FOLDS)
    ]
    epochs = complete_epochs([epochs_to_best(history, "map@r", 2) for history in histories])
    for number in range(REPRODUCTIONS):
        run = Run(folder / LOSS / str(number) / "complete")
        assert [phase.epochs for phase in run.recipe().phases] == epochs == list(outcome.entries[0].epochs)
        assert run.recipe().model.embedding_size == SIZE
        assert run.recipe().seed == number
        assert run.recipe().evaluation.patience is None
        assert not any("validation" in row for row in run.history())
        assert run.result().metrics["map@r"] == outcome.entries[0].values["complete"]["map@r"][number]


def test_a_blow_up_is_named_and_leaves_no_figures(study, monkeypatch, tmp_path):
    folder = shutil.copytree(study[0], tmp_path / "copy")
    for path in (folder / LOSS / "1").glob("*/outcome.json"):
        if path.parent.name != "fold-0":
            path.unlink()
    monkeypatch.setattr(
        reality_check, "train_recipe", lambda *_, **__: (_ for _ in ()).throw(BlowUpError("is nan"))
    )
    with pytest.raises(ValueError, match="is nan"):
        run_reality_check(folder)
    assert json.loads((folder / LOSS / "1" / "ensemble" / "outcome.json").read_text()) == {
        "blew_up": "is nan"
    }
    assert json.loads((folder / LOSS / "0" / "complete" / "outcome.json").read_text())["metrics"]


def test_the_second_phase_searches_what_it_can_set():
    recipe = recipe_for_each(PLATEAU, ["warped_softmax"])["warped_softmax"]
    keys = set(space_with_follow_up(recipe))
    assert {"phases.0.learning_rate", "loss.settings.alpha", "phases.1.loss_settings.alpha"} <= keys
    assert "phases.1.learning_rate" not in keys
    recipe = recipe_for_each(PLATEAU, ["hist"])["hist"]
    assert not any(key.startswith("phases.1") for key in space_with_follow_up(recipe))


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"evaluation": {"patience": None}}, "patience"),
        ({"evaluation": {"metric": "recall@1"}}, "map@r"),
        ({"evaluation": {"test_classes": "given"}}, "second_half"),
        ({"evaluation": {"fold": 1}}, r"evaluation\.fold"),
        ({"phases": PLATEAU.model_dump()["phases"][:1]}, "two phases"),
    ],
)
def test_a_recipe_that_is_not_of_the_protocol_is_refused(changes, cause):
    settings = PLATEAU.model_dump(mode="json")
    for part, change in changes.items():
        settings[part] = settings[part] | change if isinstance(change, dict) else change
    with pytest.raises(ValueError, match=cause):
        check_protocol(parse_recipe(settings))


def test_another_study_in_the_folder_is_refused(tmp_path):
    recipes = recipe_for_each(PLATEAU, LOSSES)
    numbers = {"trials": 1, "reproductions": 2, "size": SIZE}
    open_for_losses(tmp_path, recipes, **numbers)
    open_for_losses(tmp_path, recipe_for_each(PLATEAU, ["cosface"]), **numbers)
    with pytest.raises(ValueError, match="reproductions is 2 there and 3 here"):
        open_for_losses(tmp_path, recipes, **numbers | {"reproductions": 3})


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_follow_the_protocol(name):
    assert find_recipe(f"reality_check/{name}.yaml").parent.name == "reality_check"
    assert f"reality_check/{name}" in recipe_names()
    recipe = read_recipe(find_recipe(f"reality_check/{name}.yaml"))
    check_protocol(recipe)
    assert recipe.evaluation.folds == 4
    assert recipe.optimizer.name == "rmsprop"
    assert all(
        phase.proxy_travel for phase in recipe.phases
    )  # rates of class vectors in lengths of the space
    assert (recipe.model.embedding_size, recipe.model.pooling, recipe.model.norm) == (
        128,
        "max+avg",
        "before",
    )
    backbones = {
        "cub": "resnet50.tv_in1k",
        "cars": "resnet50.tv_in1k",
        "sop": "bn_inception",
        "glyphs": "small_conv",
    }
    assert recipe.model.backbone == backbones[name]


@pytest.mark.parametrize("name", ["cub", "cars", "sop"])
def test_where_the_paper_is_silent_recipes_follow_musgrave(name):
    """Typed from config_general, config_transforms and config_optimizers of powerful-benchmarker."""
    recipe = read_recipe(find_recipe(f"reality_check/{name}.yaml"))
    assert recipe.model.freeze_batch_norm  # freeze_trunk_batchnorm: True
    data = recipe.data
    assert (data.train_transform, data.resize, data.crop) == ("random_resized_crop", 256, 227)
    assert data.scale == (0.16, 1.0)
    assert recipe.batches.classes * recipe.batches.samples == 32
    assert (recipe.optimizer.momentum, recipe.optimizer.weight_decay) == (0.9, 1e-4)
    assert recipe.batches.per_epoch == 100  # iterations_per_epoch
    # save_interval, and patience: training ends when the epoch is more than that beyond the best one.
    every, patience = {"cub": (2, 9), "cars": (5, 14), "sop": (20, 39)}[name]
    assert recipe.evaluation.every == every
    assert (recipe.evaluation.patience - 1) * every <= patience < recipe.evaluation.patience * every
    assert "32 x 1" in recipe.paper["differs"]
    # config_eval: normalize_embeddings: True, for the tester and the ensemble.
    assert "theirs of every loss are normalised" in recipe.paper["differs"]
    assert ("never judge" in recipe.paper["differs"]) == (name != "cub")  # whose 100 classes divide by four


def test_a_recipe_in_a_folder_does_not_hide_one_of_the_same_name():
    assert find_recipe("cub.yaml").parent.name == "recipes"
    assert find_recipe("elsewhere/cub.yaml").parent.name == "recipes"
    with pytest.raises(ValueError, match="reality_check/cub"):
        find_recipe("reality_check/cubb.yaml")


def test_the_second_half_is_the_test_split_of_cub(tmp_path):
    data = read_recipe(find_recipe("reality_check/cub.yaml")).data
    data = data.model_copy(update={"root": str(draw_cub(tmp_path))})
    given, second = (
        load_source(data, SplitPlan("test", test_classes=kind)) for kind in ("given", "second_half")
    )
    assert given.evaluated_names == second.evaluated_names
    assert given.names == second.names


# The cells that are bold in the paper's Table 6, and those underlined.
BOLD = {
    ("complete", "map@r"): "CosFace",
    **{
        (kind, m): "Warped softmax"
        for kind in CATEGORIES
        for m in METRICS
        if (kind, m) != ("complete", "map@r")
    },
}
UNDERLINED = {
    ("complete", "map@r"): "Warped softmax",
    ("complete", "r_precision"): "CosFace",
    ("complete", "precision@1"): "CosFace",
    ("ensemble", "map@r"): "CosFace",
    ("ensemble", "r_precision"): "CosFace",
    ("ensemble", "precision@1"): "ProxyNCA++",
    ("aggregate", "map@r"): "ArcFace",
    ("aggregate", "r_precision"): "HIST",
    ("aggregate", "precision@1"): "CosFace",
}


def test_the_published_table_is_marked_as_in_the_paper():
    shown = published_table(read_recipe(find_recipe("reality_check/cub.yaml")).paper)
    assert len(shown.rows) == 7
    columns = [(kind, metric) for kind in CATEGORIES for metric in METRICS]
    for place, column in enumerate(columns, start=1):
        assert [row[0].text for row in shown.rows if row[place].best] == [BOLD[column]]
        assert [row[0].text for row in shown.rows if row[place].second] == [UNDERLINED[column]]
    assert shown.groups[0] == ("Complete (512-dim)", 3)
    assert r"\underline{26.76 $\pm$ 0.25}" in shown.latex()
    sizes = [
        len(published_table(read_recipe(find_recipe(f"reality_check/{n}")).paper).rows)
        for n in ("cars", "sop")
    ]
    assert sizes == [7, 6]


def test_a_loss_without_figures_has_an_empty_row():
    figures = {kind: dict.fromkeys(METRICS, (50.0, 1.0)) for kind in CATEGORIES}
    shown = category_table({"a": figures, "b (blew up)": {}}, dict.fromkeys(CATEGORIES, 8))
    assert {cell.text for cell in shown.rows[1][1:]} == {""}
    assert not any(cell.second for cell in shown.rows[0])


def command(*words):
    return CliRunner(env={"COLUMNS": "220"}).invoke(app, ["reality-check", *map(str, words)])


def test_a_search_that_may_have_ended_too_early_is_named(study):
    (entry, *_), check = study[1].entries, study[1]
    assert entry.course == (entry.validation,)
    assert search_lines(check) == []
    late = entry.model_copy(update={"course": (0.1, 0.2, 0.2, 0.2, 0.3), "on_bounds": {"loss.k": "upper"}})
    early = entry.model_copy(update={"course": (0.1, 0.3, 0.3, 0.3, 0.3)})
    outcome = check.model_copy(update={"entries": (late, early), "trials": 5})
    bound, rising = search_lines(outcome)
    assert "loss.k is on the upper bound" in bound
    assert "trial 5 of 5" in rising
    shown = search_table(outcome)
    assert shown.heads == ("loss", "after 1 trial", "after 3 trials", "after 5 trials", "best trial")
    assert [[cell.text for cell in row[1:]] for row in shown.rows] == [
        ["10.0", "20.0", "30.0", "5"],
        ["10.0", "30.0", "30.0", "2"],
    ]


def test_the_command_prints_a_table_and_writes_every_form(study, tmp_path, monkeypatch):
    monkeypatch.setattr("softwarp.fair.reality_study.COMPLETE_SIZE", SIZE)
    folder = shutil.copytree(study[0], tmp_path / "copy")
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(PLATEAU.model_dump(mode="json")))
    shown = command(
        LOSS, "--recipe", tmp_path / "own.yaml", "--trials", 1, "--reproductions", 2, "--output", folder
    )
    assert shown.exit_code == 0, shown.output
    assert "1 loss x (2 folds x (1 trial + 2 reproductions) + 2 complete models)" in shown.output
    mean = 100 * study[1].entries[0].mean["ensemble"]["map@r"]
    files = ("reality_check.md", "reality_check.tex", "report.html")
    for text in (shown.output, *((folder / name).read_text() for name in files)):
        assert f"{mean:.2f} " in text
    written = RealityCheck.model_validate_json((folder / "reality_check.json").read_text())
    assert written.entries == study[1].entries
    narrow = CliRunner(env={"COLUMNS": "80"}).invoke(
        app,
        [
            *("reality-check", LOSS, "--recipe", str(tmp_path / "own.yaml"), "--trials", "1"),
            *("--reproductions", "2", "--output", str(folder)),
        ],
    )
    assert max(len(line) for line in narrow.output.splitlines() if line.startswith(("┃", "│"))) <= 80
    assert f"{mean:.2f} " in narrow.output


def test_a_dry_run_plans_and_writes_nothing(tmp_path):
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(PLATEAU.model_dump(mode="json")))
    shown = command(*LOSSES, "--recipe", tmp_path / "own.yaml", "--dry-run", "--output", tmp_path / "x")
    assert "2 losses x (2 folds x (50 trials + 10 reproductions) + 10 complete models)" in shown.output
    assert "260 trainings" in shown.output
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_killed_at_ten_moments_it_ends_with_the_same_figures(tmp_path):
    words = [sys.executable, KILL, "reality_check", tmp_path, "10", "2"]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
