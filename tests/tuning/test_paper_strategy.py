"""The paper's search: without the warp, the warp, the second phase from the first one's checkpoint."""

import pytest
from support.authors_settings import AUTHORS
from support.tiny_runs import PHASE, tiny

from softwarp.recipe.files import find_recipe, read_recipe
from softwarp.runs.run import Run
from softwarp.tuning import search as tune
from softwarp.tuning.paper_strategy import first_space, search_like_the_paper, second_space

SETTINGS = {"alpha": "auto", "scale": "auto:2", "k1": 0.95, "k2": 1.05, "delta": 1.0}
RECIPE = tiny(
    loss={"name": "warped_softmax", "settings": SETTINGS},
    phases=[{**PHASE, "epochs": 2}, {**PHASE, "learning_rate": 0.0005}],
)


@pytest.fixture
def recipes(monkeypatch):
    """The recipe of every trial, by its folder; trials are a formula."""
    seen = {}

    def judge(recipe, folder, **rest):
        seen[f"{folder.parent.name}/{folder.name}"] = (recipe, rest["start"])
        return 1 / (1 + recipe.phases[-1].learning_rate)

    monkeypatch.setattr(tune, "evaluate_trial", judge)
    return seen


def test_three_searches_follow_one_another(tmp_path, recipes):
    changes = {"loss.settings.k2": "fixed", "phases.1.warm_up_steps": "int:0:3"}
    studies = search_like_the_paper(RECIPE, tmp_path, trials=8, changes=changes)
    plain, warped, second = studies.values()
    assert [len(study.trials) for study in studies.values()] == [3, 3, 2]
    for name, (recipe, start) in recipes.items():
        settings = recipe.loss.settings
        if name.startswith("1-"):
            assert (settings["k1"], settings["k2"], settings["delta"]) == (1, 1, 0)
            assert len(recipe.phases) == 1
        elif name.startswith("2-"):
            assert 1.0 <= settings["delta"] <= 5.5
            assert settings["scale"] == plain.best.settings["loss.settings.scale"]
            assert recipe.phases[0].learning_rate == plain.best.settings["phases.0.learning_rate"]
        else:
            assert start == warped.best.folder
            assert settings == warped.best_recipe().loss.settings
            assert recipe.phases[0] == warped.best_recipe().phases[0]
    assert set(plain.space) == {
        "phases.0.learning_rate",
        "phases.0.proxy_learning_rate",
        "loss.settings.scale",
    }
    assert set(warped.space) == {"loss.settings.alpha", "loss.settings.k1", "loss.settings.delta"}
    assert "phases.1.warm_up_steps" in second.space
    best = second.best_recipe()
    assert len(best.phases) == 2
    assert best.evaluation == RECIPE.evaluation


def test_the_second_phase_has_tighter_bounds_and_a_lower_alpha():
    space = second_space(RECIPE)
    assert str(space["phases.1.loss_settings.alpha"]) == "auto:0.1:1"
    assert str(space["phases.1.loss_settings.scale"]) == "auto:0.2:2"
    assert str(space["phases.1.loss_settings.k1"]) == "float:0.35:1"
    assert str(space["phases.1.loss_settings.k2"]) == "float:1:1.65"
    assert str(space["phases.1.learning_rate"]) == "log:5e-05:0.005"


@pytest.mark.parametrize("data", AUTHORS)
def test_the_authors_six_phase_settings_lie_inside(data):
    """From the spaces of their recipes, with values typed from their config; none on a bound."""
    recipe, authors = read_recipe(find_recipe(data)), AUTHORS[data]
    first, second = first_space(recipe, {}), second_space(recipe)
    assert set(first) == {
        *("phases.0.learning_rate", "phases.0.proxy_learning_rate"),
        *(f"loss.settings.{name}" for name in ("scale", "alpha", "k1", "k2", "delta")),
    }
    assert set(second) == {
        *("phases.1.learning_rate", "phases.1.proxy_learning_rate"),
        *(f"phases.1.loss_settings.{name}" for name in ("scale", "alpha", "k1", "k2")),
    }
    for space, phase in ((first, authors.first), (second, authors.second)):
        for key, parameter in space.items():
            name = key.rpartition(".")[2]
            value = authors.delta if name == "delta" else getattr(phase, name)
            assert 0.01 < parameter.place(value) < 0.99, key


def test_delta_can_be_fixed_and_numbers_are_searched_as_numbers():
    recipe = read_recipe(find_recipe("cub"))
    space = first_space(recipe, {"loss.settings.delta": "fixed", "loss.settings.scale": "log:1:9"})
    assert "loss.settings.delta" not in space
    with pytest.raises(ValueError, match=r"k3.*not searched"):
        first_space(recipe, {"loss.settings.k3": "fixed"})
    assert str(space["loss.settings.scale"]) == "log:1:9"
    assert str(space["loss.settings.alpha"]) == "log:2.84:284"
    assert str(first_space(RECIPE, {})["loss.settings.alpha"]) == "auto:0.1:10"


def test_a_second_phase_starts_from_the_checkpoint_of_the_first(tmp_path):
    """One that starts there ends where both phases in one run end, and trains the first phase only once."""
    from softwarp.training.train import train_recipe

    first = RECIPE.model_copy(update={"phases": RECIPE.phases[:1]})
    train_recipe(first, tmp_path / "first")
    one_run = train_recipe(RECIPE, tmp_path / "whole").result()
    epochs = []
    value = tune.evaluate_trial(
        RECIPE,
        tmp_path / "second",
        objective="map@r",
        start=tmp_path / "first",
        look=lambda epoch, _: epochs.append(epoch),
    )
    assert value == one_run.metrics["map@r"]
    seconds = [row["seconds"] for row in Run(tmp_path / "second").history()]
    assert seconds[:2] == [row["seconds"] for row in Run(tmp_path / "first").history()]


def test_another_loss_or_a_single_phase_is_refused(tmp_path):
    with pytest.raises(ValueError, match="proxy_anchor"):
        search_like_the_paper(tiny(loss={"name": "proxy_anchor"}), tmp_path, trials=3)
    with pytest.raises(ValueError, match=r"two phases.* 1;"):
        search_like_the_paper(tiny(phases=[PHASE]), tmp_path, trials=3)
