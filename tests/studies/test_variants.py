"""Variants of a recipe: trained with several seeds, resumed, kept when they blow up, summarised."""

import pytest
from support.results import result
from support.tiny_runs import PHASE, Steps, tiny

from softwarp.runs.run import Run
from softwarp.studies.variants import (
    Outcome,
    about_trainings,
    loss_setting,
    settings_of_words,
    summarise_variants,
    train_variants,
    with_loss_settings,
)
from softwarp.training import train as training
from softwarp.training.train import StoppedError

EVALUATION = {"ks": [1], "clustering": False}
BASE = tiny(phases=[{**PHASE, "epochs": 3}], evaluation=EVALUATION).model_dump(mode="json")
METRICS = ("recall@1", "avg_dtp")


def stop():
    raise StoppedError


def blow_up_in_epoch(monkeypatch, number):
    """Let a gradient be infinite in that epoch, of six steps."""
    steps = iter(range(1000))
    finite = training.gradients_are_finite
    monkeypatch.setattr(
        training, "gradients_are_finite", lambda job: next(steps) < 6 * (number - 1) + 2 and finite(job)
    )


def test_every_variant_has_every_seed_and_a_stopped_study_resumes(tmp_path):
    variants = {f"{alpha:g}": with_loss_settings(BASE, alpha=alpha) for alpha in (1.0, 4.0)}
    with pytest.raises(StoppedError):
        train_variants(variants, tmp_path, seeds=2, base=BASE, on_event=Steps(20, stop))
    finished = Run(tmp_path / "1" / "seed-0")
    before = (finished.folder / "result.json").stat().st_mtime_ns
    found = train_variants(variants, tmp_path, seeds=2, base=BASE)
    assert (finished.folder / "result.json").stat().st_mtime_ns == before
    assert {name: [each.result.seed for each in outcomes] for name, outcomes in found.items()} == {
        "1": [0, 1],
        "4": [0, 1],
    }
    assert finished.recipe().loss.settings["alpha"] == 1.0
    assert not list(tmp_path.glob("**/checkpoint*"))
    summary = summarise_variants(found, METRICS)
    seeds = [each.result.metrics["recall@1"] for each in found["4"]]
    assert summary["4"]["seeds"]["recall@1"] == seeds
    assert summary["4"]["mean"]["recall@1"] == pytest.approx(sum(seeds) / 2)
    assert [row["epoch"] for row in summary["4"]["avg_dtp_by_epoch"]] == [1, 2, 3]
    assert found["4"][0].result.metrics["separability_ratio"] > 0
    assert "root" not in about_trainings(found, BASE)["recipe"]["data"]


def test_a_folder_with_other_settings_is_refused(tmp_path):
    train_variants({"a": with_loss_settings(BASE)}, tmp_path, seeds=1, base=BASE)
    shorter = BASE | {"phases": [PHASE | {"epochs": 2}]}
    with pytest.raises(ValueError, match=r"phases\.0\.epochs is 3 there and 2 here"):
        train_variants({"a": with_loss_settings(shorter)}, tmp_path, seeds=1, base=shorter)


@pytest.mark.parametrize("epoch", [1, 3])
def test_a_blow_up_counts_with_its_last_finite_epoch(tmp_path, monkeypatch, epoch):
    expected = train_variants(
        {"a": with_loss_settings(BASE | {"phases": [PHASE | {"epochs": epoch - 1}]})},
        tmp_path / "short",
        seeds=1,
        base=BASE,
    )["a"][0]
    blow_up_in_epoch(monkeypatch, epoch)
    variant = {"a": with_loss_settings(BASE)}
    (found,) = train_variants(variant, tmp_path / "long", seeds=1, base=BASE)["a"]
    assert f"epoch {epoch}" in found.blew_up
    assert not list(tmp_path.glob("**/checkpoint*"))
    assert found.result.metrics == expected.result.metrics
    assert [row["loss"] for row in found.history] == [row["loss"] for row in expected.history]
    row = summarise_variants({"a": [found]}, METRICS)["a"]
    assert list(row["blew_up"]) == ["0"]
    monkeypatch.undo()
    again = train_variants(variant, tmp_path / "long", seeds=1, base=BASE)["a"][0]
    assert again.result == found.result  # what blew up is not trained again


def test_seeds_that_ended_early_leave_the_curve_to_the_others():
    def outcome(*distances, blew_up=""):
        history = [{"epoch": place + 1, "avg_dtp": value} for place, value in enumerate(distances)]
        return Outcome(result(metrics={"avg_dtp": distances[-1]}), history, blew_up)

    row = summarise_variants({"a": [outcome(1.0, 2.0, 6.0), outcome(3.0, blew_up="inf")]}, ("avg_dtp",))["a"]
    assert [(each["epoch"], each["mean"]) for each in row["avg_dtp_by_epoch"]] == [
        (1, 2.0),
        (2, 2.0),
        (3, 6.0),
    ]
    assert row["avg_dtp_by_epoch"][0]["deviation"] == pytest.approx(2**0.5)
    assert row["mean"]["avg_dtp"] == 4.5
    assert row["blew_up"] == {"1": "inf"}


def test_a_setting_holds_in_every_phase():
    two = tiny().model_dump(mode="json")
    assert two["phases"][1]["loss_settings"] == {"alpha": 2.0}
    recipe = with_loss_settings(two, alpha=7.0)
    assert recipe.loss.settings == {"alpha": 7.0, "k1": 0.8, "k2": 1.2, "scale": 1.0}
    assert [phase.loss_settings for phase in recipe.phases] == [{}, {}]


def test_words_choose_the_recipe_and_overrule_what_the_study_says():
    always = ("evaluation.split=validation",)
    glyphs = ("data.max_classes=300",)
    plain = settings_of_words((), glyphs=glyphs, always=always)
    assert (plain["data"]["max_classes"], plain["evaluation"]["split"]) == (300, "validation")
    other = settings_of_words(("cub", "evaluation.split=test"), glyphs=glyphs, always=always)
    assert "max_classes" not in other["data"]
    assert other["evaluation"]["split"] == "test"
    quick = settings_of_words(("phases.0.epochs=5",), glyphs=glyphs, quick=True)
    assert quick["data"]["max_classes"] < 300
    assert [phase["epochs"] for phase in quick["phases"]] == [5, 2]
    with pytest.raises(ValueError, match="cub and cars"):
        settings_of_words(("cub", "cars"))


def test_a_setting_that_is_measured_or_missing_cannot_be_varied():
    assert loss_setting(BASE, "alpha") == 4.0
    assert loss_setting(BASE, "delta") == 1.0  # the default of the loss
    with pytest.raises(ValueError, match=r"auto.*loss\.settings\.alpha="):
        loss_setting(BASE | {"loss": {"name": "warped_softmax", "settings": {"alpha": "auto"}}}, "alpha")
    with pytest.raises(ValueError, match=r"alpha of proxy_nca_pp.*None"):
        loss_setting(BASE | {"loss": {"name": "proxy_nca_pp"}}, "alpha")


def test_a_wrong_setting_leaves_no_folder_behind(tmp_path):
    with pytest.raises(ValueError, match="alpa"):
        train_variants({"0": with_loss_settings(BASE, alpa=3.0)}, tmp_path / "study", seeds=1, base=BASE)
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    "change",
    ["evaluation.avg_dtp_images=0", "evaluation={ks: [2], metric: map@r}", "evaluation.test_classes=none"],
)
def test_what_a_study_shows_must_be_measured(change):
    with pytest.raises(ValueError, match=r"ks.*avg_dtp_images.*test_classes"):
        settings_of_words((change,))
