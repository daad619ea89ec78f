"""The command line as a stranger meets it."""

import json
import os
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from softwarp.cli import app, main
from softwarp.recipe.files import find_recipe, read_recipe, recipe_names
from softwarp.training.train import StoppedError

runner = CliRunner()


def softwarp(*arguments):
    command = [sys.executable, "-c", "from softwarp.cli import main; main()", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "100"}
    )


def test_a_wrong_change_is_not_blamed_on_the_recipe():
    wrong = runner.invoke(app, ["show", "cub_lite", "phases.0.epochs=x"])
    assert "command line: phases.0.epochs=x" in str(wrong.exception)
    unknown = runner.invoke(app, ["show", "cub_lite", "phases.0.epoch=3"])
    assert "command line: phases.0.epoch: no such key" in str(unknown.exception)


def test_a_recipe_that_is_wrong_itself_is_named_whatever_is_changed(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("loss: {nane: arcface}\nphases: [{epochs: 1, learning_rate: 0.1}]\n")
    result = runner.invoke(app, ["show", str(path), "phases.0.epochs=2"])
    assert "own.yaml: loss.nane" in str(result.exception)


def test_names_of_recipes_and_losses_are_whole_at_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = runner.invoke(app, ["recipes"]).output.splitlines()
    assert max(map(len, lines)) <= 80
    listed = {words[0]: words for words in map(str.split, lines) if len(words) >= 5}
    assert len(listed) > 20
    for name in recipe_names():
        assert read_recipe(find_recipe(name)).loss.name in listed[name], name


def test_help_loads_nothing_heavy():
    """That is why it answers within half a second."""
    code = "import sys, softwarp.cli; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "typer" in loaded
    assert not {
        "torch",
        "numpy",
        "matplotlib",
        "faiss",
        "sklearn",
        "scipy",
        "optuna",
        "pydantic",
        "rich",
    } & set(loaded)


def test_help_and_version():
    result = runner.invoke(app, ["--help"])
    assert result.exit_code == 0
    assert "demo" in result.output
    for option in ("--output", "--seed", "--quick"):
        assert option in runner.invoke(app, ["demo", "--help"]).output
    assert "loss.settings.NAME=VALUE" in runner.invoke(app, ["train", "--help"]).output
    assert re.search(r"softwarp \d+\.\d+", runner.invoke(app, ["--version"]).output)


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["dmeo"], "Did you mean 'demo'?"),
        (["demo", "--sead", "1"], "--seed"),
        (["demo", "--seed", "-1"], "--seed"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_nearest(arguments, answer):
    result = softwarp(*arguments)
    assert result.returncode == 2
    assert answer in result.stderr
    assert "Traceback" not in result.stderr


def test_an_output_folder_that_cannot_be_made_is_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("sys.argv", ["softwarp", "demo", "--quick", "--output", f"{tmp_path}/file/demo"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert capsys.readouterr().err.strip().splitlines()[-1].startswith("error: ")


def test_demo_prints_the_table(monkeypatch, demo, tmp_path):
    _, runs = demo
    monkeypatch.setattr("softwarp.studies.demo.run_demo", lambda *_, **__: runs)
    output = runner.invoke(app, ["demo", "--quick", "--output", str(tmp_path)]).output
    for word in ("Recall@1", "Recall@2", "Recall@4", "MAP@R", "NMI", "AvgDTP", "ProxyNCA++", "report.html"):
        assert word in output
    for run in runs.values():
        assert f"{100 * run.result().metrics['recall@1']:.1f}" in output


@pytest.mark.parametrize(
    ("error", "files", "kept"),
    [
        (StoppedError, ["recipe.yaml", "checkpoint.pt"], "nothing"),
        (KeyboardInterrupt, ["recipe.yaml", "checkpoint.pt"], "last checkpoint"),
        (KeyboardInterrupt, ["recipe.yaml"], "no checkpoint"),
    ],
)
def test_a_stopped_demo_says_what_is_kept_and_how_to_resume(monkeypatch, tmp_path, error, files, kept):
    for name in files:
        (tmp_path / name).touch()

    def stop(*_, **__):
        raise error

    words = ["demo", "--quick", "--output", str(tmp_path)]
    monkeypatch.setattr("softwarp.studies.demo.run_demo", stop)
    monkeypatch.setattr(sys, "argv", ["softwarp", *words])
    result = runner.invoke(app, words)
    assert result.exit_code == 130
    (line,) = [line for line in result.stderr.splitlines() if line]
    assert kept in line
    assert line.endswith(f": softwarp demo --quick --output {tmp_path}")


@pytest.mark.parametrize(
    "early", ["softwarp.recipe.load.find_recipe", "softwarp.training.entry.train_recipe"]
)
def test_a_run_stopped_before_it_began_says_so(monkeypatch, tmp_path, early):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(early, stop)
    result = runner.invoke(app, ["train", "--output", str(tmp_path)])
    assert result.exit_code == 130
    protocol = "open set: "  # said once the recipe is known
    (line,) = [line for line in result.stderr.splitlines() if line and not line.startswith(protocol)]
    assert "before training" in line


def test_demo_runs_fit_together(demo):
    folder, runs = demo
    assert json.loads((folder / "demo.json").read_text())["command"] == "softwarp demo --seed 0 --quick"
    recipes = [run.recipe() for run in runs.values()]
    assert [recipe.loss.name for recipe in recipes] == ["warped_softmax", "euclidean_softmax", "proxy_nca_pp"]
    for part in ("data", "model", "batches", "optimizer", "evaluation", "seed"):
        assert len({repr(getattr(recipe, part)) for recipe in recipes}) == 1
    assert len({tuple(phase.epochs for phase in recipe.phases) for recipe in recipes}) == 1
    assert recipes[0].evaluation.split == "test"
    for run in runs.values():
        assert run.result().metrics["recall@1"] > 0.2  # far above chance on 50 classes
