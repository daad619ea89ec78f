"""Every row of the paper's Table 5: its published figures, and recipes that train on tiny records."""

import math

import pytest
import torch
from support.face_files import write_faces
from typer.testing import CliRunner

from softwarp.cli import app
from softwarp.commands.paper_table import read_paper_table
from softwarp.losses import build_loss
from softwarp.models.backbones import build_backbone
from softwarp.recipe.files import find_recipe, read_recipe, read_settings, recipe_names
from softwarp.recipe.schema import parse_recipe
from softwarp.training.schedule import factor, stretches
from softwarp.training.train import train_recipe

TABLE = read_paper_table(5)
EUCLIDEAN = ("faces_ms1mv2", "faces_euclidean_softmax")  # those that the authors' fork trains
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
        network = "iresnet100_wide_stem" if name in EUCLIDEAN else "iresnet100"
        assert (recipe.data.name, recipe.model.backbone) == ("records", network)
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


@pytest.mark.parametrize("name", EUCLIDEAN)
def test_network_pixels_and_proxies_are_those_of_the_authors_fork(name):
    """Typed from Face-Recognition of their code: the file and what it says."""
    recipe = read_recipe(find_recipe(name))
    with torch.device("meta"):
        backbone = build_backbone(recipe.model.backbone)
    stem = (
        backbone.conv1
    )  # backbones/iresnet.py: Conv2d(3, 64, kernel_size=7, stride=2, padding=1, bias=False)
    assert (stem.kernel_size, stem.stride, stem.padding, stem.bias) == ((7, 7), (2, 2), (1, 1), None)
    assert backbone.layer1[0].conv2.stride == (
        1,
        1,
    )  # backbones/iresnet.py: _make_layer(block, 64, layers[0])
    assert [len(getattr(backbone, f"layer{number}")) for number in range(1, 5)] == [3, 13, 30, 3]
    assert recipe.model.embedding_size == 512  # config.embedding_size
    assert recipe.model.train_normalization == "imagenet"  # dataset.py: [0.485, ...], [0.229, ...]
    assert (backbone.mean, backbone.std) == ((0.5,) * 3, (0.5,) * 3)  # verification.py: (x / 255 - 0.5) / 0.5
    torch.manual_seed(0)
    proxies = build_loss(recipe.loss.name, 2000, 512, **recipe.loss.settings).proxies
    assert float(proxies.detach().std()) == pytest.approx(0.01, rel=0.01)  # partial_fc.py: normal(0, 0.01)
    assert (recipe.loss.sample_rate, recipe.loss.weight) == (1.0, 10.0)  # config.sample_rate; 10*loss
    optimizer = recipe.optimizer
    assert (optimizer.name, optimizer.momentum) == ("sgd", 0.9)
    assert optimizer.weight_decay == 0.0000715  # config.Mwdecay
    assert optimizer.proxy_weight_decay == 0.000001275  # config.Lwdecay
    assert {(phase.learning_rate, phase.proxy_learning_rate) for phase in recipe.phases} == {(0.2, 10.0)}
    assert recipe.precision == "fp16"
    first = {"alpha": 15.75, "k1": 0.30, "k2": 1.075, "scale": 3.15}  # config.alpha, k1, k2, Temp
    said = first if name == "faces_ms1mv2" else {"scale": 3.15}
    assert said.items() <= recipe.loss.settings.items()


MARGINS = {  # CosFace's 0.35 is its paper's; insightface's code has 0.40
    "faces_arcface": {"margin": 0.5, "scale": 64.0},
    "faces_cosface": {"margin": 0.35, "scale": 64.0},
    "faces_normalized_softmax": {"temperature": 1 / 64},
    "faces_sphereface": {"margin": 4},
    "faces_magface": {"scale": 64.0, "lower_margin": 0.45, "upper_margin": 0.8},
}


@pytest.mark.parametrize("name", MARGINS)
def test_losses_of_insightface_start_and_move_as_its_code_does(name):
    """Typed from configs/ms1mv2_r100.py and partial_fc_v2.py of arcface_torch."""
    recipe = read_recipe(find_recipe(name))
    assert MARGINS[name].items() <= recipe.loss.settings.items()
    torch.manual_seed(0)
    proxies = build_loss(recipe.loss.name, 2000, 512, **recipe.loss.settings).proxies
    assert float(proxies.detach().std()) == pytest.approx(0.01, rel=0.01)
    assert (recipe.optimizer.momentum, recipe.optimizer.weight_decay) == (0.9, 5e-4)
    assert (recipe.phases[0].learning_rate, recipe.phases[0].proxy_learning_rate) == (0.1, 0.1)
    assert recipe.model.train_normalization == "same"
    with torch.device("meta"):
        backbone = build_backbone(recipe.model.backbone)
    assert (backbone.conv1.kernel_size, backbone.conv1.stride) == ((3, 3), (1, 1))


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
    run = train_recipe(parse_recipe(settings), tmp_path / "run")
    assert len(run.history()) == len(settings["phases"])
    assert all(math.isfinite(row["loss"]) for row in run.history())
