"""Commands on a closed set: the same classes in train and test, from the check to the report."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from support import references_metrics as references
from support.own_images import QUICK, small_crops  # noqa: F401
from support.pictures import pictures
from typer.testing import CliRunner

import softwarp
from softwarp.cli import app
from softwarp.data.packing import draw_pairs
from softwarp.data.sources import load_source
from softwarp.data.tables import read_table
from softwarp.runs.run import Run

CLASSES, TRAINED, TESTED = 8, 4, 2
LINE = "closed set: the same 8 classes train and are judged; 16 test images are looked up among 32 training"
ONCE = (*QUICK, "phases.0.epochs=1")


def say(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Classes are stripes of different widths and colours, on both sides of the split."""
    folder, generator = tmp_path_factory.mktemp("closed") / "stripes", np.random.default_rng(0)
    for label in range(CLASSES):
        stripes = np.arange(40)[:, None, None] // (label % 4 + 1) % 2 * generator.integers(60, 255, 3)
        for number in range(TRAINED + TESTED):
            place = folder / ("train" if number < TRAINED else "test") / f"class {label}" / f"{number}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.clip(stripes + generator.normal(0, 60, (40, 40, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(place)
    return folder


@pytest.fixture(scope="module")
def finished(root):
    folder = root.parent / "run"
    return folder, say("train", "--data", root, "--output", folder, *ONCE)


@pytest.fixture(scope="module")
def listed(root):
    """The same images as a CSV file."""
    files = sorted(path.relative_to(root.parent) for path in root.glob("*/*/*.png"))
    lines = [f"{file},{file.parts[2]},{file.parts[1]}\n" for file in files]
    (root.parent / "stripes.csv").write_text("path,label,split\n" + "".join(lines))
    return root.parent / "stripes.csv"


@pytest.mark.parametrize("source", ["root", "listed"])
def test_the_check_says_what_is_looked_up_where(source, request):
    said = say("data", "check", request.getfixturevalue(source))
    text = " ".join(said.output.split())
    assert said.exit_code == 0, text
    assert f"--protocol test: {LINE}" in text
    assert "--protocol validation: closed set: the same 8 classes train and are judged; 8 validation" in text
    assert "refuse" not in text


def test_test_images_are_looked_up_among_training_images(finished):
    folder, said = finished
    assert said.exit_code == 0, said.output
    assert LINE in said.stderr
    run = Run(folder)
    result, arrays = run.result(), run.load_embeddings()
    assert result.closed
    assert (result.classes.train, result.classes.evaluated) == (8, 8)
    assert (result.images.train, result.images.evaluated) == (32, 16)
    assert (len(arrays["embeddings"]), len(arrays["gallery"])) == (16, 32)
    queries, gallery = run.items(), run.items(gallery=True)
    assert {item.file.split("/")[0] for item in queries} == {"test"}
    assert {item.file.split("/")[0] for item in gallery} == {"train"}
    assert "closed set: 16 test images of known classes" in " ".join(said.stdout.split())
    assert "5-NN accuracy" in said.stdout


def test_its_figures_are_those_of_a_plain_computation(finished):
    run = Run(finished[0])
    arrays, items, gallery = run.load_embeddings(), run.items(), run.items(gallery=True)
    queries, searched = (arrays[name].numpy().astype(np.float64) for name in ("embeddings", "gallery"))
    if run.result().distance == "cosine":
        queries, searched = (
            each / np.linalg.norm(each, axis=1, keepdims=True) for each in (queries, searched)
        )
    distances = np.linalg.norm(queries[:, None] - searched[None], axis=2)
    names = np.array([item.class_name for item in gallery])
    found = {"recall@1": [], "map@r": [], "knn@5": []}
    for item, row in zip(items, distances, strict=True):
        order = np.argsort(row, kind="stable")
        hits = names[order] == item.class_name
        precisions = np.cumsum(hits[:TRAINED]) / np.arange(1, TRAINED + 1)
        five = names[order][:5].tolist()
        winner = max(dict.fromkeys(five), key=five.count)  # of as many votes the first, hence the nearest
        found["recall@1"].append(hits[0])
        found["map@r"].append((precisions * hits[:TRAINED]).sum() / TRAINED)
        found["knn@5"].append(winner == item.class_name)
    for name, values in found.items():
        assert run.result().metrics[name] == pytest.approx(np.mean(values)), name


def test_the_frozen_features_search_the_same_gallery(finished):
    result = Run(finished[0]).result()
    assert result.baseline["queries"] == result.metrics["queries"] == 16
    assert "knn@5" in result.baseline


def test_the_choice_looked_at_held_out_images_and_held_out_classes(finished):
    folder, said = finished
    choice = json.loads((folder / "choice" / "choice.json").read_text())
    assert choice["classes"] == 8
    assert all(each["images"] for each in choice["candidates"])
    assert "on held-out images of training classes" in said.stdout or "none was better" in said.stdout
    for fold in (0, 1):
        run = Run(folder / "choice" / f"fold-{fold}")
        row = run.history()[-1]
        assert set(row["held_out_images"]) == set(row["interpolations"])
        judged, kept = (set(row[key]["1.0"]) for key in ("interpolations", "held_out_images"))
        assert not judged & kept
        assert len(judged | kept) == 8
        assert run.result().images.train == 12  # of sixteen, one of each class is held out
        assert {item.file.split("/")[0] for item in run.items()} == {"train"}


def test_held_out_images_were_looked_up_among_those_that_trained(finished, root):
    run = Run(finished[0] / "choice" / "fold-0")
    recipe, model = run.recipe(), softwarp.load(run.folder)
    source = load_source(recipe.data, recipe.evaluation.plan())
    kept = source.kept.paths_without(torch.tensor([], dtype=torch.long))
    assert not set(kept) & set(source.train_items.files)
    queries, gallery = (
        model.embed([root / file for file in files]) for files in (kept, source.train_items.files)
    )
    sides = (queries, source.kept_labels, gallery, source.labels)
    nobody = [-1] * len(kept)
    rows = references.retrieval(*(np.asarray(side) for side in sides), nobody, (1,), model.distance)
    expected = {
        source.names[label]: row["map@r"] for label, row in zip(source.kept_labels, rows, strict=True)
    }
    found = run.history()[-1]["held_out_images"]["1.0"]  # at the end of training, as the model is
    assert found == pytest.approx(expected, abs=1e-6)


def test_evaluate_compare_and_report_know_it(finished, tmp_path):
    folder, _ = finished
    measured = json.loads(say("evaluate", folder, "--json").stdout)["metrics"]
    result = Run(folder).result().metrics
    assert measured == pytest.approx({name: result[name] for name in measured})
    assert "knn@5" in measured
    assert "5-NN" in say("compare", folder).stdout
    assert say("report", folder, "--output", tmp_path / "report.html").exit_code == 0
    page = (tmp_path / "report.html").read_text()
    assert "16 test images of known classes" in page
    assert "5-NN accuracy" in page


def test_a_csv_file_and_a_recipe_are_judged_alike(listed, tmp_path):
    words = (*ONCE, "phases.0.epochs=0")
    assert say("train", "--data", listed, "--output", tmp_path / "own", *words).exit_code == 0
    shown = say("show", "--data", listed, *words)
    (tmp_path / "recipe.yaml").write_text(shown.stdout)
    said = say("train", tmp_path / "recipe.yaml", "--output", tmp_path / "recipe")
    assert said.exit_code == 0, said.output
    assert LINE in said.stderr
    files = [[item.file for item in Run(tmp_path / name).items(gallery=True)] for name in ("own", "recipe")]
    assert files[0] == files[1]
    assert len(files[0]) == 32


def test_a_benchmark_says_it_before_anything_is_trained(root, tmp_path):
    words = ("--losses", "arcface,proxy_anchor", "batches.classes=4", "--dry-run", "phases.0.epochs=2")
    said = say("benchmark", "--data", root, "--output", tmp_path / "study", *ONCE, *words)
    assert said.exit_code == 0, said.output
    assert LINE in said.stderr
    assert not (tmp_path / "study").exists()


def test_validation_holds_images_out_and_searches_among_the_rest(root, tmp_path):
    words = ("--protocol", "validation", "phases.0.epochs=0")
    said = say("train", "--data", root, "--output", tmp_path / "run", *ONCE, *words)
    assert said.exit_code == 0, said.output
    run = Run(tmp_path / "run")
    assert (run.result().images.train, run.result().images.evaluated) == (24, 8)
    files = [{item.file for item in run.items(gallery=gallery)} for gallery in (False, True)]
    assert not files[0] & files[1]
    assert all(file.startswith("train/") for file in files[0] | files[1])


def test_a_search_is_judged_on_held_out_images(root, tmp_path):
    said = say("tune", "--data", root, "--output", tmp_path / "study", "--trials", 1, *ONCE)
    assert said.exit_code == 0, said.output
    assert "8 validation images are looked up among 24 training images" in said.stderr
    result = Run(tmp_path / "study" / "trial-0000").result()
    assert (result.closed, result.images.evaluated) == (True, 8)


def test_a_search_by_folds_holds_out_classes_and_says_so(root, tmp_path):
    words = ("--trials", 1, "--folds", 2, "batches.classes=4", *ONCE)
    said = say("tune", "--data", root, "--output", tmp_path / "study", *words)
    assert said.exit_code == 0, said.output
    assert "open set: 4 classes train, 4 others are judged" in said.stderr
    result = Run(tmp_path / "study" / "trial-0000" / "fold-0").result()
    assert (result.closed, result.images.train) == (False, 16)


@pytest.mark.slow
def test_a_benchmark_judges_test_images_once(root, tmp_path):
    words = ("--losses", "arcface,proxy_anchor", "--trials", 1, "--seeds", 2, "batches.classes=4")
    words = (*words, *ONCE, "phases.0.epochs=2")
    said = say("benchmark", "--data", root, "--output", tmp_path / "study", *words)
    assert said.exit_code == 0, said.output
    assert LINE in said.stderr
    assert "16 test images of known classes" in " ".join(said.stdout.split())
    outcome = json.loads((tmp_path / "study" / "benchmark.json").read_text())
    assert (outcome["closed"], outcome["images"]) == (True, {"train": 32, "evaluated": 16})
    assert len(json.loads((tmp_path / "study/arcface/seed-0/outcome.json").read_text())["classes"]) == 8


def test_a_fold_judged_on_the_test_is_refused_before_training(root, tmp_path):
    said = say("train", "--data", root, "--output", tmp_path / "run", *ONCE, "evaluation.fold=0")
    assert "evaluation.fold" in str(said.exception)
    assert not (tmp_path / "run").exists()


def test_no_pairs_are_drawn_of_people_that_train(root):
    with pytest.raises(ValueError, match="no people"):
        draw_pairs(read_table("folder", root), count=20)


def test_knn_of_files_with_a_gallery(finished, tmp_path):
    arrays = Run(finished[0]).load_embeddings()
    for name in ("embeddings", "labels", "gallery", "gallery_labels"):
        np.save(tmp_path / f"{name}.npy", arrays[name].numpy())
    words = ["evaluate", tmp_path / "embeddings.npy", "--labels", tmp_path / "labels.npy", "--gallery"]
    words += [tmp_path / "gallery.npy", "--gallery-labels", tmp_path / "gallery_labels.npy", "--json"]
    words += ["--distance", Run(finished[0]).result().distance]
    asked = json.loads(say(*words, "--knn-ks", "5").stdout)["metrics"]
    assert asked["knn@5"] == pytest.approx(Run(finished[0]).result().metrics["knn@5"])
    assert "knn@5" not in json.loads(say(*words).stdout)["metrics"]


def test_test_images_with_nothing_to_find_are_named_and_left_out(tmp_path):
    known = [
        f"{split}/{name}/{number}.jpg" for split in ("train", "test") for name in "abc" for number in (0, 1)
    ]
    said = say("data", "check", pictures(tmp_path, *known, "test/new/0.jpg"))
    text = " ".join(said.output.split())
    assert said.exit_code == 0, text
    assert "left out: 1 test image of 1 class without an image to find: 'new'" in text
    assert "the same 3 classes train and are judged; 6 test images" in text


def test_a_slip_in_a_split_by_classes_is_still_refused(tmp_path):
    files = [f"train/{name}/0.jpg" for name in "abcd"] + [
        f"test/{name}/{k}.jpg" for name in "defg" for k in (0, 1)
    ]
    said = say("data", "check", pictures(tmp_path, *files))
    text = " ".join(said.output.split())
    assert said.exit_code == 1
    assert "class 'd' is in both training and evaluation (1 of 4 evaluated classes: 'd')" in text
