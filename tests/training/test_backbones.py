"""Networks compared on a folder: by the classes that train, best first, with a reason for each that fails."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
from support.tiny_networks import NETWORKS, draw, places  # noqa: F401
from typer.testing import CliRunner

import softwarp
from softwarp.cli import app
from softwarp.data.splits import SplitPlan, divide
from softwarp.data.tables import read_table
from softwarp.frozen import features
from softwarp.training import backbones as ranking
from softwarp.training import features as training_features


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("images") / "birds")


@pytest.fixture(scope="module")
def found(images):
    return softwarp.backbones(images, on_event=lambda _: None)


def test_the_networks_at_hand_are_compared_best_first(found):
    assert sorted(row.name for row in found) == sorted(NETWORKS)
    assert found[0].map_at_r >= found[1].map_at_r > 0
    assert found.best == found[0].name
    for row in found:
        assert row.map_low <= row.map_at_r <= row.map_high
        assert row.recall_low <= row.recall_at_1 <= row.recall_high
        assert (row.licence, row.crop, row.broken) == ("mit", 160, 0)
        assert row.milliseconds > 0
    sizes = {row.name: row.megabytes for row in found}
    own = timm.create_model("test_vit", num_classes=0).state_dict().values()
    assert sizes["test_vit"] == pytest.approx(sum(4 * each.numel() for each in own) / 1e6)


def test_they_show_themselves(found, monkeypatch):
    assert found.best in repr(found)
    assert f"MAP@R {100 * found[0].map_at_r:.1f}" in repr(found)
    assert "<table>" in found._repr_html_()
    assert f"{100 * found[0].map_low:.1f}–" in found.table().markdown()
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=list))
    assert [row["name"] for row in found.to_pandas()] == [row.name for row in found]


def test_only_training_classes_are_looked_at_unless_asked(images, found, monkeypatch):
    table = read_table("folder", images)
    train = divide(table.labels, None, SplitPlan("test")).train
    assert "training classes" in found.about
    assert found.images == len(train) == 24
    seen, real = set(), features.digest_of
    monkeypatch.setattr(features, "digest_of", lambda content: seen.add(content) or real(content))
    softwarp.backbones(images, ["test_vit"], on_event=lambda _: None)
    assert seen == {table.content(place) for place in train.tolist()}
    seen.clear()
    test = softwarp.backbones(images, ["test_vit"], protocol="test", on_event=lambda _: None)
    assert seen == {table.content(place) for place in range(32)} - {
        table.content(place) for place in train.tolist()
    }
    assert (test.images, "test classes" in test.about) == (8, True)
    assert softwarp.backbones(images, ["test_vit"], protocol="all", on_event=lambda _: None).images == 32


@pytest.mark.parametrize(
    "changes", [("phases.0.epochs=0",), ("phases.0.epochs=1", "evaluation.fold=0", "evaluation.folds=3")]
)
def test_the_figures_are_those_that_training_calls_its_baseline(images, tmp_path, changes):
    """Also where a head of few dimensions follows the features, as nothing is chosen with a fold."""
    small = ("model.embedding_size=8", "evaluation.ks=[1]", "batches.classes=2")
    model = softwarp.train(
        images, *changes, *small, backbone="test_vit", output=tmp_path / "run", on_event=lambda _: None
    )
    (row,) = softwarp.backbones(images, ["test_vit"], protocol="test", on_event=lambda _: None)
    assert model.result.baseline["map@r"] == pytest.approx(row.map_at_r, abs=1e-6)
    assert model.result.baseline["recall@1"] == pytest.approx(row.recall_at_1)


def test_a_network_that_cannot_be_had_is_a_row_with_the_reason(images):
    names = ["test_vitt", "resnet18", "test_vit"]
    found = softwarp.backbones(images, names, on_event=lambda _: None)
    assert found.best == "test_vit"
    problems = {row.name: row.problem for row in found if row.problem}
    assert "test_vit" in problems["test_vitt"]
    assert "softwarp weights add FILE --as resnet18" in problems["resnet18"]
    with pytest.raises(ValueError, match="resnet18"):
        _ = softwarp.backbones(images, ["resnet18"], on_event=lambda _: None).best


def test_weights_whose_file_is_gone_or_damaged_are_a_row_with_the_cure(images, places):  # noqa: F811
    (file,) = (places / "weights").glob("test_efficientnet.*.safetensors")
    content = file.read_bytes()
    try:
        for state, cause in ((None, "is gone"), (content[:-4] + b"abcd", "is damaged")):
            file.unlink() if state is None else file.write_bytes(state)
            found = softwarp.backbones(images, NETWORKS, on_event=lambda _: None)
            assert found.best == "test_vit"
            assert cause in found[1].problem
            assert "softwarp weights add FILE --as test_efficientnet" in found[1].problem
    finally:
        file.write_bytes(content)


def test_a_csv_file_and_nested_folders(images, found, tmp_path):
    rows = [f"{path},{path.parent.name}" for path in sorted(images.rglob("*.png"))]
    (tmp_path / "birds.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    listed = softwarp.backbones(tmp_path / "birds.csv", on_event=lambda _: None)
    assert [row.map_at_r for row in listed] == [row.map_at_r for row in found]
    for number, folder in enumerate(sorted(images.iterdir())):
        place = tmp_path / "nested" / f"family {number % 2}" / folder.name
        place.mkdir(parents=True)
        for file in folder.iterdir():
            (place / file.name).write_bytes(file.read_bytes())
    nested = softwarp.backbones(tmp_path / "nested", ["test_vit"], on_event=lambda _: None)
    assert "6 classes" in nested.about
    families = softwarp.backbones(
        tmp_path / "nested", ["test_vit"], protocol="all", depth=1, on_event=lambda _: None
    )
    assert "2 classes" in families.about


@pytest.mark.parametrize("images", [1, 5])
def test_without_classes_there_are_speed_and_size_alone(tmp_path, images):
    draw(tmp_path / "drawn", classes=1, images=images)
    found = softwarp.backbones(tmp_path / "drawn" / "class 0", on_event=lambda _: None)
    assert "speed and size" in found.about
    assert {row.name for row in found} == set(NETWORKS)
    assert found[0].milliseconds <= found[1].milliseconds
    assert found[0].map_at_r is None
    assert "MAP@R" not in found.table().markdown()
    with pytest.raises(ValueError, match="no classes"):
        _ = found.best


def test_broken_images_are_left_out_and_counted(images, tmp_path):
    place = draw(tmp_path / "birds", classes=5)
    (place / "class 1" / "0.png").write_bytes(b"broken")
    found = softwarp.backbones(place, ["test_vit"], protocol="all", on_event=lambda _: None)
    assert found[0].broken == 1
    for file in place.rglob("*.png"):
        file.write_bytes(b"broken")
    with pytest.raises(ValueError, match="none of 20 images can be read"):
        _ = softwarp.backbones(place, ["test_vit"], protocol="all", on_event=lambda _: None).best


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["IMAGES", "--protocol", "tests"], "test"),
        (["IMAGES", "--names", ","], "at least one network"),
        (["IMAGES", "--names", "resnet18"], "resnet18"),
    ],
)
def test_mistakes_are_one_line_with_the_cure(images, words, cause):
    answer = CliRunner().invoke(
        app, ["backbones", *(str(images) if word == "IMAGES" else word for word in words)]
    )
    assert isinstance(answer.exception, ValueError | OSError)
    assert cause in str(answer.exception)
    assert "\n" not in str(answer.exception)


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["train", "--data", "IMAGES", "--backbone", "test_vitt"], "test_vit"),
        (["train", "--backbone", "auto"], "--backbone needs --data"),
        (
            ["train", "--data", "IMAGES", "--backbone", "test_vit", "data.crop=90", "data.resize=96"],
            "data.crop=80",
        ),
        (["index", "--backbone", "auto", "IMAGES", "IMAGES", "-o", "new.index"], "one folder"),
        (["index", "--backbone", "test_vitt", "IMAGES", "-o", "new.index"], "test_vit"),
    ],
)
def test_a_wrong_backbone_or_size_is_one_line_with_the_cure(images, tmp_path, monkeypatch, words, cause):
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(app, [str(images) if word == "IMAGES" else word for word in words])
    assert isinstance(answer.exception, ValueError | OSError)
    assert cause in str(answer.exception)
    assert "\n" not in str(answer.exception)
    assert not list(tmp_path.iterdir())


def test_without_any_weights_the_cure_is_said(images, monkeypatch):
    monkeypatch.setattr(ranking, "weights_here", list)
    with pytest.raises(ValueError, match=r"no network has weights.*softwarp weights add"):
        softwarp.backbones(images, on_event=lambda _: None)


def test_the_command_prints_a_table_and_writes_results(images, tmp_path):
    file = tmp_path / "rows.json"
    answer = CliRunner().invoke(
        app, ["backbones", str(images), "--results", str(file), "--names", "test_vit,resnet18"]
    )
    assert answer.exit_code == 0, answer.output
    assert "test_vit" in answer.output
    assert "weights add FILE --as resnet18" in " ".join(answer.output.split())
    assert f"--data {images} --backbone test_vit" in " ".join(answer.output.split())
    content = json.loads(file.read_text())
    assert content["command"] == "softwarp backbones birds --names test_vit,resnet18 --protocol train"
    assert content["rows"][0]["name"] == "test_vit"
    assert content["environment"]["code"]["rules"]


def test_index_and_embed_take_the_best_network_or_one_by_name(images, tmp_path):
    index = tmp_path / "birds.index"
    answer = CliRunner().invoke(app, ["index", "--backbone", "auto", str(images), "-o", str(index)])
    assert answer.exit_code == 0, answer.output
    best = softwarp.backbones(images, protocol="all", on_event=lambda _: None).best
    assert softwarp.Index.open(index).store.settings["model"] == best
    file = tmp_path / "birds.safetensors"
    answer = CliRunner().invoke(app, ["embed", str(images), "--backbone", "test_vit", "-o", str(file)])
    assert answer.exit_code == 0, answer.output
    for words in (["index", "test_vit"], ["embed", "test_vit"]):
        answer = CliRunner().invoke(app, [*words, "-o", str(tmp_path / "other.safetensors")])
        assert "which images" in str(answer.exception)


def test_an_index_of_a_bare_network_looks_its_features_up(images, tmp_path, monkeypatch):
    first = softwarp.Index.build("test_vit", images, tmp_path / "first.index", on_event=lambda _: None)
    monkeypatch.setattr(features, "_forward", None)
    second = softwarp.Index.build("test_vit", images, tmp_path / "second.index", on_event=lambda _: None)
    np.testing.assert_array_equal(first.vectors[:], second.vectors[:])
    plain = softwarp.load("test_vit", device="cpu").embed([first.file(item) for item in first.items])
    unit = torch.nn.functional.normalize(plain)
    np.testing.assert_allclose(first.vectors[:], unit, atol=1e-5)


def trained(images, folder, *changes):
    steps = ("phases.0.epochs=1", "model.embedding_size=8", "evaluation.ks=[1]")
    model = softwarp.train(
        images, *steps, *changes, backbone="test_vit", output=folder, on_event=lambda _: None
    )
    return model.result, model.choice.candidates


def test_training_judges_by_the_cache_what_it_would_without(images, tmp_path, monkeypatch):
    computed, forward = [], features._forward
    monkeypatch.setattr(features, "_forward", lambda *given: computed.append(1) or forward(*given))
    first, candidates = trained(images, tmp_path / "first")
    (row,) = softwarp.backbones(images, ["test_vit"], protocol="test", on_event=lambda _: None)
    assert first.baseline["map@r"] == pytest.approx(row.map_at_r, abs=1e-6)
    computed.clear()
    again, candidates_again = trained(images, tmp_path / "again")
    assert not computed
    monkeypatch.setattr(training_features, "may_know", lambda recipe: False)
    without, expected = trained(images, tmp_path / "without")
    for found, seen in ((first, candidates), (again, candidates_again)):
        assert found.metrics == pytest.approx(without.metrics, abs=1e-6)
        assert found.baseline == pytest.approx(without.baseline, abs=1e-6)
        assert len(seen) == len(expected)
        assert seen[0].map_at_r == pytest.approx(expected[0].map_at_r, abs=1e-6)


def test_broken_images_are_left_out_of_the_baseline_as_before(tmp_path):
    place = draw(tmp_path / "birds")
    bad = place / "class 1" / "0.png"
    bad.write_bytes(b"broken")
    split = [
        f"{path},{path.parent.name},{'train' if path.parent.name > 'class 3' else 'test'}"
        for path in sorted(place.rglob("*.png"))
    ]
    (tmp_path / "birds.csv").write_text("\n".join(["path,label,split", *split]) + "\n")
    model = softwarp.train(
        tmp_path / "birds.csv",
        "phases.0.epochs=0",
        "model.head_init=pca",  # so that nothing is calibrated
        backbone="test_vit",
        output=tmp_path / "run",
        on_event=lambda _: None,
    )
    assert model.result.left_out == (str(bad),)
    assert model.result.metrics["map@r"] == pytest.approx(model.result.baseline["map@r"])
