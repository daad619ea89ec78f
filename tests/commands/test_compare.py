"""`softwarp compare` on result files as runs and sets of seeds leave them."""

import pytest
from support.results import finished_run, result
from typer.testing import CliRunner

from softwarp.cli import app, main
from softwarp.runs.repeats import summarise, write_repeats


def run(*arguments):
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["compare", *arguments], catch_exceptions=False)


def cells(shown):
    lines = [line for line in shown.output.splitlines() if line and line[0] in "┃│"]
    return [[word.strip() for word in line.strip("┃│").replace("┃", "│").split("│")] for line in lines]


def test_runs_and_sets_of_seeds_stand_side_by_side(tmp_path):
    before = {"recall@1": 0.65, "map@r": 0.3}
    finished_run(tmp_path / "a" / "one", name="arcface", baseline=before)
    two = [result(name="hist", metrics={"recall@1": recall, "map@r": 0.25}) for recall in (0.6, 0.8)]
    (tmp_path / "a" / "many").mkdir()
    write_repeats(tmp_path / "a" / "many", summarise(two))
    shown = run(str(tmp_path / "a" / "one"), str(tmp_path / "a" / "many"))
    assert cells(shown) == [
        ["run", "loss", "seeds", "Recall@1", "MAP@R"],
        ["one", "arcface", "1", "50.0", "25.0"],
        ["many", "hist", "2", "70.0 ± 14.1", "25.0 ± 0.0"],
        ["before training", "", "", "65.0", "30.0"],
    ]
    assert "different classes" not in shown.output


def test_relative_paths_are_taken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    finished_run(tmp_path / "runs" / "one")
    finished_run(tmp_path / "two")
    assert [row[0] for row in cells(run("runs/one"))] == ["run", "one"]
    assert [row[0] for row in cells(run("runs/one", "two"))] == ["run", "runs/one", "two"]
    assert [row[0] for row in cells(run("runs/one", str(tmp_path / "two")))] == ["run", "runs/one", "two"]


def test_names_stay_legible_at_80_columns(tmp_path):
    names = ["my_photographs-test-warped_softmax", "my_photographs-test-proxy_anchor"]
    for name in names:
        finished_run(tmp_path / name, metrics={"recall@1": 0.5, "map@r": 0.5, "nmi": 0.5, "avg_dtp": 3.0})
    folders = [str(tmp_path / name) for name in names]
    output = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["compare", *folders]).output
    assert max(map(len, output.splitlines())) <= 80
    assert min(len(row[0]) for row in cells(run(*folders))) > 0
    first = [row[0] for row in cells(CliRunner(env={"COLUMNS": "80"}).invoke(app, ["compare", *folders]))]
    assert max(map(len, first)) >= 12  # not folded to a few letters


def test_other_classes_are_reported(tmp_path):
    finished_run(tmp_path / "one")
    finished_run(tmp_path / "two", data_sha256="b")
    assert "different classes" in run(str(tmp_path / "one"), str(tmp_path / "two")).output


def test_what_is_no_finished_run_is_one_line(tmp_path, monkeypatch, capsys):
    finished_run(tmp_path / "demo" / "arcface")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "result.json").write_text('{"name": "arcface", "metrics": {}}')
    for folder, cause in (("none", "none is not a finished run"), ("demo", "demo"), ("old", "--fresh")):
        monkeypatch.setattr("sys.argv", ["softwarp", "compare", str(tmp_path / folder)])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 2
        assert cause in capsys.readouterr().err
