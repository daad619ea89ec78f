import yaml
from typer.testing import CliRunner

from softwarp.cli import app
from softwarp.losses import card_of
from softwarp.recipe.files import find_recipe, read_settings
from softwarp.recipe.loss_change import explain_change
from softwarp.recipe.schema import parse_recipe


def test_a_change_of_loss_says_what_comes_from_where():
    settings = read_settings(find_recipe("cub_proxy_nca_pp"))
    said, warning = explain_change(settings, "triplet")
    ours, theirs = said.split("; from `softwarp losses triplet`: ")
    assert ours.startswith("from the recipe: ")
    for part in ("data", "epochs", "adam with eps 1", "batches of 8 x 4"):
        assert part in ours
    card = card_of("triplet")
    assert f"{card.proxy_rate_ratio:g} times the head's rate" in theirs
    assert "{} classes x {} samples".format(*card.training.batch) in theirs
    assert f", {card.training.optimizer}" in theirs
    assert warning.startswith("optimizer.eps 1 suits few losses, and triplet")
    assert explain_change(settings, "proxy_nca_pp") == []
    assert len(explain_change(settings, "euclidean_softmax")) == 1  # published with eps 1, too
    settings["optimizer"] = {"name": "sgd"}
    (said,) = explain_change(settings, "triplet")
    assert "sgd, batches" in said
    (said,) = explain_change(read_settings(find_recipe("cub_hist")), "proxy_anchor")
    assert "adam with eps 1e-08, batches of 32 images" in said


def test_a_change_of_loss_is_reported_beside_the_output():
    shown = CliRunner().invoke(app, ["show", "cub_proxy_nca_pp", "loss.name=triplet"])
    assert shown.exit_code == 0
    assert parse_recipe(yaml.safe_load(shown.stdout)).loss.name == "triplet"
    said, warning = shown.stderr.splitlines()
    assert "softwarp losses triplet" in said
    assert "optimizer.eps 1" in warning
    assert not CliRunner().invoke(app, ["show", "cub_proxy_nca_pp"]).stderr
