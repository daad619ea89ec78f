"""benchmark, tune and reality-check on any folder that train accepts: few classes, few images."""

import json
import shlex
import shutil

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from softwarp.cli import app
from softwarp.commands.benchmark import _next
from softwarp.fair.benchmark import Benchmark
from softwarp.inference import load
from softwarp.recipe.files import read_recipe
from softwarp.runs.run import Run

SMALL = [
    "model.backbone=test_efficientnet.r160_in1k",
    "model.pretrained=false",
    "model.embedding_size=8",
    "data.workers=0",
    "data.crop=32",
    "data.resize=36",
    "evaluation.clustering=false",
    "evaluation.avg_dtp_images=0",
    "phases.0.epochs=1",
]


def draw(folder, classes, images, side=40):
    generator = np.random.default_rng(0)
    for label in range(classes):
        (folder / f"class {label:02d}").mkdir(parents=True)
        colour = generator.integers(60, 200, 3)
        for number in range(images):
            pixels = np.clip(generator.normal(colour, 20, (side, side, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"class {label:02d}" / f"{number}.png")
    return folder


def run(*words):
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [*map(str, words)])


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    """A folder of 8 classes x 6 images, its benchmark, and what was said."""
    place = tmp_path_factory.mktemp("eight")
    root = draw(place / "birds", 8, 6)
    words = ("--losses", "warped_softmax,triplet", "--trials", 1, "--seeds", 2, *SMALL)
    return root, place / "study", run("benchmark", "--data", root, *words, "--output", place / "study")


def test_a_benchmark_of_eight_classes_runs_and_says_its_batches(eight):
    _, folder, said = eight
    assert said.exit_code == 0, said.output
    assert "search 3 classes x 4 images, from 3 classes (18 images)" in said.stderr
    assert "final runs 6 classes x 4 images, from 6 classes (36 images)" in said.stderr
    assert Run(folder / "triplet" / "search" / "trial-0000").recipe().batches.classes == 3
    assert {
        Run(folder / loss / "seed-1").recipe().batches.classes for loss in ("triplet", "warped_softmax")
    } == {6}


def test_the_features_that_nobody_trained_are_a_row_of_every_form(eight):
    _, folder, said = eight
    outcome = Benchmark.model_validate_json((folder / "benchmark.json").read_text())
    frozen = outcome.frozen
    assert frozen is not None
    runs = [Run(folder / "frozen" / f"seed-{seed}") for seed in (0, 1)]  # an untrained network has a seed
    assert [run.result().epochs for run in runs] == [0, 0]
    assert frozen.seeds["map@r"] == tuple(run.result().metrics["map@r"] for run in runs)
    assert {pair.first for pair in frozen.against} == {"warped_softmax", "triplet"}
    for pair in frozen.against:
        (entry,) = [entry for entry in outcome.entries if entry.loss == pair.first]
        assert pair.difference == pytest.approx(entry.mean["map@r"] - frozen.mean["map@r"])
    assert "frozen" not in {entry.loss for entry in outcome.entries}
    for text in (said.stdout, *((folder / f"benchmark.{kind}").read_text() for kind in ("md", "tex"))):
        assert "untrained features" in text
        assert "against untrained" in text
    assert "untrained features" in (folder / "report.html").read_text()
    last = (folder / "benchmark.md").read_text().strip().splitlines()[-1]
    assert last.startswith("| untrained features")
    assert "**" not in last.split("|")[2]  # it is not ranked


def test_the_last_line_trains_the_best_loss(eight):
    root, folder, said = eight
    outcome = Benchmark.model_validate_json((folder / "benchmark.json").read_text())
    best = read_recipe(folder / "best.yaml")
    assert best.loss.name == outcome.entries[0].loss
    assert best.data.root == str(root)
    assert said.stdout.strip().splitlines()[-1].startswith("next: softwarp ")


def test_where_no_loss_beats_the_features_the_last_line_searches_with_those_that_were_judged(eight):
    root, folder, _ = eight
    outcome = Benchmark.model_validate_json((folder / "benchmark.json").read_text())
    against = [pair.model_copy(update={"difference": -0.1}) for pair in outcome.frozen.against]
    frozen = outcome.frozen.model_copy(update={"against": tuple(against)})
    outcome = outcome.model_copy(update={"frozen": frozen})
    recipes = {entry.loss: Run(folder / entry.loss / "seed-0").recipe() for entry in outcome.entries}
    words = shlex.split(_next(outcome, recipes, folder, root))
    assert words[:2] + words[3:4] == ["softwarp", "index", str(root)]
    assert load(words[2]).crop == 32  # as in the table, and its random weights, not pretrained ones
    packed = {
        name: each.model_copy(update={"data": each.data.model_copy(update={"name": "shards"})})
        for name, each in recipes.items()
    }
    assert "softwarp train" in _next(outcome, packed, folder, root)  # an index takes no shards


def test_the_same_command_resumes_and_other_images_are_refused_before_any_step(eight, tmp_path, monkeypatch):
    root, folder, _ = eight
    copy, other = shutil.copytree(folder, tmp_path / "study"), shutil.copytree(root, tmp_path / "birds")
    shutil.copy(other / "class 00" / "0.png", other / "class 00" / "more.png")
    monkeypatch.setattr("softwarp.training.train.work_through", None)
    monkeypatch.setattr("softwarp.tuning.plan.fit_study", None)
    words = ("--losses", "warped_softmax,triplet", "--trials", 1, "--seeds", 3, *SMALL, "--output", copy)
    assert "other images" in str(run("benchmark", "--data", other, *words).exception)


def test_one_seed_marks_nothing(eight, tmp_path):
    root, folder, _ = eight
    copy = shutil.copytree(folder, tmp_path / "study")
    words = ("--losses", "warped_softmax,triplet", "--trials", 1, "--seeds", 1, *SMALL, "--output", copy)
    said = run("benchmark", "--data", root, *words)
    assert said.exit_code == 0, said.output
    assert "One seed cannot tell luck from merit" in said.stdout
    assert "*" not in said.stdout


@pytest.mark.parametrize(("classes", "images"), [(8, 2), (10, 3), (6, 4)])
def test_a_search_runs_on_few_classes_and_few_images(classes, images, tmp_path):
    root = draw(tmp_path / "birds", classes, images)
    said = run("tune", "--data", root, *SMALL, "--trials", 1, "--output", tmp_path / "search")
    assert said.exit_code == 0, said.output
    assert "batches: search " in said.stderr
    assert said.stdout.strip().splitlines()[-1] == f"next: softwarp train {tmp_path / 'search' / 'best.yaml'}"


def test_too_few_classes_to_search_on_are_refused_at_once(tmp_path, monkeypatch):
    root = draw(tmp_path / "birds", 5, 2)
    monkeypatch.setattr("softwarp.tuning.plan.time_steps", None)
    for words in (("tune",), ("benchmark", "--losses", "triplet,arcface")):
        text = str(run(*words, "--data", root, *SMALL, "--output", tmp_path / "study").exception)
        assert "divides the training classes once more" in text
    assert not (tmp_path / "study").exists()


def test_a_loss_that_needs_more_classes_is_left_out_of_all_and_refused_by_name(tmp_path):
    root = tmp_path / "birds"
    draw(root / "all", 7, 2)
    for number, split in enumerate(
        ["train", "validation", "validation", "validation", "test", "test", "test"]
    ):
        shutil.copytree(
            root / "all" / f"class {number:02d}", root / "divided" / split / f"class {number:02d}"
        )
    words = ("--data", root / "divided", *SMALL, "--dry-run")
    said = run("benchmark", "--losses", "triplet,arcface", *words)
    assert "triplet needs 2 classes in a batch, but only 1 trains" in str(said.exception)
    said = run("benchmark", "--losses", "all", *words)
    assert said.exit_code == 0, said.output
    assert "left out: triplet needs 2 classes" in said.stderr
    said = run("tune", "loss.name=triplet", *words)
    assert "triplet needs 2 classes in a batch, but only 1 trains" in str(said.exception)


def test_a_reality_check_fits_its_batches_to_the_folds(tmp_path):
    root = draw(tmp_path / "birds", 16, 3)
    recipe = json.loads(json.dumps(REALITY))
    recipe["data"]["root"] = str(root)
    (tmp_path / "own.yaml").write_text(json.dumps(recipe))
    words = (
        "--recipe",
        tmp_path / "own.yaml",
        "--trials",
        1,
        "--reproductions",
        2,
        "--output",
        tmp_path / "study",
    )
    said = run("reality-check", "warped_softmax", *words)
    assert said.exit_code == 0, said.output
    assert "folds 4 classes x 2 images, from 4 classes" in said.stderr
    assert "complete models 8 classes x 2 images, from 8 classes" in said.stderr


PHASE = {"epochs": 1, "learning_rate": 0.001, "proxy_learning_rate": 0.01}
REALITY = {
    "data": {"name": "folder", "root": "", "crop": 32, "resize": 36, "workers": 0},
    "model": {"backbone": "test_efficientnet.r160_in1k", "embedding_size": 4},
    "loss": {"name": "warped_softmax"},
    "batches": {"classes": 32, "samples": 2},
    "phases": [PHASE, PHASE],
    "evaluation": {
        "test_classes": "second_half",
        "folds": 2,
        "every": 1,
        "metric": "map@r",
        "patience": 1,
        "clustering": False,
        "avg_dtp_images": 0,
    },
}
