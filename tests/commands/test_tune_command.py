"""`softwarp tune`: from a recipe or a folder to best.yaml and a page."""

import json

import pytest
from support.pictures import jpeg, noise
from typer.testing import CliRunner

from softwarp.cli import app, main
from softwarp.recipe.files import read_recipe
from softwarp.tuning import search as tune

SMALL = ["data.max_classes=20", "model.embedding_size=16", "batches.classes=10"]


@pytest.fixture
def formula(monkeypatch):
    monkeypatch.setattr(
        tune, "evaluate_trial", lambda recipe, folder, **_: recipe.phases[0].learning_rate * 10
    )


def run(*words):
    return CliRunner().invoke(app, ["tune", *map(str, words)], catch_exceptions=False)


def error_of(monkeypatch, capsys, *words):
    monkeypatch.setattr("sys.argv", ["softwarp", "tune", *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    return capsys.readouterr().err


def test_a_recipe_becomes_a_better_one(tmp_path, formula):
    out = tmp_path / "out"
    space = ["--space", "phases.0.learning_rate=log:0.001:0.002", "--space", "loss.settings.k1=fixed"]
    result = run(*SMALL, "--trials", 5, "--sampler", "grid", "--output", out, *space)
    assert result.exit_code == 0
    best = read_recipe(out / "best.yaml")
    assert best.phases[0].learning_rate == 0.002
    assert best.evaluation.split == "test"  # as in the recipe
    assert "upper bound of log:0.001:0.002" in result.output
    assert f"softwarp train {out}/best.yaml" in result.output.replace("\n", "")
    rows = json.loads((out / "trials.json").read_text())["search"]
    assert len(rows) == 5
    assert rows[0]["settings"]["phases.0.learning_rate"] == 0.002
    assert "loss.settings.k1" not in rows[0]["settings"]
    page = (out / "report.html").read_text()
    assert "Parallel coordinates" in page


def test_a_folder_needs_no_recipe(tmp_path, formula):
    for number in range(6):
        for image in range(3):
            jpeg(tmp_path / "birds" / f"bird{number}" / f"{image}.jpg", noise(40, 40, 10 * number + image))
    result = run("--data", tmp_path / "birds", "--trials", 2, "--output", tmp_path / "out")
    assert result.exit_code == 0
    assert read_recipe(tmp_path / "out" / "best.yaml").data.root == str(tmp_path / "birds")


def test_the_paper_s_strategy_reports_its_stages(tmp_path, formula):
    result = run(*SMALL, "--strategy", "paper", "--trials", 3, "--output", tmp_path)
    for stage in ("without the warp", "warp", "second phase"):
        assert f"{stage}: 1 complete" in result.output
        assert f"{stage}: 1 trials" in (tmp_path / "report.html").read_text()
    assert len(read_recipe(tmp_path / "best.yaml").phases) == 2


@pytest.mark.parametrize(
    ("words", "causes"),
    [
        (["--space", "loss.settings.aplha=log:1:2"], ["aplha", "did you mean loss.settings.alpha"]),
        (["--space", "loss.settings.alpha=log:40:1"], ["log:1:40"]),
        (["--space", "loss.settings.alpha"], ["KEY=RANGE"]),
        (["--strategy", "papper"], ["papper"]),
        (["--trials", "3", "--hours", "1"], ["--trials or --hours"]),
    ],
)
def test_mistakes_are_one_line_that_names_the_cure(words, causes, tmp_path, monkeypatch, capsys):
    text = error_of(monkeypatch, capsys, *SMALL, "--output", tmp_path / "out", *words)
    assert len(text.strip().splitlines()) == 1
    for cause in causes:
        assert cause in text


def test_torchrun_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "torchrun" in error_of(monkeypatch, capsys, "--output", tmp_path)
