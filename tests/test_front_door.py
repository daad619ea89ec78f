"""The front door, `import softwarp`: from images to a model, figures and a comparison."""

import logging
import subprocess
import sys

import numpy as np
import pytest
import torch
from support.own_images import QUICK, small_crops  # noqa: F401
from support.pictures import stripes

import softwarp
from softwarp.events import Note, Progress
from softwarp.runs.repeats import read_repeats
from softwarp.training.train import StoppedError

ONCE = (*QUICK, "phases.0.epochs=1")


class Frame(dict):
    """As much of a DataFrame as is needed."""

    @property
    def columns(self):
        return list(self)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return stripes(tmp_path_factory.mktemp("front") / "images", classes=10, images=4, side=40)


@pytest.fixture(scope="module")
def trained(images):
    """The model, and what was heard while it was made."""
    heard = []
    return softwarp.train(images, *ONCE, output=images.parent / "run", on_event=heard.append), heard


def test_importing_it_loads_no_torch():
    code = "import softwarp, sys; assert 'train' in dir(softwarp); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_every_public_name_is_there_and_explains_itself():
    assert 12 <= len(softwarp.__all__) <= 18
    for name in softwarp.__all__:
        value = getattr(softwarp, name)
        assert value.__doc__ or name == "LOSSES", name
    with pytest.raises(AttributeError, match="trian"):
        softwarp.trian  # noqa: B018


def test_a_folder_becomes_a_loaded_model_that_knows_its_result(trained, images):
    model, _ = trained
    files = sorted(images.rglob("*.png"))[:3]
    assert model.embed(files).shape == (3, model.network.embedding_size)
    assert 0 < model.result.metrics["map@r"] <= 1
    assert model.result.baseline["map@r"] > 0
    assert model.choice.chosen.epochs in (0, 1)
    assert "MAP@R" in repr(model.result)
    assert "<table" in model.result._repr_html_()
    assert str(model.result) == repr(model.result)
    assert repr(model.choice) == str(model.choice) == f"Choice({model.choice.sentence()})"
    assert "frozen" in model.choice._repr_html_()
    again = softwarp.load(images.parent / "run")
    assert again.result == model.result


def test_a_backbone_has_no_result():
    model = softwarp.EmbeddingModel(None, "cosine", resize=40, crop=32, device=torch.device("cpu"))
    with pytest.raises(ValueError, match="not loaded from a run"):
        _ = model.result


def test_notes_and_progress_are_told_and_nothing_is_printed(trained, capsys):
    _, heard = trained
    notes = [event.text for event in heard if isinstance(event, Note)]
    assert any(text.startswith("open set") for text in notes)
    assert any("expected time" in text for text in notes)
    assert any(text.startswith("chosen: ") for text in notes)
    works = {event.work for event in heard if isinstance(event, Progress)}
    assert works
    assert all(
        any(event.work == work and event.ended for event in heard if isinstance(event, Progress))
        for work in works
    )
    assert capsys.readouterr() == ("", "")


def test_several_models_of_images_share_a_choice(images, tmp_path):
    model = softwarp.train(images, *ONCE, output=tmp_path / "run", seeds=2, protocol="validation")
    assert (model.result.split, model.folder.name) == ("validation", "seed-0")
    assert model.choice is not None
    assert len(read_repeats(tmp_path / "run").runs) == 2


def test_without_a_listener_a_service_logs(images, caplog, capsys):
    with caplog.at_level(logging.INFO, "softwarp"):
        softwarp.train(images, *ONCE, output=images.parent / "run")
    assert any("already finished" in record.message for record in caplog.records)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("kind", ["frame", "pair", "csv"])
def test_lists_of_images_train_as_folders_do(images, tmp_path, trained, kind):
    files = sorted(images.rglob("*.png"))
    labels = [file.parent.name for file in files]
    given = (files, labels)
    if kind == "frame":
        given = Frame(path=files, label=labels, other=labels)
    if kind == "csv":
        given = tmp_path / "list.csv"
        rows = [f"{file},{label}\n" for file, label in zip(files, labels, strict=True)]
        given.write_text("path,label\n" + "".join(rows))
    model = softwarp.train(given, *ONCE, output=tmp_path / "run")
    assert model.result.metrics == trained[0].result.metrics
    if kind != "csv":
        assert (tmp_path / "run" / "images.csv").read_text().count("\n") == len(files) + 1


def test_what_is_no_data_is_refused_with_the_cure(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"load_recipe\('cub_lite'\)"):
        softwarp.train("cub_lite")
    with pytest.raises(ValueError, match="no column label"):
        softwarp.train(Frame(path=["a.jpg"]), output=tmp_path / "run")
    with pytest.raises(ValueError, match="2 paths, 1 labels"):
        softwarp.train((["a.jpg", "b.jpg"], ["owl"]), output=tmp_path / "run")
    with pytest.raises(ValueError, match="int is not a set of images"):
        softwarp.train(3, output=tmp_path / "run")
    with pytest.raises(ValueError, match="output="):
        softwarp.train(softwarp.load_recipe())


def test_a_recipe_is_trained_as_it_says(tmp_path):
    recipe = softwarp.load_recipe(
        "glyphs_warped_softmax",
        "loss.name=arcface",
        "data.max_classes=8",
        "batches.classes=8",
        "phases=[{epochs: 1, learning_rate: 0.01, proxy_learning_rate: 0.1}]",
    )
    assert isinstance(recipe, softwarp.Recipe)
    model = softwarp.train(recipe, output=tmp_path)
    assert model.result.name == "arcface"
    assert (model.result.split, model.choice) == ("test", None)
    first = softwarp.train(recipe, output=tmp_path / "two", seeds=2, protocol="validation")
    assert (first.result.split, first.result.seed) == ("validation", recipe.seed)
    repeats = read_repeats(tmp_path / "two")
    assert [run.seed for run in repeats.runs] == [recipe.seed, recipe.seed + 1]
    assert repeats.runs[0] == first.result
    for wrong in ({"protocol": "tset"}, {"seeds": 0}):
        with pytest.raises(ValueError, match=str(*wrong.values())):
            softwarp.train(recipe, output=tmp_path / "two", **wrong)
    with pytest.raises(ValueError, match="omit the budget"):
        softwarp.train(recipe, budget="1m", output=tmp_path)


def test_a_keyboard_interrupt_leaves_a_run_that_the_same_call_resumes(images, tmp_path, monkeypatch, trained):
    from softwarp.training import train as loop

    steps = []
    real = loop.end_epoch

    def stop(*given):
        steps.append(given)
        if len(steps) == 2:
            raise StoppedError
        return real(*given)

    monkeypatch.setattr(loop, "end_epoch", stop)
    with pytest.raises(KeyboardInterrupt):
        softwarp.train(images, *ONCE, output=tmp_path)
    monkeypatch.setattr(loop, "end_epoch", real)
    model = softwarp.train(images, *ONCE, output=tmp_path)
    assert model.result.metrics == trained[0].result.metrics


def test_embeddings_from_anywhere_are_evaluated():
    vectors, labels = [[0.0, 1.0], [0.1, 1.0], [5.0, 0.0], [5.1, 0.0]], ["owl", "owl", "wren", "wren"]
    found = [softwarp.evaluate(each, labels) for each in (vectors, np.array(vectors), torch.tensor(vectors))]
    assert {each.metrics["map@r"] for each in found} == {1.0}
    assert "MAP@R 100.0" in repr(found[0])
    assert "<table" in found[0]._repr_html_()


def test_losses_are_compared(images, tmp_path):
    heard = []
    settings = {"trials": 1, "seeds": 2, "output": tmp_path, "on_event": heard.append}
    outcome = softwarp.benchmark(["proxy_nca_pp", "cosface"], images, *ONCE, **settings)
    assert {entry.loss for entry in outcome.entries} == {"proxy_nca_pp", "cosface"}
    assert outcome.frozen is not None
    assert "<table" in outcome._repr_html_()
    assert "2 losses" in repr(outcome)
    assert any("2 losses x (1 trial + 2 seeds)" in str(event) for event in heard)
    assert (tmp_path / "best.yaml").is_file()
    with pytest.raises(ValueError, match="two losses"):
        softwarp.benchmark(["arcface"], images)
