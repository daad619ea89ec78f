"""`softwarp study` lists what the paper has, and runs any file that is a study."""

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from softwarp.cli import app
from softwarp.studies import listed_studies, load_study

ROOT = Path(__file__).parents[2]
runner = CliRunner()
OWN = '''"""How many letters words have."""

from typing import Annotated

import typer
from matplotlib.figure import Figure

from softwarp.figures import Drawing
from softwarp.tables import Cell, Table

PAPER = "not in the paper"


Longest = Annotated[int, typer.Option(help="Longer words are cut.")]


def main(words: list[str], longest: Longest = 9, *, output, quick, on_event):
    """Count letters."""
    assert on_event is not None
    (output / "seen").mkdir(parents=True)
    lengths = {word: min(len(word), longest) for word in words}
    claims = [{"claim": "words are long", "verdict": "held", "numbers": "5"}]
    return {"lengths": lengths, "quick": quick, "claims": claims}


def table(summary):
    rows = tuple((Cell(word), Cell(str(n))) for word, n in summary["lengths"].items())
    return Table(("word", "letters"), rows)


def draw(summary):
    figure = Figure()
    figure.subplots().bar(*zip(*summary["lengths"].items()))
    rows = [{"word": word, "letters": n} for word, n in summary["lengths"].items()]
    return {"letters": Drawing(figure, rows)}
'''


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "letters.py"
    path.write_text(OWN)
    return path


def test_the_studies_are_listed_with_figure_and_table(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    for words in (["study"], ["study", "--help"]):
        output = runner.invoke(app, words).output
        for study in listed_studies():
            (line,) = [line for line in output.splitlines() if line.startswith(f"{study.name} ")]
            assert study.paper in line
    papers = {study.name: study.paper for study in listed_studies()}
    assert papers["functions"] == "Table 3, Fig. 9"
    assert (papers["alpha"], papers["slopes"], papers["delta"]) == ("Fig. 6", "Fig. 7", "Fig. 8")
    assert "demo" not in papers


def test_listing_imports_neither_torch_nor_matplotlib():
    code = (
        "import sys; from softwarp.studies import listed_studies; listed_studies(); "
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"torch", "numpy", "matplotlib", "pydantic"} & set(loaded.split())


@pytest.mark.parametrize("study", listed_studies(), ids=lambda study: study.name)
def test_every_study_keeps_the_contract(study):
    module = load_study(study.name)
    assert study.about.endswith(".")
    assert all(callable(getattr(module, name)) for name in ("main", "table", "draw"))
    result = runner.invoke(app, ["study", study.name, "--help"])
    assert result.exit_code == 0, result.output
    for option in ("--output", "--quick", "--results"):
        assert option in result.output
    assert "--on-event" not in result.output


def test_a_figure_of_one_s_own_is_one_file(own, tmp_path, monkeypatch):
    folder, words = tmp_path / "out", [str(own), "owl", "nightingale", "--longest", "8"]
    monkeypatch.setattr(sys, "argv", ["softwarp", "study", *words])
    options = ["--output", str(folder), "--results", str(tmp_path / "results"), "--quick"]
    result = runner.invoke(app, ["study", *words, *options])
    assert result.exit_code == 0, result.output
    assert "nightingale" in result.output
    assert "held: words are long" in result.output
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["lengths"] == {"owl": 3, "nightingale": 8}
    assert summary["quick"] is True
    assert (summary["study"], summary["paper"]) == ("letters", "not in the paper")
    assert summary["command"].startswith("softwarp study ")
    assert "packages" in summary["environment"]
    assert json.loads((tmp_path / "results" / "study_letters.json").read_text()) == summary
    assert (folder / "letters.svg").read_text().startswith("<svg")
    with (folder / "letters.csv").open() as file:
        assert list(csv.DictReader(file))[1] == {"word": "nightingale", "letters": "8"}
    assert "| owl | 3 |" in (folder / "table.md").read_text()


def test_the_folder_is_named_after_the_study(own, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner.invoke(app, ["study", str(own), "owl"])
    runner.invoke(app, ["study", str(own), "owl", "--quick"])
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [
        "study_letters",
        "study_letters_quick",
    ]


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["functons"], "functons.*functions"),
        (["nothing_like_it"], "softwarp study"),
        (["missing.py"], "no file missing.py"),
        ([__file__], "is not a study.*PAPER"),
        (["demo"], "no study demo"),
    ],
)
def test_what_is_no_study_is_answered_with_what_is(words, cause):
    with pytest.raises(ValueError, match=cause):
        runner.invoke(app, ["study", *words], catch_exceptions=False)


def test_a_stopped_study_says_how_to_resume(own, tmp_path, monkeypatch):
    own.write_text(OWN.replace("assert on_event is not None", "raise KeyboardInterrupt"))
    monkeypatch.setattr(sys, "argv", ["softwarp", "study", str(own), "owl"])
    result = runner.invoke(app, ["study", str(own), "owl", "--output", str(tmp_path / "out")])
    assert result.exit_code == 130
    assert "stopped" in result.stderr


def test_the_example_runs(tmp_path):
    file = shutil.copy(ROOT / "examples" / "own_study.py", tmp_path)
    result = runner.invoke(
        app,
        ["study", file, "data.max_classes=32", "--seeds", "1", "--quick", "--output", str(tmp_path / "out")],
    )
    assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "out" / "summary.json").read_text())["rows"]
    assert list(rows) == ["32x4", "16x8"]
    assert all(0 < each["mean"]["recall@1"] <= 1 for each in rows.values())
    assert (tmp_path / "out" / "batches.csv").read_text().splitlines()[0] == "batch,recall@1"
