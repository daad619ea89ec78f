"""Recipes that claim the authors' settings have them, to the digit; the values are typed from their code."""

import math

import pytest
import torch
from support.authors_settings import AUTHORS
from support.tiny_runs import tiny

from softwarp.recipe.files import find_recipe, read_recipe
from softwarp.training.job import build_batches
from softwarp.training.train import train_recipe

WARPED = [f"{data}{size}" for data in AUTHORS for size in ("", "_large")]
TWINS = [f"{data}_euclidean_softmax" for data in AUTHORS]


def settings_by_phase(recipe):
    """The settings of the loss as each phase has them."""
    found, settings = [], dict(recipe.loss.settings)
    for phase in recipe.phases:
        settings = settings | phase.loss_settings
        found.append(settings)
    return found


@pytest.mark.parametrize("name", [*WARPED, *TWINS])
def test_rates_epochs_and_batches_are_the_authors(name):
    recipe, authors = read_recipe(find_recipe(name)), AUTHORS[name.split("_")[0]]
    for ours, theirs in zip(recipe.phases, (authors.first, authors.second), strict=True):
        assert ours.epochs == theirs.epochs
        assert ours.learning_rate == theirs.learning_rate
        assert ours.proxy_learning_rate == theirs.proxy_learning_rate
        assert ours.schedule == "constant"
    batches = recipe.batches
    assert (batches.classes, batches.samples, batches.draw) == (
        authors.classes,
        authors.samples,
        "independent",
    )
    optimizer = recipe.optimizer
    assert (optimizer.name, optimizer.eps, optimizer.weight_decay) == ("adam", 1.0, 1e-7)
    assert optimizer.clip_value == 10.0
    assert recipe.model.head_init == ("default" if recipe.data.name == "sop" else "kaiming")


@pytest.mark.parametrize("name", WARPED)
def test_the_warp_is_the_authors(name):
    authors = AUTHORS[name.split("_")[0]]
    found = settings_by_phase(read_recipe(find_recipe(name)))
    for ours, theirs in zip(found, (authors.first, authors.second), strict=True):
        assert ours == {
            "alpha": theirs.alpha,
            "k1": theirs.k1,
            "k2": theirs.k2,
            "scale": theirs.scale,
            "delta": authors.delta,
        }


@pytest.mark.parametrize("name", TWINS)
def test_without_a_warp_the_second_phase_has_the_authors_temperature_too(name):
    """`--warp False` leaves the config's temperatures in place: the followup sets 1.0."""
    authors = AUTHORS[name.split("_")[0]]
    found = settings_by_phase(read_recipe(find_recipe(name)))
    assert found == [{"scale": authors.first.scale}, {"scale": 1.0}]


def test_training_takes_short_batches(tmp_path):
    batches = {"classes": 4, "samples": 16, "draw": "independent"}  # glyphs have 12 images of each
    run = train_recipe(tiny(batches=batches), tmp_path)
    assert all(math.isfinite(row["loss"]) for row in run.history())


def test_the_recipe_s_batches_are_drawn_independently():
    batches = read_recipe(find_recipe("sop")).batches
    labels = torch.arange(100).repeat_interleave(2)
    made = build_batches(batches, labels, seed=0)
    assert made.independent
    assert {len(batch) for batch in made.of_epoch(0)} == {64 * 2}  # two images each, not three
    rounds = build_batches(batches.model_copy(update={"draw": "rounds"}), labels, seed=0)
    assert {len(batch) for batch in rounds.of_epoch(0)} == {64 * 3}
