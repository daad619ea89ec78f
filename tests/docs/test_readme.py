"""The README keeps its word: tables come from results/, the loop and the examples run, the rooms exist."""

import json
import re
import runpy
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from softwarp.studies import demo
from softwarp.studies.demo import demo_recipes
from softwarp.tuning.space import number_of, space_of, with_settings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
TOOL = runpy.run_path(str(ROOT / "tools" / "readme_tables.py"))


@pytest.mark.parametrize("page", TOOL["PAGES"])
def test_tables_are_made_from_results(page):
    text, names = (ROOT / page).read_text(), TOOL["PAGES"][page]
    assert TOOL["with_tables"](text, ROOT / "results", names) == text
    assert TOOL["with_tables"](text.replace("± ", "± 9"), ROOT / "results", names) == text


def test_the_demo_runs_what_the_search_found():
    """With the same number of trials for each loss, on validation classes, and no best value on a bound."""
    searches = json.loads((ROOT / "results" / "automatic_warp.json").read_text())["glyphs"]["searches"]
    titles = {
        "warped_softmax": "warp",
        "euclidean_softmax": "Euclidean softmax",
        "proxy_nca_pp": "ProxyNCA++",
    }
    found = {name: searches[f"tuned {titles[name]} from random"] for name in demo_recipes()}
    assert len({len(each["trials"]) for each in found.values()}) == 1
    for name, recipe in demo_recipes().items():
        assert found[name]["recipe"]["evaluation"]["split"] == "validation"
        assert not found[name]["on_bounds"]
        best = found[name]["best"]
        assert best["value"] == max(trial["value"] for trial in found[name]["trials"])
        assert set(best["settings"]) == set(space_of(recipe))
        tuned = with_settings(recipe, best["settings"])
        for ours, theirs in zip(recipe.phases, tuned.phases, strict=True):
            assert ours.learning_rate == pytest.approx(theirs.learning_rate, rel=0.01)
            assert ours.proxy_travel == pytest.approx(theirs.proxy_travel, rel=0.01)
        for key, value in tuned.loss.settings.items():
            ours = {"auto": "auto:1"}.get(recipe.loss.settings[key], recipe.loss.settings[key])
            assert number_of(ours) == pytest.approx(number_of(value), rel=0.01)


def test_one_seed_is_refused_before_anything_is_trained(monkeypatch):
    monkeypatch.setattr(demo, "run_demo", lambda *_, **__: pytest.fail("trained"))
    app = typer.Typer()
    app.command()(demo.main)
    result = CliRunner().invoke(app, ["--seeds", "1"])
    assert result.exit_code == 2
    assert "--seeds" in result.output


def test_the_readme_is_read_in_five_minutes():
    assert len(README.encode()) <= 10_240
    assert README.count("\n") <= 160


def test_the_snippets_are_python_and_the_loop_runs():
    snippets = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(snippets) > 2
    programs = [compile(snippet, "README.md", "exec") for snippet in snippets]
    ((loop, program),) = [
        (snippet, program)
        for snippet, program in zip(snippets, programs, strict=True)
        if "WarpedSoftmaxLoss" in snippet
    ]
    assert len(loop.splitlines()) <= 13
    exec(program, {})


def test_the_quickstart_runs_and_is_short(capsys):
    path = ROOT / "examples" / "quickstart.py"
    assert len(path.read_text().splitlines()) <= 60
    metrics = runpy.run_path(str(path))["main"](epochs=15, max_classes=40)
    assert metrics["map@r"] > 0.6  # 0.54 before training
    assert re.search(r"distance to the proxy [\d.]+ \(alpha [\d.]+\)", capsys.readouterr().out)


def test_a_loss_of_one_s_own_takes_one_file_and_one_line(capsys):
    from softwarp.losses import LOSSES

    before = dict(LOSSES)
    try:
        module = runpy.run_path(str(ROOT / "examples" / "own_loss.py"))
        assert set(LOSSES) - set(before) == {"student"}
        assert module["main"](steps=60) > 0.9
    finally:
        LOSSES.pop("student", None)
    assert "Recall@1" in capsys.readouterr().out


def test_every_link_and_every_room_exists():
    links = [link for link in re.findall(r"\]\(([^)#]+)", README) if not link.startswith("http")]
    assert links
    assert all((ROOT / link).exists() for link in links)
    (tree,) = re.findall(r"```\n(src/softwarp/\n.*?)```", README, flags=re.DOTALL)
    named = {word.rstrip("/") for word in re.findall(r"(\w+/)(?=\s)", tree)}
    rooms = {path.parent.name for path in (ROOT / "src" / "softwarp").glob("*/__init__.py")}
    assert rooms - {"explorer"} <= named
    assert [name for name in named - rooms - {"softwarp"} if not (ROOT / name).is_dir()] == []


def test_the_map_is_made_from_the_files():
    page = runpy.run_path(str(ROOT / "tools" / "map_docs.py"))["page"]
    text = (ROOT / "docs" / "map.md").read_text()
    assert text == page(ROOT / "src" / "softwarp")
    files = set(re.findall(r"`(\w+(?:/\w+)*\.py)`", text))
    assert len(files) > 100
    below = {str(path.relative_to(ROOT / "src" / "softwarp")) for path in ROOT.glob("src/softwarp/**/*.py")}
    assert [
        name
        for name in files
        if "/" in name and name not in below | {"tests/test_arrows.py", "tools/map_docs.py"}
    ] == []


def test_the_files_to_touch_exist():
    """Of CONTRIBUTING: paths lie in src/softwarp or start at the root."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = {word for word in re.findall(r"`([\w./*]+(?:/|\.py|\.md))`", text) if "NAME" not in word}
    assert len(named) > 15
    assert [word for word in named if not find(word)] == []


def find(path):
    return [*ROOT.glob(path), *(ROOT / "src" / "softwarp").glob(path)]
