"""Training on records and on packed shards, as face people do it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.face_files import face_folder, write_faces
from support.tiny_runs import Steps, outcome

from softwarp.data.packing import pack_faces
from softwarp.data.tables import read_table
from softwarp.fair.each_loss import judged_once
from softwarp.losses import build_loss
from softwarp.models.embedder import Embedder
from softwarp.recipe.overrides import dump_recipe
from softwarp.recipe.phases import OptimizerPart, Phase
from softwarp.recipe.schema import parse_recipe
from softwarp.runs.result import Counts
from softwarp.training import train as training
from softwarp.training.optimizer import build_optimizer
from softwarp.training.schedule import factor
from softwarp.training.train import StoppedError, train_recipe
from softwarp.tuning.search import judged_recipe

STREAMS = Path(__file__).parents[1] / "support" / "stream_runs.py"
PHASE = {"epochs": 2, "learning_rate": 0.002, "proxy_learning_rate": 0.02}


def recipe_for(name, root, **changes):
    settings = {
        "data": {"name": name, "root": str(root), "resize": 28, "crop": 28, "workers": 0},
        "model": {"backbone": "test_efficientnet.r160_in1k", "embedding_size": 8},
        "loss": {"name": "warped_softmax", "settings": {"alpha": 4.0, "k1": 0.8, "k2": 1.2}},
        "batches": {"size": 8},
        "phases": [PHASE],
        "evaluation": {"test_classes": "none"},
    }
    for key, value in changes.items():
        settings[key] = settings.get(key, {}) | value if isinstance(value, dict) else value
    return parse_recipe(settings)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    root = tmp_path_factory.mktemp("faces")
    table = read_table("folder", face_folder(root / "faces", people=8, images=5, size=28))
    written, _ = pack_faces(table, root / "packed", shard_size=8_000)
    assert written["shards"] > 3
    return root / "packed"


@pytest.fixture
def seen(monkeypatch):
    """The items of each step that is taken."""
    items, take_step = [], training.take_step

    def noted(job, phase, number, batch):
        items.append(batch.items.tolist())
        return take_step(job, phase, number, batch)

    monkeypatch.setattr(training, "take_step", noted)
    return items


def test_records_train_on_everybody_and_nothing_is_judged(tmp_path):
    write_faces(tmp_path / "records", people=6, images=4, size=28)
    run = train_recipe(recipe_for("records", tmp_path / "records"), tmp_path / "run")
    result = run.result()
    assert result.classes == Counts(train=6, evaluated=0)
    assert result.images == Counts(train=24, evaluated=0)
    assert result.metrics.keys() == {"avg_dtp"}
    assert run.items() == []
    held = recipe_for("records", tmp_path / "records", evaluation={"test_classes": "given", "split": "test"})
    assert train_recipe(held, tmp_path / "held").result().classes == Counts(train=4, evaluated=2)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stopped_stream_goes_on_at_the_very_sample(tmp_path, shards, seen, workers):
    whole = train_recipe(recipe_for("shards", shards), tmp_path / "whole")
    expected = [*seen]
    assert len(expected) == 10  # two epochs of five batches
    assert sorted(item for step in expected[:5] for item in step) == list(range(40))
    seen.clear()
    helped = recipe_for("shards", shards, data={"workers": workers})
    with pytest.raises(StoppedError):
        train_recipe(helped, tmp_path / "run", on_event=Steps(7, lambda: signal.raise_signal(signal.SIGINT)))
    assert seen == expected[:7]
    run = train_recipe(helped, tmp_path / "run", resume=True)
    assert seen == expected
    assert outcome(run) == outcome(whole)


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["2:7,2:3", "2:4,1:3,2:2"])
def test_ranks_divide_the_stream_and_resume_with_another_number(tmp_path, shards, seen, plan):
    train_recipe(recipe_for("shards", shards), tmp_path / "whole")
    (tmp_path / "recipe.yaml").write_text(dump_recipe(recipe_for("shards", shards)))
    steps = sum(int(part.split(":")[1]) for part in plan.split(","))
    subprocess.run(
        [sys.executable, STREAMS, tmp_path, plan], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert json.loads((tmp_path / "items.json").read_text()) == seen[:steps]


def test_the_cache_of_decoded_files_is_refused(shards, tmp_path):
    with pytest.raises(ValueError, match=r"data\.cache"):
        train_recipe(recipe_for("shards", shards, data={"cache": True}), tmp_path / "run")


def test_a_weighted_loss_scales_gradients_alone(tmp_path, shards):
    """With plain SGD, ten times the loss at a tenth of the rates takes the same way."""
    rates = {"learning_rate": 0.02, "proxy_learning_rate": 0.2}
    tenth = {name: rate / 10 for name, rate in rates.items()}
    runs = []
    for weight, phase in ((1.0, rates), (10.0, tenth)):
        recipe = recipe_for(
            "shards",
            shards,
            loss={"weight": weight},
            optimizer={"name": "sgd", "clip_value": None},
            phases=[{"epochs": 1, **phase}],
        )
        runs.append(train_recipe(recipe, tmp_path / str(weight)))
    losses = [[row["loss"] for row in run.history()] for run in runs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    weights = [run.load_model() for run in runs]
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-3, atol=1e-4)


def test_gradients_are_clipped_by_their_norm(tmp_path, shards):
    """A step of plain SGD is as long as the rate times that norm, for the model alone."""
    moved = {}
    for norm in (None, 0.5, 0.25):
        optimizer = {"name": "sgd", "momentum": 0.0, "clip_value": None, "clip_norm": norm}
        recipe = recipe_for(
            "shards", shards, optimizer=optimizer, batches={"size": 40}, phases=[{**PHASE, "epochs": 1}]
        )
        torch.manual_seed(recipe.seed)
        start = dict(Embedder("test_efficientnet.r160_in1k", 8).named_parameters())
        final = train_recipe(recipe, tmp_path / str(norm)).load_model()
        moved[norm] = (
            sum(float((final[name] - each.detach()).square().sum()) for name, each in start.items()) ** 0.5
        )
    assert moved[0.5] == pytest.approx(PHASE["learning_rate"] * 0.5, rel=1e-3)
    assert moved[0.25] == pytest.approx(PHASE["learning_rate"] * 0.25, rel=1e-3)
    assert moved[None] > 2 * moved[0.5]


def test_proxies_may_decay_otherwise_than_the_model():
    model, loss = Embedder("small_conv", 8), build_loss("arcface", 3, 8)
    groups = build_optimizer(OptimizerPart(name="sgd", weight_decay=0.3), model, loss)[0].param_groups
    assert [group["weight_decay"] for group in groups] == [0.3, 0.3, 0.3]
    settings = OptimizerPart(name="sgd", weight_decay=0.3, proxy_weight_decay=0.0)
    groups = build_optimizer(settings, model, loss)[0].param_groups
    assert [group["weight_decay"] for group in groups] == [0.3, 0.3, 0.0]


def test_a_polynomial_may_span_phases():
    rates = {"learning_rate": 1, "proxy_learning_rate": 1, "schedule": "polynomial"}
    alone = Phase(epochs=4, **rates)
    assert [factor(alone, epoch) for epoch in (0, 1, 2, 4)] == [1, 0.5625, 0.25, 0]
    later = Phase(epochs=2, span=(2, 4), power=3, **rates)
    assert [factor(later, epoch) for epoch in (0, 1, 2)] == [0.125, 0.015625, 0]
    with pytest.raises(ValueError, match="leaves no room"):
        Phase(epochs=3, span=(2, 4), **rates)


def test_work_that_compares_models_refuses_a_recipe_that_judges_nothing(tmp_path):
    recipe = recipe_for("records", tmp_path)
    for refuse in (judged_once, lambda each: judged_recipe(each, objective="map@r", prune=False)):
        with pytest.raises(ValueError, match="test_classes=given"):
            refuse(recipe)


def test_what_cannot_be_is_refused(tmp_path):
    for changes, named in (
        ({"evaluation": {"every": 1}}, "judges nothing"),
        ({"optimizer": {"clip_norm": 5.0}}, "clip_value"),
    ):
        with pytest.raises(ValueError, match=named):
            recipe_for("records", tmp_path, **changes)
