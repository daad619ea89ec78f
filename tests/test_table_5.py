"""Every row of the paper's Table 5: its published figures, and recipes that train on tiny records."""

import math

import pytest
from support.face_files import write_faces
from typer.testing import CliRunner

from softwarp.cli import app
from softwarp.commands.paper_table import read_table
from softwarp.recipe import parse_recipe
from softwarp.recipe_files import find_recipe, read_recipe, read_settings, recipe_names
from softwarp.schedule import factor, stretches
from softwarp.train import train

TABLE = read_table(5)
ROWS = {row["recipes"]["faces"]: row for group in TABLE["groups"] for row in group["rows"]}


def test_all_rows_of_the_paper_have_a_recipe_that_agrees():
    said = {name for name in recipe_names() if read_recipe(find_recipe(name)).paper.get("table") == "Table 5"}
    assert said == set(ROWS)
    assert len(ROWS) == 7
    for name, row in ROWS.items():
        recipe = read_recipe(find_recipe(name))
        figures = dict(zip(TABLE["columns"]["faces"], row["faces"], strict=True))
        assert recipe.paper["published"] == figures
        assert recipe.paper["source"]
        assert recipe.paper["unsaid"]
        assert (recipe.data.name, recipe.model.backbone) == ("records", "iresnet100")
        assert (recipe.batches.size, sum(phase.epochs for phase in recipe.phases)) == (1024, 25)
        assert recipe.loss.sharded


@pytest.mark.parametrize("name", ["faces_ms1mv2", "faces_euclidean_softmax", "faces_arcface"])
def test_phases_put_together_fall_quadratically(name):
    phases = read_recipe(find_recipe(name)).phases
    rate = phases[0].learning_rate
    rates = [phase.learning_rate * factor(phase, epoch) for phase in phases for epoch in range(phase.epochs)]
    assert rates == pytest.approx([rate * (1 - epoch / 25) ** 2 for epoch in range(25)])


def test_the_authors_temperatures_begin_where_they_say():
    recipe = read_recipe(find_recipe("faces_ms1mv2"))
    starts = {first: phase.loss_settings for _, phase, first, _ in stretches(recipe.phases, 1)}
    assert {epoch: settings.get("scale") for epoch, settings in starts.items()} == {
        0: None,
        7: 2.7,
        10: 2.2,
        12: 1.7,
        15: 1.2,
        20: 1.0,
    }
    assert starts[20] == {"alpha": 12.25, "k1": 0.2, "k2": 1.03, "scale": 1.0}
    assert recipe.loss.settings["scale"] == 3.15
    assert (recipe.optimizer.clip_norm, recipe.loss.weight) == (5.0, 10.0)


def test_the_command_prints_the_table():
    shown = CliRunner().invoke(app, ["recipes", "--table", "5"])
    assert shown.exit_code == 0, shown.output
    words = shown.output.split()
    assert set(ROWS) <= set(words)
    figures = [f"{value:.2f}" for row in ROWS.values() for value in row["faces"]]
    assert [word for word in words if word in set(figures)] == figures
    assert "not known" not in shown.output


@pytest.mark.parametrize(
    "name", [name if name == "faces_ms1mv2" else pytest.param(name, marks=pytest.mark.slow) for name in ROWS]
)
def test_it_trains_on_tiny_records(name, tmp_path):
    write_faces(tmp_path / "records", people=4, images=4, size=28)
    settings = read_settings(find_recipe(name))
    settings["data"] |= {"root": str(tmp_path / "records"), "resize": 28, "crop": 28, "workers": 0}
    settings["model"] = {"backbone": "test_resnet", "embedding_size": 16}
    settings |= {"batches": {"size": 8}, "precision": "fp32"}
    for phase in settings["phases"]:
        phase["learning_rate"] /= 100  # for a tiny network
        phase["proxy_learning_rate"] /= 100
        phase["epochs"] = 1
    run = train(parse_recipe(settings), tmp_path / "run")
    assert len(run.history()) == len(settings["phases"])
    assert all(math.isfinite(row["loss"]) for row in run.history())
