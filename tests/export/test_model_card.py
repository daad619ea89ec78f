"""The model card says what result.json says, and no path of this machine."""

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from support.results import result
from support.tiny_runs import PHASE, tiny

from softwarp.export.model_card import model_card
from softwarp.files import write_json
from softwarp.runs.model_folder import ModelConfig
from softwarp.runs.run import EvaluatedImage, Run

SECRET = "/home/secret"


def finished(folder, *, split="test", rows=("test", "test"), **changes):
    """A run on somebody's own images, with paths that must not leak."""
    recipe = tiny(
        data={"name": "folder", "root": f"{SECRET}/photos"},
        model={"backbone": "efficientnet_lite0", "pretrained": f"{SECRET}/weights.pth"},
        loss={"name": "proxy_nca_pp"},
        phases=[PHASE],
    )
    run = Run.create(folder, recipe)
    run.save_embeddings(
        {"embeddings": torch.zeros(2, 2)},
        [EvaluatedImage("a.jpg", "owl", role, row) for row, role in enumerate(rows)],
    )
    run.write_result(result(broken_images=(f"{SECRET}/photos/a.jpg",), split=split, **changes))
    return run


def card_of(run, licence=None):
    facts = {"embedding_size": 16, "channels": 3, "resize": 64, "crop": 56, "mean": (0.5,), "std": (0.5,)}
    model = run.recipe().model.model_copy(update={"pretrained": False})
    config = ModelConfig(model=model, distance="cosine", input="bytes", interpolation="bilinear", **facts)
    return model_card(run, config, licence=licence)


def test_the_hub_reads_metrics_and_licence(tmp_path):
    card = ModelCard(card_of(finished(tmp_path), licence="apache-2.0"))
    assert card.data.license == "apache-2.0"
    assert card.data.library_name == "softwarp"
    measured = {one.metric_type: one.metric_value for one in card.data.eval_results}
    assert measured == {"recall@1": 0.5, "map@r": 0.25}
    assert {one.dataset_split for one in card.data.eval_results} == {"test"}


def test_every_part_is_there_and_no_path_leaks(tmp_path):
    text = card_of(finished(tmp_path))
    for part in ("Metrics", "Data", "Recipe", "Licence", "Citation", "Limits"):
        assert f"## {part}\n" in text
    assert "secret" not in text
    assert "| Recall@1 | 50.0 |" in text
    assert "10 images of 5 classes" in text
    assert "1 training images could not be read" in text
    assert "none chosen yet" in text
    assert "Realigned Softmax Warping" in text
    assert "ProxyNCA++" in text  # the loss has a paper of its own
    recipe = yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])
    assert recipe["model"]["pretrained"] == "weights.pth"
    assert "root" not in recipe["data"]
    assert recipe["phases"][0]["epochs"] == PHASE["epochs"]


def test_the_pretrained_weights_are_named_with_licence_and_hash(tmp_path):
    run = finished(tmp_path)
    assert "began with: efficientnet_lite0 from the file weights.pth, licence unknown.\n" in card_of(run)
    environment = run.environment()
    environment["weights"] |= {"licence": "mit", "sha256": "0" * 64}
    write_json(tmp_path / "environment.json", environment)
    assert f"licence mit, SHA-256 {'0' * 64}.\n" in card_of(run)
    write_json(tmp_path / "environment.json", environment | {"weights": None})
    assert "began with" not in card_of(run)


def test_the_baseline_stands_beside_the_metrics(tmp_path):
    text = card_of(finished(tmp_path, baseline={"recall@1": 0.4, "map@r": 0.2}))
    assert "| Recall@1 | 50.0 | 40.0 |" in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"split": "validation"}, "validation classes. If settings were chosen"),
        ({"rows": ("query", "gallery")}, "queries search the gallery"),
        ({"rows": ("test", "test")}, "each searches all others"),
    ],
)
def test_how_it_was_measured_is_said(tmp_path, changes, words):
    text = card_of(finished(tmp_path, **changes))
    assert words in text
    assert ("If settings were chosen" in text) == ("split" in changes)


def test_a_model_that_was_not_trained_is_not_named_after_a_loss(tmp_path):
    text = card_of(finished(tmp_path, epochs=0))
    assert "# Frozen features on own images" in text
    assert "Nothing was trained: these are the features of efficientnet_lite0" in text
    assert "ProxyNCA++" not in text
    assert ModelCard(text).data.model_name == "frozen-features-folder"
    assert "Nothing was trained" not in card_of(finished(tmp_path, epochs=3))


@pytest.mark.parametrize("closed", [False, True])
def test_it_says_whether_the_classes_were_trained_on(tmp_path, closed):
    text = card_of(finished(tmp_path, closed=closed))
    assert ("none of which was trained on" in text) != closed
    assert ("other images of which were trained on" in text) == closed
