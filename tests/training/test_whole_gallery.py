"""Images of held-out classes are also looked up among the training images."""

import numpy as np
import pytest
import torch
from support.pictures import pictures

from softwarp import load
from softwarp.recipe.schema import parse_recipe
from softwarp.training import features
from softwarp.training.train import train_recipe

NAMES = ("whole_gallery_recall@1", "whole_gallery_map@r")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Noise, so that images of other classes lie between those of one."""
    paths = [f"{name}/{number}.jpg" for name in "abcdefgh" for number in range(3)]
    return pictures(tmp_path_factory.mktemp("images"), *paths)


def trained(root, folder, epochs=1, **evaluation):
    settings = {
        "data": {"name": "folder", "root": str(root), "resize": 32, "crop": 32, "workers": 0},
        "model": {"backbone": "test_efficientnet.r160_in1k", "pretrained": False, "embedding_size": 8},
        "loss": {"name": "warped_softmax"},
        "batches": {"classes": 3, "samples": 2},
        "phases": [{"epochs": epochs, "learning_rate": 0.002, "proxy_learning_rate": 0.02}],
        "evaluation": {"split": "test", "ks": [1, 2], "clustering": False, "baseline": True} | evaluation,
    }
    return train_recipe(parse_recipe(settings), folder)


def looked_up(run, root, model):
    """The figures by sorting: queries of the test classes among all images of the folder."""
    files = sorted(root.glob("*/*.jpg"))
    names = np.array([file.parent.name for file in files])
    asked = [files.index(root / item.file) for item in run.items()]
    vectors = model.embed(files)
    distances = torch.cdist(vectors[asked].double(), vectors.double()).numpy()
    recall, precision = [], []
    for own, row in zip(asked, distances, strict=True):
        order = [place for place in np.argsort(row, kind="stable") if place != own]
        hits = names[order] == names[own]
        found = int(hits.sum())
        recall.append(hits[0])
        precision.append((hits * hits.cumsum() / np.arange(1, len(hits) + 1))[:found].sum() / found)
    return dict(zip(NAMES, map(np.mean, (recall, precision)), strict=True))


def test_the_figures_are_those_of_a_search_among_all_images(root, tmp_path):
    run = trained(root, tmp_path / "run", whole_gallery=True)
    result = run.result()
    assert {name: result.metrics[name] for name in NAMES} == pytest.approx(
        looked_up(run, root, load(run.folder))
    )
    assert result.metrics["whole_gallery_map@r"] < result.metrics["map@r"]
    assert result.baseline["whole_gallery_map@r"] < result.baseline["map@r"]


def test_nothing_else_changes_and_recipes_do_not_ask_for_it(root, tmp_path):
    plain, asked = trained(root, tmp_path / "plain"), trained(root, tmp_path / "asked", whole_gallery=True)
    assert not set(NAMES) & {*plain.result().metrics, *plain.result().baseline}
    rest = {name: value for name, value in asked.result().metrics.items() if name not in NAMES}
    assert rest == plain.result().metrics


def test_of_very_many_training_images_some_of_each_class_are_searched(root, tmp_path, monkeypatch):
    all_of_them = trained(root, tmp_path / "all", epochs=0, whole_gallery=True).result().metrics
    monkeypatch.setattr(features, "MOST", 10)
    monkeypatch.setattr(features, "PER_CLASS", 1)
    some = trained(root, tmp_path / "some", epochs=0, whole_gallery=True).result().metrics
    assert some["whole_gallery_map@r"] > all_of_them["whole_gallery_map@r"]
    assert some["map@r"] == all_of_them["map@r"]
