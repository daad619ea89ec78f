import pytest
import yaml

from softwarp.recipe import dump_recipe, parse_recipe, read_recipe, write_out

SMALL = {
    "loss": {"name": "euclidean_softmax"},
    "phases": [{"epochs": 1, "learning_rate": 0.1, "proxy_learning_rate": 0.1}],
}


def test_round_trip_through_yaml(tmp_path):
    recipe = parse_recipe(SMALL)
    (tmp_path / "recipe.yaml").write_text(dump_recipe(recipe))
    assert write_out(read_recipe(tmp_path / "recipe.yaml")) == write_out(recipe)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lose": {}}, "lose: no such key; did you mean loss?"),
        ({"optimizer": {"clip_valeu": 1.0}}, "optimizer.clip_valeu: no such key; did you mean clip_value?"),
        ({"phases": [{"epochs": 0, "learning_rate": 1, "proxy_learning_rate": 1}]}, "phases.0.epochs"),
        ({"phases": [{"epochs": 1, "proxy_learning_rate": 1}]}, "phases.0.learning_rate: Field required"),
        ({"data": {"name": "glyhps"}}, "data.name: Input should be 'glyphs'"),
        ({"xyzzy": 1}, "xyzzy: no such key"),
    ],
)
def test_what_is_wrong_is_named(change, message):
    with pytest.raises(ValueError) as error:
        parse_recipe({**SMALL, **change})
    assert message in str(error.value)


def test_broken_yaml_names_the_file(tmp_path):
    (tmp_path / "broken.yaml").write_text("loss: [")
    with pytest.raises(ValueError, match=r"broken\.yaml is not valid YAML"):
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
