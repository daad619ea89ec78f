"""A loss in a file of one's own: named on the command line and in recipes, held to its file."""

import re
import textwrap
from pathlib import Path

import pytest
import torch
import yaml
from support.tiny_runs import tiny
from typer.testing import CliRunner

import softwarp
from softwarp.cli import app
from softwarp.export.model_card import public_settings
from softwarp.fair.each_loss import check_codes, parse_losses, recipe_for_each
from softwarp.files import write_json
from softwarp.losses import LOSSES, build_loss, card_of, find_loss
from softwarp.losses.contract import Loss, class_vectors_of, settings_of
from softwarp.losses.own_file import loss_label
from softwarp.recipe.files import find_recipe, read_settings
from softwarp.recipe.load import load_recipe, run_name
from softwarp.recipe.overrides import change_loss, dump_recipe, with_code, write_out
from softwarp.recipe.schema import parse_recipe
from softwarp.runs.run import Run
from softwarp.training.train import train_recipe

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_loss.py"


def class_of(name):
    """The source of the example's loss, under another name and without a line in LOSSES."""
    text = EXAMPLE.read_text()
    start, end = text.index("import sys"), text.index("LOSSES[")
    return text[start:end].replace("StudentLoss", name)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my_loss.py"
    path.write_text(class_of("MyLoss"))
    return path


@pytest.fixture
def name(file):
    return f"{file}:MyLoss"


def own(name, **changes):
    return with_code(tiny(loss={"name": name, "settings": {"freedom": 2.0}}, phases=[PHASE], **changes))


PHASE = {"epochs": 1, "learning_rate": 0.005, "proxy_learning_rate": 0.02}


def test_it_is_built_and_described_like_any_other(name):
    loss = build_loss(name, 7, 4, freedom=2.0)
    assert isinstance(loss, Loss)
    assert loss.freedom == 2.0
    assert card_of(name).title == "Student softmax"
    assert settings_of(find_loss(name)) == {"freedom": "5.0"}
    assert class_vectors_of(loss).shape == (7, 4)
    loss(torch.randn(6, 4), torch.arange(6)).backward()
    assert name not in LOSSES
    with pytest.raises(ValueError, match=r"'fredom'.*freedom"):
        build_loss(name, 7, 4, fredom=2.0)


def test_a_recipe_names_it_with_its_settings_and_its_hash(file, name, monkeypatch):
    monkeypatch.chdir(file.parent)
    recipe = load_recipe("glyphs_euclidean_softmax", "loss.name=my_loss.py:MyLoss", "loss.settings.freedom=3")
    assert recipe.loss.name == name
    assert recipe.loss.settings == {"freedom": 3}
    assert re.fullmatch(r"[0-9a-f]{64}", recipe.loss.code)
    assert parse_recipe(yaml.safe_load(dump_recipe(recipe))) == recipe
    assert load_recipe("glyphs_euclidean_softmax").loss.code is None
    assert "code" not in write_out(load_recipe("glyphs_euclidean_softmax"))["loss"]


def test_a_yaml_recipe_may_name_it(file, name, tmp_path):
    settings = change_loss(read_settings(find_recipe("glyphs_euclidean_softmax")), name)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(settings))
    recipe = softwarp.load_recipe(tmp_path / "recipe.yaml")
    assert (recipe.loss.name, recipe.loss.settings) == (name, {"freedom": 5.0})


def test_folders_and_tables_have_no_path_of_it(name):
    assert run_name(Path("cub_lite.yaml"), [f"loss.name={name}"]) == "cub_lite-my_loss-MyLoss"
    assert public_settings(own(name))["loss"]["name"] == "my_loss.py:MyLoss"
    assert loss_label("arcface") == "arcface"


@pytest.mark.parametrize(
    ("given", "causes"),
    [
        ("{folder}/my_los.py:MyLoss", ["my_los.py", "no file"]),
        ("{folder}/my_loss.py", [":CLASS"]),
        ("{folder}/my_loss.py:MyLos", ["my_loss.py", "MyLos", "did you mean MyLoss"]),
        ("{folder}/my_loss.py:Card", ["Card", "MyLoss"]),
        ("{folder}/bare.py:Bare", ["bare.py", "distance, card, class_vectors", "own_loss.py"]),
        ("{folder}/bare.py:Carded", ["Carded", "a Card"]),
        ("{folder}/broken.py:MyLoss", ["broken.py", "NameError", "undefined_name"]),
        ("{folder}/syntax.py:MyLoss", ["syntax.py", "SyntaxError"]),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_the_cure(file, given, causes):
    bare = """
        from torch import nn

        class Bare(nn.Module):
            pass

        class Carded(nn.Module):
            distance, class_vectors, card = "cosine", None, "none"
    """
    (file.parent / "bare.py").write_text(textwrap.dedent(bare))
    (file.parent / "broken.py").write_text("undefined_name\n")
    (file.parent / "syntax.py").write_text("class MyLoss(:\n")
    with pytest.raises(ValueError) as caught:
        load_recipe("glyphs_euclidean_softmax", f"loss.name={given.format(folder=file.parent)}")
    assert "\n" not in str(caught.value)
    assert all(cause in str(caught.value) for cause in causes), caught.value


def test_a_loss_is_told_from_a_recipe(name):
    with pytest.raises(ValueError, match=r"loss\.name=.*my_loss\.py:MyLoss"):
        load_recipe(name)


def test_the_command_line_explains_and_shows_it(name):
    told = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["losses", name], catch_exceptions=False)
    assert "Student softmax" in told.output
    assert "freedom = 5.0" in told.output
    shown = CliRunner().invoke(app, ["show", f"loss.name={name}", "seed=3"], catch_exceptions=False)
    assert yaml.safe_load(shown.stdout)["loss"]["settings"] == {"freedom": 5.0}


def test_it_trains_and_what_was_trained_stays_readable_without_it(file, name, tmp_path):
    folder = tmp_path / "run"
    run = train_recipe(own(name), folder, resume=True)
    assert run.result().name == "my_loss-MyLoss"
    assert train_recipe(own(name), folder, resume=True).finished()
    before = dump_recipe(run.recipe())
    file.write_text("raise RuntimeError('reading a run must not run its loss')\n")
    assert dump_recipe(Run(folder).recipe()) == before
    file.unlink()
    assert dump_recipe(Run(folder).recipe()) == before
    assert softwarp.load(folder).distance == "euclidean"


def test_a_file_that_has_changed_is_refused_on_resume_and_with_its_recipe(file, name, tmp_path):
    recipe, folder = own(name), tmp_path / "run"
    Run.create(folder, recipe)
    file.write_text(file.read_text().replace("freedom > 0", "freedom > 1") + "\n# changed\n")
    with pytest.raises(ValueError, match=r"my_loss\.py has changed.*loss\.code"):
        train_recipe(recipe, tmp_path / "other")
    assert not (tmp_path / "other").exists()
    (folder / "checkpoint.pt").touch()
    with pytest.raises(ValueError, match=r"loss\.code is .* there and .* here.*--fresh"):
        train_recipe(own(name), folder, resume=True)
    again = load_recipe(folder / "recipe.yaml", "loss.code=null")
    assert again.loss.code == own(name).loss.code != recipe.loss.code


def test_an_edited_file_is_read_anew(file, name):
    assert settings_of(find_loss(name)) == {"freedom": "5.0"}
    file.write_text(file.read_text().replace("freedom: float = 5.0", "freedom: float = 7.0"))
    assert settings_of(find_loss(name)) == {"freedom": "7.0"}


def test_a_study_with_the_file_as_it_was_is_not_continued(file, name, tmp_path):
    before = recipe_for_each(load_recipe("glyphs_euclidean_softmax"), [name])
    (found,) = before
    write_json(tmp_path / found / "search" / "study.json", {"recipe": write_out(before[found])})
    check_codes(tmp_path, before)
    file.write_text(file.read_text() + "# changed\n")
    with pytest.raises(ValueError, match=r"my_loss-MyLoss.*changed.*another folder"):
        check_codes(tmp_path, recipe_for_each(load_recipe("glyphs_euclidean_softmax"), [name]))


def test_a_benchmark_holds_it_beside_the_others(name, tmp_path):
    assert parse_losses(f"arcface, {name}") == ["arcface", name]
    recipes = recipe_for_each(load_recipe("glyphs_euclidean_softmax"), ["arcface", name])
    assert list(recipes) == ["arcface", "my_loss-MyLoss"]
    assert recipes["my_loss-MyLoss"].loss.name == name
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "my_loss.py").write_text(class_of("MyLoss"))
    with pytest.raises(ValueError, match="called the same"):
        parse_losses(f"{name},{tmp_path}/more/my_loss.py:MyLoss")
