"""softwarp.tune: what `softwarp tune` does, called from Python."""

import json

import pytest
from support.tiny_runs import tiny

import softwarp
from softwarp.events import Note
from softwarp.recipe.overrides import dump_recipe
from softwarp.tuning import search

SPACE = {"phases.0.learning_rate": "log:0.001:0.002", "loss.settings.k1": "fixed"}


@pytest.fixture
def formula(monkeypatch):
    monkeypatch.setattr(
        search, "evaluate_trial", lambda recipe, folder, **_: recipe.phases[0].learning_rate * 10
    )


def tune(folder, **options):
    heard = []
    found = softwarp.tune(
        tiny(), space=SPACE, trials=4, sampler="grid", output=folder, on_event=heard.append, **options
    )
    return found, [event.text for event in heard if isinstance(event, Note)]


def test_it_returns_the_best_recipe_and_writes_what_the_command_writes(tmp_path, formula):
    found, notes = tune(tmp_path / "out")
    assert found.recipe.phases[0].learning_rate == 0.002
    assert (tmp_path / "out" / "best.yaml").read_text() == dump_recipe(found.recipe)
    assert len(json.loads((tmp_path / "out" / "trials.json").read_text())["search"]) == 4
    assert "0.002" in repr(found)
    assert any(text.startswith("open set") for text in notes)
    assert any(text.startswith("batches: search") for text in notes)


def test_a_dry_run_tells_the_plan_and_writes_nothing(tmp_path):
    found, notes = tune(tmp_path / "out", dry_run=True)
    assert found.searches == {}
    assert any("4 trials of" in text for text in notes)
    assert not (tmp_path / "out").exists()


def test_what_it_cannot_do_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="papper"):
        tune(tmp_path, strategy="papper")
    with pytest.raises(ValueError, match="load_recipe"):
        softwarp.tune(tiny(), "seed=1", output=tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="torchrun"):
        tune(tmp_path)
