"""`softwarp compare` on result files as runs and sets of seeds leave them."""

import json

import pytest
from typer.testing import CliRunner

from softwarp.cli import app, main


def result(name, recall, sha256="a"):
    metrics = {"recall@1": recall, "map@r": recall / 2, "nmi": None, "avg_dtp": 3.0}
    return {
        "name": name,
        "split": "test",
        "classes": {"train": 5, "evaluated": 5},
        "metrics": metrics,
        "data_sha256": sha256,
    }


def write(folder, file, content):
    folder.mkdir(parents=True)
    (folder / file).write_text(json.dumps(content))
    return str(folder)


def run(*arguments):
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["compare", *arguments], catch_exceptions=False)


def test_runs_and_sets_of_seeds_stand_side_by_side(tmp_path):
    one = write(tmp_path / "one", "result.json", result("arcface", 0.5))
    runs = [result("hist", 0.6), result("hist", 0.8)]
    mean, deviation = {"recall@1": 0.7, "map@r": 0.35, "avg_dtp": 3.0}, {"recall@1": 0.1, "map@r": 0.05}
    seeds = {"seeds": 2, "mean": mean, "deviation": deviation | {"avg_dtp": 0.5}, "runs": runs}
    many = write(tmp_path / "many", "seeds.json", seeds)
    shown = run(one, many)
    (head, first, second) = [line for line in shown.output.splitlines() if line[0] in "┃│"]
    assert [word.strip() for word in head.strip("┃").split("┃")][1:] == [
        "loss",
        "seeds",
        "recall@1",
        "map@r",
        "avg_dtp",
    ]
    assert [word.strip() for word in first.strip("│").split("│")][1:] == [
        "arcface",
        "1",
        "50.0",
        "25.0",
        "3.00",
    ]
    assert [word.strip() for word in second.strip("│").split("│")][1:] == [
        "hist",
        "2",
        "70.0 ± 10.0",
        "35.0 ± 5.0",
        "3.00 ± 0.50",
    ]
    assert "cannot be compared" not in shown.output


def test_other_classes_are_told(tmp_path):
    one = write(tmp_path / "one", "result.json", result("arcface", 0.5))
    two = write(tmp_path / "two", "result.json", result("arcface", 0.5, sha256="b"))
    assert "cannot be compared" in run(one, two).output


def test_what_is_no_finished_run_is_one_line(tmp_path, monkeypatch, capsys):
    demo = write(tmp_path / "demo", "result.json", {"rows": []})
    for folder, message in (
        (tmp_path / "none", "holds no finished run"),
        (demo, "is no run, but holds some"),
    ):
        monkeypatch.setattr("sys.argv", ["softwarp", "compare", str(folder)])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 2
        assert message in capsys.readouterr().err
