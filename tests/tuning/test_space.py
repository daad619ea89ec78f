"""Search spaces: recipe keys, ranges, and how a value gets into a recipe."""

import pytest
from support.tiny_runs import PHASE, tiny

from softwarp.losses import LOSSES
from softwarp.recipe.overrides import change_loss, write_out
from softwarp.recipe.schema import parse_recipe
from softwarp.tuning.space import (
    Parameter,
    number_of,
    on_bounds,
    own_point,
    parse_parameter,
    space_of,
    with_settings,
)

RATE = "phases.0.learning_rate"


@pytest.mark.parametrize(
    "text", ["log:1:40", "float:-0.5:1", "int:1:8", "auto:0.1:10", "choice:adam,sgd,2,True"]
)
def test_a_range_is_written_as_it_is_read(text):
    assert str(parse_parameter(text)) == text
    assert parse_parameter(str(parse_parameter(text))) == parse_parameter(text)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("log:40:1", "log:1:40"),
        ("log:2:2", "below"),
        ("log:0:1", "above 0"),
        ("float:0:inf", "finite"),
        ("int:0.5:2", "whole"),
        ("lgo:1:2", "did you mean log"),
        ("log:1", "log:LOW:HIGH"),
        ("log:a:b", "two numbers"),
        ("choice:a", "two different"),
        ("choice:a,a", "two different"),
    ],
)
def test_a_range_that_makes_no_sense_is_explained(text, cause):
    with pytest.raises(ValueError, match=cause) as error:
        space_of(tiny(), {RATE: text})
    assert f"{RATE}={text}" in str(error.value)


@pytest.mark.parametrize(
    ("key", "text", "cause"),
    [
        ("loss.settings.aplha", "log:1:2", r"did you mean loss\.settings\.alpha"),
        ("phases.0.learning_rat", "log:1:2", r"did you mean phases\.0\.learning_rate"),
        ("phases.7.learning_rate", "log:1:2", "no '7'"),
        ("los.settings.alpha", "log:1:2", "los"),
        ("loss.settings.k1", "float:0.5:1.5", "k1"),
        ("optimizer.name", "choice:adam,adma", "adma"),
        ("evaluation.split", "choice:validation,test", "judged"),
        ("loss.settings.aplha", "fixed", r"did you mean loss\.settings\.alpha"),
    ],
)
def test_a_key_or_value_that_the_recipe_does_not_know_is_refused_before_training(key, text, cause):
    with pytest.raises(ValueError, match=cause):
        space_of(tiny(), {key: text})


def test_ranges_are_narrowed_widened_added_and_removed():
    usual = space_of(tiny())
    changes = {RATE: "log:0.001:0.002", "loss.settings.k1": "fixed", "batches.samples": "choice:2,4"}
    changed = space_of(tiny(), changes)
    assert changed[RATE] == Parameter("log", 0.001, 0.002)
    assert set(changed) == set(usual) - {"loss.settings.k1"} | {"batches.samples"}
    with pytest.raises(ValueError, match="nothing is left"):
        space_of(tiny(), dict.fromkeys(usual, "fixed"))


def test_a_rate_beyond_the_usual_range_is_searched_around_the_recipe_s():
    assert space_of(tiny())[RATE] == Parameter("log", 1e-4, 3e-2)
    low = space_of(tiny(phases=[{**PHASE, "learning_rate": 1e-5}]))[RATE]
    assert low.place(1e-5) == pytest.approx(0.5)


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_has_a_space_that_it_takes(name):
    settings = change_loss(tiny().model_dump(mode="json"), name)
    space = space_of(parse_recipe(settings))
    assert len(space) > 2


def test_a_value_gets_into_the_recipe():
    recipe = tiny(phases=[{**PHASE, "head_learning_rate": 0.05}, {**PHASE, "learning_rate": 0.0005}])
    new = with_settings(recipe, {RATE: 0.01, "loss.settings.alpha": "auto:2", "optimizer.name": "adamw"})
    assert [phase.learning_rate for phase in new.phases] == pytest.approx([0.01, 0.001])
    assert new.phases[0].head_learning_rate == pytest.approx(0.1)
    assert new.loss.settings["alpha"] == "auto:2"
    assert new.optimizer.name == "adamw"
    own = with_settings(recipe, {RATE: 0.01, "phases.1.learning_rate": 0.3})
    assert own.phases[1].learning_rate == 0.3


def test_a_best_value_on_a_bound_is_named():
    space = {"a": Parameter("log", 1, 100), "b": Parameter("float", 0, 1), "c": Parameter("auto", 0.1, 10)}
    assert on_bounds(space, {"a": 1.01, "b": 0.5, "c": "auto:9.9"}) == {"a": "lower", "c": "upper"}
    assert on_bounds(space, {"a": 1.5, "b": 0.03, "c": "auto:1"}) == {}
    assert on_bounds({"d": Parameter("choice", choices=("x", "y"))}, {"d": "x"}) == {}


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_a_search_begins_at_the_defaults_of_every_loss(name):
    phase = {"epochs": 1, "learning_rate": 0.004, "proxy_learning_rate": 0.04}
    recipe = parse_recipe({"loss": {"name": name}, "phases": [phase]})
    space, defaults = space_of(recipe), write_out(recipe)["loss"]["settings"]
    point = own_point(recipe, space)
    assert point.keys() == space.keys()
    for key, parameter in space.items():
        setting, drawn = key.rpartition(".")[2], number_of(point[key])
        if parameter.kind == "auto":
            assert drawn == 1
        elif key.startswith("loss.") and parameter.low <= defaults[setting] <= parameter.high:
            assert drawn == pytest.approx(defaults[setting])


def test_a_second_phase_begins_at_the_settings_of_the_first():
    phase = {"epochs": 1, "learning_rate": 0.004, "proxy_learning_rate": 0.04}
    loss = {"name": "warped_softmax", "settings": {"k1": 0.3}}
    recipe = parse_recipe({"loss": loss, "phases": [phase, phase | {"loss_settings": {"k2": 1.7}}]})
    keys = [f"phases.1.loss_settings.{name}" for name in ("k1", "k2", "delta")]
    point = own_point(recipe, {key: Parameter("float", 0, 3) for key in keys})
    assert list(point.values()) == [0.3, 1.7, 1.0]
