"""The study keeps what it has made, and makes it again only if the recipe changed."""

import json

import automatic_warp
import pytest

TINY = ("data.max_classes=16", "batches.classes=8", "evaluation.avg_dtp_images=16")


@pytest.fixture
def small(tmp_path, monkeypatch):
    """One search of two trials and two seeds, one epoch each."""
    plan = automatic_warp.DATA["glyphs"] | {
        "seeds": 2,
        "trials": 2,
        "random": "phases=[{epochs: 1, learning_rate: 0.004, proxy_travel: 2.0}]",
    }
    monkeypatch.setitem(automatic_warp.DATA, "glyphs", plan)
    monkeypatch.setattr(automatic_warp, "RESULT", tmp_path / "automatic_warp.json")
    return tmp_path


def make(folder, *more):
    automatic_warp.study("glyphs", "tuned ProxyNCA++", "random", folder, (*TINY, *more), None)


def test_a_row_has_its_search_and_its_seeds_and_is_not_made_twice(small, monkeypatch):
    make(small / "runs")
    content = json.loads(automatic_warp.RESULT.read_text())["glyphs"]
    row = content["rows"]["tuned ProxyNCA++ from random"]
    found = content["searches"][row["search"]]
    assert len(found["trials"]) == 2
    assert found["best"]["value"] == max(trial["value"] for trial in found["trials"])
    assert found["recipe"]["evaluation"]["split"] == "validation"
    assert row["recipe"]["evaluation"]["split"] == "test"
    drawn = {key.removeprefix("loss.settings."): value for key, value in found["best"]["settings"].items()}
    assert drawn.items() >= row["recipe"]["loss"]["settings"].items() > set()
    assert row["mean"]["map@r"] == pytest.approx(sum(row["values"]["map@r"]) / 2)

    monkeypatch.setattr(automatic_warp, "train_recipe", lambda *_, **__: pytest.fail("trained again"))
    monkeypatch.setattr(automatic_warp, "search", lambda *_, **__: pytest.fail("searched again"))
    make(small / "elsewhere")
    with pytest.raises(pytest.fail.Exception, match="searched again"):
        make(small / "elsewhere", "model.embedding_size=64")


def test_a_search_that_ends_where_another_row_began_trains_nothing():
    recipes = [
        automatic_warp.recipe_for("glyphs", row, "random").model_dump(mode="json")
        for row in ("automatic warp", "tuned warp", "automatic Euclidean softmax")
    ]
    recipes[1]["loss"]["settings"] = {"scale": "auto:1", "alpha": "auto:1", "k1": 0.9, "k2": 1.2}
    first, found, other = map(automatic_warp.in_full, recipes)
    assert first == found != other
    recipes[1]["loss"]["settings"]["k1"] = 0.8
    assert automatic_warp.in_full(recipes[1]) != first
