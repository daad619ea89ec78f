import pytest
import yaml

from softwarp.data.splits import SplitPlan
from softwarp.recipe.files import read_recipe
from softwarp.recipe.overrides import change_loss, check_batches, dump_recipe, write_out
from softwarp.recipe.schema import parse_recipe

PHASE = {"epochs": 1, "learning_rate": 0.1, "proxy_learning_rate": 0.1}
SMALL = {"loss": {"name": "euclidean_softmax"}, "phases": [PHASE]}


def test_round_trip_through_yaml(tmp_path):
    recipe = parse_recipe(SMALL)
    (tmp_path / "recipe.yaml").write_text(dump_recipe(recipe))
    assert write_out(read_recipe(tmp_path / "recipe.yaml")) == write_out(recipe)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lose": {}}, "did you mean loss?"),
        ({"optimizer": {"clip_valeu": 1.0}}, "did you mean optimizer.clip_value?"),
        ({"phases": [{"epochs": -1, "learning_rate": 1, "proxy_learning_rate": 1}]}, "phases.0.epochs"),
        ({"phases": [{"epochs": 1, "proxy_learning_rate": 1}]}, "phases.0.learning_rate: "),
        ({"data": {"name": "glyhps"}}, "data.name=glyhps"),
        ({"xyzzy": 1}, "xyzzy: "),
        ({"epochs": 3}, "did you mean phases.0.epochs?"),
        ({"cache": True}, "did you mean data.cache?"),
        ({"name": "hist"}, "did you mean data.name or loss.name or optimizer.name?"),
        ({"phases": [PHASE, {**PHASE, "epoch": 1}]}, "did you mean phases.1.epochs"),
        ({"loss": {"name": "hist", "scale": 2}}, "did you mean loss.settings.scale?"),
        ({"loss": "hist"}, "did you mean loss.name=hist?"),
        ({"data": "cub"}, "did you mean data.KEY=cub?"),
    ],
)
def test_what_is_wrong_is_named(change, message):
    with pytest.raises(ValueError) as error:
        parse_recipe({**SMALL, **change})
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ({"samples": 1}, "triplet needs 2 classes x 2 samples .*batches.samples is 1"),
        ({"classes": 1}, "batches.classes is 1"),
        ({"classes": 4, "accumulate": 4}, "batches.classes is 4, .*4 pieces"),
    ],
)
def test_batches_that_cannot_serve_the_loss_are_refused(batches, message):
    with pytest.raises(ValueError, match=message):
        check_batches(parse_recipe({**SMALL, "loss": {"name": "triplet"}, "batches": batches}))
    check_batches(parse_recipe({**SMALL, "batches": batches}))  # a loss with proxies takes any


def test_batches_that_just_serve_the_loss_are_taken():
    batches = {"classes": 4, "samples": 2, "accumulate": 2}
    check_batches(parse_recipe({**SMALL, "loss": {"name": "triplet"}, "batches": batches}))


def test_random_batches_take_the_place_of_classes_and_samples(tmp_path):
    assert parse_recipe(SMALL).batches.model_dump() == {
        "classes": 32,
        "samples": 4,
        "size": None,
        "draw": "rounds",
        "per_epoch": None,
        "accumulate": 1,
    }
    recipe = parse_recipe({**SMALL, "batches": {"size": 120, "accumulate": 3}})
    assert (recipe.batches.size, recipe.batches.classes, recipe.batches.samples) == (120, None, None)
    (tmp_path / "recipe.yaml").write_text(dump_recipe(recipe))
    assert read_recipe(tmp_path / "recipe.yaml").batches == recipe.batches
    check_batches(recipe)


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ({"size": 120, "classes": 8}, "size 120 .*classes"),
        ({"size": 120, "accumulate": 7}, "accumulate 7 .*120"),
        ({"classes": 8, "accumulate": 3}, "accumulate 3 .*8"),
        ({"classes": None}, "classes and samples, or size"),
        ({"size": 120, "draw": "independent"}, "draw independent .*classes x samples"),
        ({"size": 0}, "batches.size"),
    ],
)
def test_batches_that_contradict_themselves_are_refused(batches, message):
    with pytest.raises(ValueError, match=message):
        parse_recipe({**SMALL, "batches": batches})


def test_a_loss_over_pairs_does_not_get_random_batches():
    settings = {**SMALL, "batches": {"size": 120}}
    with pytest.raises(ValueError, match=r"triplet .*2 classes x 2 samples .*batches\.size"):
        check_batches(parse_recipe({**settings, "loss": {"name": "triplet"}}))
    changed = parse_recipe(change_loss(settings, "triplet"))
    assert changed.batches.size is None
    assert changed.batches.classes * changed.batches.samples <= 120
    check_batches(changed)
    assert parse_recipe(change_loss(settings, "proxy_nca")).batches.size == 120


def test_broken_yaml_names_the_file(tmp_path):
    (tmp_path / "broken.yaml").write_text("loss: [")
    with pytest.raises(ValueError, match=r"broken\.yaml .*YAML"):
        read_recipe(tmp_path / "broken.yaml")
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(ValueError, match=r"empty\.yaml"):
        read_recipe(tmp_path / "empty.yaml")


def test_the_settings_of_the_loss_are_written_out():
    recipe = parse_recipe(
        {
            "loss": {"name": "recall_at_k", "settings": {"cutoffs": [1, 2.5]}},
            "phases": [{"epochs": 1, "learning_rate": 0.1, "proxy_learning_rate": 0.1}],
        }
    )
    written = yaml.safe_load(dump_recipe(recipe))["loss"]["settings"]
    assert written["cutoffs"] == [1, 2.5]
    assert written["rank_temperature"] == 0.01
    assert written["mix"] is False
    assert parse_recipe(write_out(recipe)).loss.settings == written


def test_a_fold_beyond_the_last_is_refused_and_others_are_in_the_plan():
    with pytest.raises(ValueError, match=r"fold 3 of 3.* 0 to 2"):
        parse_recipe(SMALL | {"evaluation": {"fold": 3, "folds": 3}})
    part = parse_recipe(SMALL | {"evaluation": {"split": "test", "fold": 2, "folds": 3, "fold_seed": 5}})
    assert part.evaluation.plan() == SplitPlan("test", fold=2, folds=3, fold_seed=5)
    assert parse_recipe(SMALL).evaluation.plan() == SplitPlan()
