import json

import pytest
import torch
from support.pictures import pictures

from softwarp.data.splits import SplitPlan, divide
from softwarp.models.backbones import build_backbone
from softwarp.recipe.schema import parse_recipe
from softwarp.training.choice import (
    FOLD_SEED,
    Choice,
    Way,
    choose_candidate,
    fold_recipes,
    made_as,
    read_looks,
    why_frozen,
)
from softwarp.training.own_recipe import settings_for

NAMES = [f"class {number}" for number in range(12)]


def classes(mean, spread=0.0):
    """MAP@R by class, half of them above the mean and half below."""
    return {name: mean + spread * (-1) ** number for number, name in enumerate(NAMES)}


def test_the_best_of_those_that_surely_beat_the_frozen_features_is_chosen():
    values = {
        Way(): classes(0.5),
        Way(4, 0.5): classes(0.52, 0.01),
        Way(4, 1.0): classes(0.53, 0.01),
        Way(8, 1.0): classes(0.55, 0.3),  # better still, but who knows
    }
    choice = choose_candidate(values)
    assert (choice.chosen.epochs, choice.chosen.share) == (4, 1.0)
    assert choice.chosen.difference == pytest.approx(0.03)
    low, high = choice.chosen.interval
    assert 0.02 <= low < 0.03 < high <= 0.04
    assert choice.best.epochs == 8
    assert choice.best.interval[0] < 0
    assert len(choice.candidates) == 4
    assert "4 epochs (+3.0 MAP@R" in choice.sentence()
    assert "12 training classes" in choice.sentence()


def test_the_difference_is_paired_by_class():
    """Classes differ by far more than training changes, and all change alike."""
    choice = choose_candidate({Way(): classes(0.5, 0.4), Way(2, 0.25): classes(0.51, 0.4)})
    assert choice.chosen.epochs == 2
    assert choice.chosen.interval == pytest.approx((0.01, 0.01))
    assert "2 epochs, 25% of the way" in choice.sentence()


def test_a_half_without_a_class_of_two_images_cannot_judge():
    plan = SplitPlan("validation", fold=0, folds=2, fold_seed=FOLD_SEED)
    splits = [*["train"] * 24, *["test"] * 4]
    kept = divide(torch.arange(14).repeat(2).sort().values.numpy(), splits, plan).train
    labels = torch.cat([torch.arange(12), torch.from_numpy(kept).div(2, rounding_mode="floor").unique()])
    assert why_frozen(labels, choosing=False) == ""
    assert "half" in why_frozen(labels, choosing=True)
    assert why_frozen(torch.arange(12).repeat(2), choosing=True) == ""


@pytest.mark.parametrize(
    ("trained", "words"),
    [
        (classes(0.52, 0.3), "the best, 4 epochs: +2.0"),
        (classes(0.4), "none was better"),
        (classes(0.5), "none was better"),  # nor worse
    ],
)
def test_the_frozen_features_stay_unless_they_are_beaten_beyond_chance(trained, words):
    choice = choose_candidate({Way(4, 1.0): trained, Way(): classes(0.5)})
    assert (choice.chosen.epochs, choice.chosen.share) == (0, 0.0)
    assert choice.chosen.difference == 0
    assert "the frozen features" in choice.sentence()
    assert words in choice.sentence()


def test_only_classes_that_all_candidates_judged_count():
    choice = choose_candidate(
        {Way(): classes(0.5) | {"alone": 0.0}, Way(1, 1.0): classes(0.6) | {"other": 1.0}}
    )
    assert choice.classes == 12
    assert choice.chosen.difference == pytest.approx(0.1)


def test_few_classes_that_agree_only_roughly_do_not_choose():
    """Resampled, these four would exclude zero; four values do not."""
    frozen = {"a": 0.5, "b": 0.5, "c": 0.5, "d": 0.5}
    choice = choose_candidate({Way(): frozen, Way(1, 1.0): {"a": 0.51, "b": 0.51, "c": 0.52, "d": 0.6}})
    assert choice.chosen.epochs == 0
    assert choose_candidate({Way(): {"a": 0.5}, Way(1, 1.0): {"a": 0.9}}).chosen.epochs == 0


def test_looks_of_folds_are_put_together_by_class():
    histories = [
        [{"epoch": 1}, {"epoch": 2, "interpolations": {"0.5": {name: 0.2}, "1.0": {name: 0.1}}}]
        for name in ("a", "b")
    ]
    assert read_looks(histories) == {Way(2, 0.5): {"a": 0.2, "b": 0.2}, Way(2, 1.0): {"a": 0.1, "b": 0.1}}


@pytest.fixture
def recipe(tmp_path):
    root = pictures(tmp_path, *(f"{name}/{number}.jpg" for name in NAMES for number in range(3)))
    settings = settings_for(root, protocol="validation")
    settings["optimizer"]["wise_ft"] = 0.9
    settings["phases"][0]["epochs"] = 12
    return parse_recipe(settings)


def test_folds_train_the_recipe_and_look_at_the_other_half(recipe):
    folds = fold_recipes(recipe, 9, every=3, epochs=12)
    assert [each.evaluation.fold for each in folds] == [0, 1]
    for each in folds:
        assert each.evaluation.fold_of == each.evaluation.split == "validation"
        assert each.evaluation.every == 3
        assert each.batches.classes == 4  # of nine classes one half has four
        assert each.optimizer.wise_ft is None
        assert (each.phases, each.model, each.loss) == (recipe.phases, recipe.model, recipe.loss)


@pytest.mark.parametrize(("epochs", "share", "wise_ft"), [(0, 0.0, None), (3, 0.75, 0.75), (12, 1.0, None)])
def test_the_final_model_is_trained_as_the_chosen_one_was(recipe, epochs, share, wise_ft):
    final = made_as(recipe, Way(epochs, share))
    assert final.phases[0].epochs == epochs
    assert final.optimizer.wise_ft == wise_ft
    assert final.evaluation == recipe.evaluation
    assert parse_recipe(final.model_dump()) == final


def test_without_epochs_the_features_are_taken_as_they_are():
    """A head of principal directions of the training images would leave less of other classes."""
    recipe = parse_recipe(
        {
            "model": {"backbone": "small_conv", "embedding_size": 16, "head_init": "pca"},
            "loss": {"name": "warped_softmax", "proxy_init": "means"},
            "phases": [{"epochs": 4, "learning_rate": 0.1, "proxy_travel": 1.0}],
        }
    )
    trained, frozen = made_as(recipe, Way(2, 1.0)), made_as(recipe, Way())
    assert trained.model == recipe.model
    assert (frozen.phases[0].epochs, frozen.model.head) == (0, "none")
    assert frozen.model.embedding_size == build_backbone("small_conv").channels


@pytest.mark.parametrize(("last", "rising"), [(0.6, True), (0.54, False)])
def test_a_curve_that_ends_at_its_best_is_still_rising(last, rising):
    values = {Way(): classes(0.5), Way(4, 1.0): classes(0.55, 0.01), Way(8, 0.5): classes(last, 0.01)}
    assert choose_candidate(values).still_rising() == rising
    del values[Way(4, 1.0)]
    assert not choose_candidate(values).still_rising()  # a single look shows no curve


def on_both(images, held_out_classes):
    """The choice between the frozen features and one candidate, of 50% everywhere if nothing is said."""
    frozen = Way()
    return choose_candidate(
        {frozen: classes(0.5), Way(4, 1.0): held_out_classes}, {frozen: classes(0.5), Way(4, 1.0): images}
    )


@pytest.mark.parametrize(
    ("images", "held_out_classes", "epochs"),
    [
        (classes(0.6, 0.01), classes(0.55, 0.01), 4),
        (classes(0.6, 0.01), classes(0.5, 0.1), 4),  # neither better nor worse
        (classes(0.6, 0.01), classes(0.49, 0.1), 4),  # worse, but perhaps by chance
        (classes(0.6, 0.01), classes(0.45, 0.01), 0),  # surely worse
        (classes(0.6, 0.4), classes(0.55, 0.01), 0),  # better, but perhaps by chance
        (classes(0.45, 0.01), classes(0.7, 0.01), 0),  # what is judged is worse
    ],
)
def test_in_a_closed_set_held_out_images_decide_and_held_out_classes_may_object(
    images, held_out_classes, epochs
):
    assert on_both(images, held_out_classes).chosen.epochs == epochs


def test_in_a_closed_set_the_best_on_held_out_images_is_chosen():
    images = {Way(): classes(0.5), Way(2, 1.0): classes(0.7, 0.01), Way(4, 1.0): classes(0.6, 0.01)}
    others = {Way(): classes(0.5), Way(2, 1.0): classes(0.5, 0.01), Way(4, 1.0): classes(0.9, 0.01)}
    choice = choose_candidate(others, images)
    assert (choice.chosen.epochs, choice.best.epochs) == (2, 2)
    assert choice.chosen.images.map_at_r == pytest.approx(0.7)
    assert choice.chosen.map_at_r == pytest.approx(0.5)
    assert Choice.model_validate_json(choice.model_dump_json(by_alias=True)) == choice


def test_the_sentence_of_a_closed_set_has_both_differences():
    said = on_both(classes(0.6, 0.01), classes(0.52, 0.01)).sentence()
    assert "4 epochs (+10.0 MAP@R" in said
    assert "held-out images" in said
    assert "; +2.0 MAP@R on 12 training classes" in said
    assert said.count("95% interval") == 2
    worse = on_both(classes(0.6, 0.01), classes(0.4, 0.01)).sentence()
    assert "the frozen features" in worse
    assert "loses on new classes" in worse
    assert "-10.0" in worse
    assert "beyond chance" in on_both(classes(0.6, 0.4), classes(0.5)).sentence()


def test_a_choice_of_before_closed_sets_is_read():
    choice = choose_candidate({Way(): classes(0.5), Way(4, 1.0): classes(0.6, 0.01)})
    content = json.loads(choice.model_dump_json(by_alias=True))
    for each in (content["chosen"], content["best"], *content["candidates"]):
        del each["images"]
    assert Choice.model_validate(content) == choice


def test_looks_at_held_out_images_are_read_by_their_own_key():
    rows = [{"epoch": 2, "interpolations": {"1.0": {"a": 0.1}}, "held_out_images": {"1.0": {"b": 0.2}}}]
    assert read_looks([rows], "held_out_images") == {Way(2, 1.0): {"b": 0.2}}
