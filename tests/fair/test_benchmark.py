"""The benchmark: the same effort for every loss, exact figures, and nothing lost to a kill."""

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
from support.tiny_runs import tiny
from support.tiny_studies import LOSSES, RECIPE, SEEDS, TRIALS, run_benchmark
from typer.testing import CliRunner

from softwarp.cli import app
from softwarp.fair import benchmark, each_loss
from softwarp.fair.benchmark import (
    benchmark_tasks,
    values_by_class,
)
from softwarp.fair.each_loss import judged_once, open_for_losses, recipe_for_each
from softwarp.fair.tasks import work
from softwarp.recipe.overrides import write_out
from softwarp.runs.run import Run
from softwarp.training.train import BlowUpError
from softwarp.tuning import search as tune

KILL = Path(__file__).parents[1] / "support" / "kill_studies.py"


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The folder of a benchmark, and what became of another that was killed once and resumed."""
    folder = tmp_path_factory.mktemp("study")
    return folder / "whole", kill(folder, times=1, trials=TRIALS)


@pytest.fixture(scope="module")
def study(killed):
    return killed[0], run_benchmark(killed[0])  # which only reads it


def kill(folder, *, times, trials):
    words = [sys.executable, KILL, "benchmark", folder, str(times), str(trials)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_losses_share_everything_but_the_loss_and_its_rate():
    recipes = recipe_for_each(
        tiny(batches={"classes": 10, "samples": 2}), ["arcface", "warped_softmax", "hist"]
    )
    assert [recipe.loss.name for recipe in recipes.values()] == ["arcface", "warped_softmax", "hist"]
    for key in ("data", "model", "batches", "optimizer", "evaluation", "seed"):
        assert len({str(getattr(recipe, key)) for recipe in recipes.values()}) == 1
    shared = [[(phase.epochs, phase.learning_rate) for phase in recipe.phases] for recipe in recipes.values()]
    assert shared[0] == shared[1] == shared[2]
    assert not recipes["warped_softmax"].loss.settings  # its defaults, as all others have


@pytest.mark.parametrize(
    ("losses", "given", "expected"),
    [
        (["arcface", "group_loss"], {"classes": 5, "samples": 2}, (None, 5, 3)),
        (["arcface", "triplet"], {"size": 40}, (None, 10, 4)),
        (["arcface", "cosface"], {"size": 40}, (40, None, None)),
        (["arcface", "triplet"], {"size": 6, "accumulate": 3}, (None, 6, 4)),
    ],
)
def test_batches_serve_the_most_demanding_loss_and_are_the_same_for_all(losses, given, expected):
    for recipe in recipe_for_each(tiny(batches=given), losses).values():
        assert (recipe.batches.size, recipe.batches.classes, recipe.batches.samples) == expected


def test_batches_are_drawn_as_the_recipe_says():
    given = {"classes": 10, "samples": 2, "draw": "independent"}
    recipes = recipe_for_each(tiny(batches=given), ["triplet", "proxy_anchor"]).values()
    assert {recipe.batches.draw for recipe in recipes} == {"independent"}


def test_where_proxies_start_at_class_means_all_proxies_do():
    recipe = tiny(loss={"name": "warped_softmax", "proxy_init": "means"})
    starts = {
        name: each.loss.proxy_init
        for name, each in recipe_for_each(recipe, ["proxy_anchor", "warped_softmax", "triplet"]).items()
    }
    assert starts == {"proxy_anchor": "means", "warped_softmax": "means", "triplet": None}


def test_every_loss_is_searched_equally_on_validation_and_tested_once(study):
    folder, outcome = study
    assert {entry.loss for entry in outcome.entries} == set(LOSSES)
    for loss in LOSSES:
        trials = sorted((folder / loss / "search").glob("trial-*"))
        assert len(trials) == TRIALS
        assert {Run(trial).result().split for trial in trials} == {"validation"}
        runs = [Run(folder / loss / f"seed-{seed}") for seed in range(SEEDS)]
        assert [run.result().seed for run in runs] == [0, 1]
        assert {run.result().split for run in runs} == {"test"}
        assert not any("validation" in row for run in runs for row in run.history())
        assert not list(folder.glob(f"{loss}/seed-*/checkpoint*"))
        best = benchmark.read_outcome(folder / loss / "search")["settings"]
        found = tune.with_settings(runs[0].recipe(), best)
        assert write_out(found) == write_out(runs[0].recipe())


def test_figures_are_those_of_the_runs(study):
    folder, outcome = study
    means = [entry.mean["map@r"] for entry in outcome.entries]
    assert means == sorted(means, reverse=True)
    for entry in outcome.entries:
        values = [
            Run(folder / entry.loss / f"seed-{seed}").result().metrics["map@r"] for seed in range(SEEDS)
        ]
        assert entry.seeds["map@r"] == tuple(values)
        assert entry.mean["map@r"] == statistics.mean(values)
        assert entry.deviation["map@r"] == statistics.stdev(values)
    (pair,) = outcome.pairs
    first, second = (entry.seeds["map@r"] for entry in outcome.entries)
    differences = np.subtract(first, second)
    expected = stats.t.interval(0.95, SEEDS - 1, differences.mean(), stats.sem(differences))
    assert pair.over_seeds == pytest.approx(expected)
    assert outcome.behind(outcome.entries[1].loss) == pair
    assert outcome.behind(outcome.entries[0].loss) is None


def test_values_of_classes_are_those_of_the_saved_embeddings(study):
    run = Run(study[0] / LOSSES[1] / "seed-0")
    arrays, items = run.load_embeddings(), run.items()
    points, labels = arrays["embeddings"].numpy(), arrays["labels"].tolist()
    own = range(len(labels))
    found = retrieval(points, labels, points, labels, own, (1,), run.result().distance)
    expected = {}
    for item, row in zip(items, found, strict=True):
        expected.setdefault(item.class_name, []).append(row["map@r"])
    values = values_by_class(run)
    assert {name: count for name, (_, count) in values.items()} == {k: len(v) for k, v in expected.items()}
    assert {name: mean for name, (mean, _) in values.items()} == pytest.approx(
        {name: statistics.mean(each) for name, each in expected.items()}
    )


def test_a_finished_benchmark_trains_nothing_and_more_seeds_train_only_these(study, monkeypatch, tmp_path):
    folder = shutil.copytree(study[0], tmp_path / "copy")
    recipes = recipe_for_each(judged_once(RECIPE), LOSSES)
    trained = []
    train = benchmark.train_recipe

    def spy(recipe, place, **settings):
        trained.append(place.relative_to(folder).as_posix())
        return train(recipe, place, **settings)

    monkeypatch.setattr(benchmark, "train_recipe", spy)
    monkeypatch.setattr(each_loss, "search", lambda *_, **__: pytest.fail("searched again"))
    work(benchmark_tasks(recipes, trials=TRIALS, seeds=SEEDS), folder)
    assert trained == []
    work(benchmark_tasks({"proxy_nca_pp": recipes["proxy_nca_pp"]}, trials=TRIALS, seeds=SEEDS + 1), folder)
    assert trained == ["proxy_nca_pp/seed-2"]


def test_another_benchmark_in_the_folder_is_refused(tmp_path):
    recipes = recipe_for_each(judged_once(RECIPE), LOSSES)
    open_for_losses(tmp_path, recipes, kind="benchmark", trials=2)
    open_for_losses(
        tmp_path, recipe_for_each(judged_once(RECIPE), ["cosface", *LOSSES]), kind="benchmark", trials=2
    )
    with pytest.raises(ValueError, match="trials is 2 there and 3 here"):
        open_for_losses(tmp_path, recipes, kind="benchmark", trials=3)
    changed = RECIPE.model_copy(update={"seed": 5})
    with pytest.raises(ValueError, match=r"recipe\.seed is 0 there and 5 here"):
        open_for_losses(tmp_path, recipe_for_each(judged_once(changed), LOSSES), kind="benchmark", trials=2)


def test_a_loss_that_blows_up_is_named_and_does_not_end_the_benchmark(study, monkeypatch, tmp_path):
    folder = shutil.copytree(study[0], tmp_path / "copy")
    (folder / "proxy_nca_pp" / "seed-1" / "outcome.json").unlink()
    monkeypatch.setattr(
        benchmark, "train_recipe", lambda *_, **__: (_ for _ in ()).throw(BlowUpError("loss is nan"))
    )
    outcome = run_benchmark(folder)
    assert [entry.loss for entry in outcome.entries] == ["euclidean_softmax", "proxy_nca_pp"]
    assert outcome.entries[1].blew_up == "loss is nan"
    assert not outcome.entries[1].mean
    assert not outcome.pairs


def test_a_search_in_which_all_blew_up_trains_no_seeds(monkeypatch, tmp_path):
    def fail(*_, **__):
        raise BlowUpError("all 2 trials blew up")

    monkeypatch.setattr(each_loss, "search", fail)
    monkeypatch.setattr(benchmark, "train_recipe", lambda *_, **__: pytest.fail("trained"))
    with pytest.raises(ValueError, match="all 2 trials blew up"):
        run_benchmark(tmp_path / "study")


def command(*words):
    return CliRunner(env={"COLUMNS": "160"}).invoke(app, ["benchmark", *map(str, words)])


def test_the_command_prints_a_table_and_writes_every_form(study, tmp_path):
    folder = shutil.copytree(study[0], tmp_path / "copy")
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(RECIPE.model_dump(mode="json")))
    losses = ",".join(LOSSES)
    shared = ("--data", tmp_path / "own.yaml", "--trials", TRIALS, "--seeds", SEEDS)
    shown = command("--losses", losses, *shared, "--output", folder)
    assert shown.exit_code == 0, shown.output
    assert "2 losses x (1 trial + 2 seeds): 6 trainings" in shown.output
    assert "behind the best" in shown.output
    best = study[1].entries[0]
    assert f"**{100 * best.mean['map@r']:.1f} ±" in (folder / "benchmark.md").read_text()
    assert rf"\textbf{{{100 * best.mean['map@r']:.1f} $\pm$" in (folder / "benchmark.tex").read_text()
    written = benchmark.Benchmark.model_validate_json((folder / "benchmark.json").read_text())
    assert written.pairs == study[1].pairs
    page = (folder / "report.html").read_text()
    assert "How far behind" in page
    assert page.count("data:image/webp") > 20
    assert "http" not in page
    assert (folder / "report-figures" / "differences.csv").is_file()
    compared = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["compare", *(str(folder / x) for x in LOSSES)])
    assert f"{100 * best.mean['map@r']:.1f} ± " in compared.output


def test_a_dry_run_plans_and_writes_nothing(tmp_path):
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(RECIPE.model_dump(mode="json")))
    shown = command(
        "--losses",
        "arcface,hist,triplet",
        "--data",
        tmp_path / "own.yaml",
        "--dry-run",
        "--output",
        tmp_path / "x",
    )
    assert "3 losses x (10 trials + 3 seeds): 39 trainings" in shown.output
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ((), "--losses arcface,hist"),
        (("--losses", "arcface"), "needs two losses"),
        (("--losses", "arcface,hits"), "hist"),
        (("--losses", "arcface,hist", "--data", "no_such_recipe"), "no_such_recipe"),
    ],
)
def test_mistakes_are_named(words, cause):
    with pytest.raises(ValueError, match=cause):
        CliRunner().invoke(app, ["benchmark", *words], catch_exceptions=False)


def test_killed_and_resumed_it_ends_with_the_same_figures(killed):
    assert killed[1].returncode == 0, killed[1].stderr


@pytest.mark.slow
def test_killed_at_ten_moments_it_ends_with_the_same_figures(tmp_path):
    found = kill(tmp_path, times=10, trials=2)
    assert found.returncode == 0, found.stderr
