"""Every row of the paper's Table 1: its published figures, and recipes that train."""

import math

import pytest
import yaml
from support.tiny_data import draw_cars, draw_cub, draw_sop
from typer.testing import CliRunner

from softwarp.cli import app
from softwarp.commands.paper_table import read_paper_table
from softwarp.losses import card_of
from softwarp.models.backbones import build_backbone
from softwarp.recipe.files import find_recipe, read_recipe, read_settings, recipe_names
from softwarp.recipe.schema import parse_recipe
from softwarp.runs.result import Counts
from softwarp.training.schedule import factor
from softwarp.training.train import train_recipe

TABLE = read_paper_table(1)
ROWS = [row for group in TABLE["groups"] for row in group["rows"]]
CELLS = {name: (row, data) for row in ROWS for data, name in row.get("recipes", {}).items()}
QUICK = ("cub_cross_entropy", "sop_hist")  # between them: no head, jitter, warm-up, a network, random batches
BACKBONES = {"I": "bn_inception", "R": "resnet50.tv_in1k"}


def test_all_rows_of_the_paper_are_there():
    assert len(ROWS) == 23
    assert len(CELLS) == sum(len(row.get("recipes", {})) for row in ROWS) == 43  # no recipe serves two cells
    for row in ROWS:
        published = {data for data in TABLE["columns"] if data in row}
        known = set(row.get("recipes", {}))
        assert known <= published
        assert ("unknown" in row) == (known < published), row[
            "method"
        ]  # a gap is explained, and nothing else
        assert all(len(row[data]) == len(TABLE["columns"][data]) for data in published)


def test_recipes_that_say_table_1_are_in_it():
    ours = {name for name in recipe_names() if read_recipe(find_recipe(name)).paper.get("table") == "Table 1"}
    assert ours == set(CELLS)


@pytest.mark.parametrize("name", CELLS)
def test_recipe_and_table_agree(name):
    row, data = CELLS[name]
    recipe = read_recipe(find_recipe(name))
    named = {key.removesuffix("_geometric"): value for key, value in recipe.paper["published"].items()}
    figures = zip(TABLE["columns"][data], row[data], strict=True)
    assert named == {metric: value for metric, value in figures if value is not None}
    assert recipe.paper["source"]
    assert recipe.data.name == data
    assert recipe.model.backbone == BACKBONES[row["model"][0]]
    assert recipe.model.pretrained is True
    assert recipe.model.embedding_size == int(row["model"][1:])
    assert (recipe.data.crop >= 256) == ("†" in row["method"])


def test_a_warm_up_that_freezes_batch_norm_where_its_authors_do_not_says_so():
    """`freeze_backbone` keeps batch norm in evaluation mode, which none of them does for a warm-up alone."""
    recipes = [read_recipe(find_recipe(name)) for name in CELLS]
    found = [
        recipe
        for recipe in recipes
        if any(phase.freeze_backbone for phase in recipe.phases) and not recipe.model.freeze_batch_norm
    ]
    assert len(found) == 9
    assert all("during the warm-up there" in recipe.paper["differs"] for recipe in found)


@pytest.mark.parametrize(
    ("name", "rate", "epochs", "expected"),
    [
        ("cub_proxy_anchor", 1e-4, 60, lambda epoch: 0.5 ** (epoch // 10)),
        ("cars_proxy_anchor", 1e-4, 60, lambda epoch: 0.5 ** (epoch // 20)),
        ("sop_proxy_anchor", 6e-4, 60, lambda epoch: 0.25 ** (epoch // 20)),
        ("cub_proxy_anchor_r50", 1e-4, 60, lambda epoch: 0.5 ** (epoch // 5)),
        ("cars_proxy_anchor_r50", 1e-4, 60, lambda epoch: 0.5 ** (epoch // 10)),
        ("cars_soft_triple", 1e-4, 50, lambda epoch: 0.1 ** ((epoch + 1) // 20)),
        ("sop_proxy_gml", 1e-4, 50, lambda epoch: 0.1 ** ((epoch + 1) // 20)),
        ("cars_recall_at_k", 1e-4, 170, lambda epoch: 0.3 ** ((epoch >= 80) + (epoch >= 140))),
        ("sop_recall_at_k", 2e-4, 55, lambda epoch: 0.3 ** (epoch // 25)),
        ("cars_intra_batch", 3.6683e-4, 70, lambda epoch: 0.1 ** (epoch >= 30)),
        ("sop_roadmap", 1e-5, 100, lambda epoch: 0.3 ** ((epoch >= 30) + (epoch >= 70))),
    ],
)
def test_phases_put_together_are_the_published_schedule(name, rate, epochs, expected):
    phases = read_recipe(find_recipe(name)).phases
    rates = [phase.learning_rate * factor(phase, epoch) for phase in phases for epoch in range(phase.epochs)]
    assert rates == pytest.approx([rate * expected(epoch) for epoch in range(epochs)], rel=1e-4)
    assert len({round(phase.proxy_learning_rate / phase.learning_rate, 6) for phase in phases}) == 1


def test_cards_of_losses_agree_with_their_recipes():
    """A card gives the settings of one data set; both were read from the same sources."""
    recipes = [read_recipe(find_recipe(name)) for name in CELLS]
    for loss in sorted({recipe.loss.name for recipe in recipes}):
        training = card_of(loss).training
        ours = [recipe for recipe in recipes if recipe.loss.name == loss]
        drawn = [each.batches.size or (each.batches.classes, each.batches.samples) for each in ours]
        if loss != "recall_at_k":  # its card has the batch of CUB, for which the table has no figures
            assert training.batch in drawn, loss
        if loss != "contextual":  # its card has the script for 256 pixels, the table that for 224
            assert {each.optimizer.name for each in ours} == {training.optimizer}, loss


def test_proxy_nca_pp_learns_proxies_at_the_rate_of_its_data_set():
    recipes = {data: read_recipe(find_recipe(f"{data}_proxy_nca_pp")) for data in ("cub", "cars", "sop")}
    found = {data: {phase.proxy_learning_rate for phase in each.phases} for data, each in recipes.items()}
    assert found == {"cub": {400.0}, "cars": {400.0}, "sop": {240.0}}  # 2400 is In-Shop's
    # its train.py has torch's own linear layer, and its sampler draws the classes of each batch anew
    starts = {(each.model.head_init, each.batches.draw) for each in recipes.values()}
    assert starts == {("default", "independent")}


@pytest.mark.parametrize("name", CELLS)
def test_show_prints_a_recipe_that_parses(name):
    shown = CliRunner().invoke(app, ["show", name])
    assert shown.exit_code == 0, shown.output
    recipe = parse_recipe(yaml.safe_load(shown.output))
    assert recipe.phases == read_recipe(find_recipe(name)).phases


def test_the_command_prints_the_table_within_100_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(app, ["recipes", "--table", "1"])
    assert shown.exit_code == 0, shown.output
    lines = [line.rstrip() for line in shown.output.splitlines()]
    assert max(map(len, lines)) <= 100
    words = shown.output.split()
    assert set(CELLS) <= set(words)
    figures = [
        f"{value:.1f}" for row in ROWS for data in TABLE["columns"] for value in row.get(data, ()) if value
    ]
    assert [word for word in words if word in set(figures)] == figures  # all, in the paper's order
    for row in ROWS:
        assert row.get("unknown", "") in shown.output
    empty = sum(
        data in row and data not in row.get("recipes", {}) for row in ROWS for data in TABLE["columns"]
    )
    assert shown.output.partition("not known: ")[0].count("not known") == empty
    wrong = CliRunner().invoke(app, ["recipes", "--table", "7"])
    assert "table 7" in str(wrong.exception)
    assert "--table 1" in str(wrong.exception)


def test_table_2_has_the_deviations_and_the_means_of_table_1(monkeypatch):
    """Typed once more from the paper; the means are those of its row in Table 1."""
    (row,) = [row for group in read_paper_table(2)["groups"] for row in group["rows"]]
    assert row["deviations"] == {
        "cub": [0.16, 0.17, 0.16, 0.12],
        "cars": [0.11, 0.06, 0.02, 0.32],
        "sop": [0.09, 0.05, 0.05, 0.02],
    }
    for data, name in row["recipes"].items():
        assert row[data] == CELLS[name][0][data]
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(app, ["recipes", "--table", "2"]).output
    assert "±.11 ±.06 ±.02 ±.32" in shown
    assert max(map(len, shown.splitlines())) <= 100


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    """Folders in the layouts of CUB, Cars and SOP: four training classes of four images."""
    folder = tmp_path_factory.mktemp("data")
    return {
        "cub": draw_cub(folder / "cub"),
        "cars": draw_cars(folder / "cars"),
        "sop": draw_sop(folder / "sop"),
    }


def shrunk(name, root):
    """Return the recipe for a tiny data set and network; what it says of loss, optimizer and phases stays."""
    settings = read_settings(find_recipe(name))
    settings["data"] |= {"root": str(root), "resize": 36, "crop": 32, "workers": 0}
    whole = settings["model"].get("head") == "none"
    channels = build_backbone("test_resnet").channels
    settings["model"] |= {
        "backbone": "test_resnet",
        "pretrained": False,
        "embedding_size": channels if whole else 16,
    }
    batches = settings["batches"]
    settings["batches"] = {"size": 8} if "size" in batches else {"classes": 4, "samples": 2}
    for phase in settings["phases"]:
        phase["epochs"] = 1
    settings["evaluation"] |= {"split": "test", "ks": [1, 2]}
    return parse_recipe(settings)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CELLS]
)
def test_it_trains_on_a_tiny_copy_of_its_data(name, roots, tmp_path):
    recipe = shrunk(name, roots[CELLS[name][1]])
    run = train_recipe(recipe, tmp_path)
    history = run.history()
    assert len(history) == len(recipe.phases)
    assert all(math.isfinite(row["loss"]) for row in history)
    assert run.load_checkpoint()[0]["state"]["step"] == 2 * len(recipe.phases)
    assert run.result().classes == Counts(train=4, evaluated=4)
    assert 0 <= run.result().metrics["recall@1"] <= 1
