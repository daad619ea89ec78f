"""`softwarp train --data X --ship`: the chosen model once more, on all classes."""

import pytest
from support.own_images import QUICK, small_crops  # noqa: F401
from support.pictures import stripes
from typer.testing import CliRunner

import softwarp
from softwarp.cli import app
from softwarp.recipe.overrides import write_out
from softwarp.runs.run import Run

WORDS = (*QUICK, "phases.0.epochs=1")
CAVEAT = "measured on 2 held-out classes by a model that did not see them; this model has seen all 8 classes"


def answer(*words):
    return CliRunner().invoke(app, [*words])


def whole(text):
    """Without the ends of lines."""
    return " ".join(text.split())


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """A run, its files before it was shipped, and what the second command said."""
    place = tmp_path_factory.mktemp("ship")
    root, folder = stripes(place / "images", classes=8, images=3), place / "run"
    words = ("train", "--data", str(root), "--output", str(folder), *WORDS)
    first = answer(*words)
    assert first.exit_code == 0, first.output
    before = {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}
    return root, folder, before, answer(*words, "--ship")


def test_it_is_made_in_the_same_way_on_all_classes_and_the_measured_model_stays(shipped):
    _, folder, before, said = shipped
    assert said.exit_code == 0, said.output
    assert {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()} == before
    held_out, result = Run(folder).result(), Run(folder / "ship").result()
    assert (held_out.classes.train, held_out.classes.evaluated) == (6, 2)
    assert (result.classes.train, result.images.train, result.classes.evaluated) == (8, 24, 0)
    assert result.held_out == held_out
    assert result.epochs == held_out.epochs
    measured, made = (write_out(Run(each).recipe()) for each in (folder, folder / "ship"))
    assert measured.pop("evaluation") != made.pop("evaluation")
    assert measured == made


def test_the_last_lines_say_which_folder_to_search_with(shipped):
    root, folder, _, said = shipped
    *_, ship, report, index = said.stdout.strip().splitlines()
    assert ship == f"shipped: {folder / 'ship'}, the model to search with: {CAVEAT}"
    assert report == f"report: softwarp report {folder}"
    assert index == f"next: softwarp index {folder / 'ship'} {root} -o images.index"
    assert "3 unseen" not in said.stdout
    assert "2 unseen test classes" in whole(said.stdout)  # the table is that of the measured model


def test_python_returns_it_with_the_held_out_figures(shipped, monkeypatch):
    root, folder, _, _ = shipped
    monkeypatch.setattr("softwarp.training.train.work_through", None)  # all of it is there
    model = softwarp.train(root, *WORDS, ship=True, output=folder, on_event=lambda event: None)
    assert model.folder == folder / "ship"
    assert model.result.held_out == softwarp.load(folder).result
    assert CAVEAT in str(model.result)
    assert f"MAP@R {100 * model.result.held_out.metrics['map@r']:.1f}" in str(model.result)
    assert model.choice == softwarp.load(folder).choice


def test_its_card_its_report_and_its_folder_for_the_hub_say_so(shipped, tmp_path):
    _, folder, _, _ = shipped
    run, model = Run(folder / "ship"), softwarp.load(folder / "ship")
    model.save_pretrained(tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text()
    assert CAVEAT[1:] in card
    assert "MAP@R (of the held-out model)" in card
    assert f"| MAP@R | {100 * run.result().held_out.metrics['map@r']:.1f} |" in card
    assert "24 images of 8 classes for training" in card
    assert answer("report", str(folder), str(folder / "ship"), "-o", str(tmp_path / "a.html")).exit_code == 0
    assert CAVEAT in whole((tmp_path / "a.html").read_text())


def test_without_held_out_classes_it_is_refused_before_anything_is_written(shipped, tmp_path):
    words = ("train", "--data", str(shipped[0]), "--output", str(tmp_path / "run"), *WORDS)
    with pytest.raises(ValueError, match=r"evaluation\.fold"):
        raise answer(*words, "evaluation.fold=0", "--ship").exception
    assert not (tmp_path / "run").exists()


def test_it_has_nothing_left_to_be_measured_on(shipped):
    with pytest.raises(ValueError, match="judged on no images"):
        raise answer("evaluate", str(shipped[1] / "ship")).exception


def test_a_recipe_is_refused():
    with pytest.raises(ValueError, match="test_classes=none"):
        raise answer("train", "--ship").exception
    with pytest.raises(ValueError, match="test_classes=none"):
        softwarp.train(softwarp.load_recipe("glyphs_warped_softmax"), ship=True, output="x")
