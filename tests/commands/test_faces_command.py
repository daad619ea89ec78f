"""From a folder of faces to a verified model in four commands, and what the commands refuse."""

import csv
import json

import pytest
from support.face_files import face, face_folder, write_bin, write_faces
from typer.testing import CliRunner

from softwarp.cli import app
from softwarp.data.tables import read_table
from softwarp.faces.pairs import read_pairs

SMALL = (
    *("data.resize=28", "data.crop=28", "data.workers=0"),
    *("model.backbone=test_efficientnet.r160_in1k", "model.pretrained=false", "model.embedding_size=8"),
    *("batches.classes=4", "batches.samples=2", "phases.0.epochs=1"),
)


def run(*words):
    shown = CliRunner().invoke(app, [str(word) for word in words])
    assert shown.exit_code == 0, (shown.output, shown.exception)
    return shown.stdout


def test_four_commands_lead_from_a_folder_to_verification(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    face_folder(tmp_path / "faces", people=24, images=4, size=28)
    (tmp_path / "faces" / "person_02" / "person_02_0001.jpg").write_text("no image")
    packed = run("faces", "pack", "faces", "-o", "faces.shards")
    assert "95 images of 24 people" in packed
    assert "left out: faces/person_02/person_02_0001.jpg" in packed
    assert "40 pairs in 2 folds" in run(
        "faces", "pairs", "faces", "-o", "pairs.tsv", "--count", 40, "--folds", 2
    )
    run("train", "faces_small", "data.name=shards", "data.root=faces.shards", *SMALL, "--output", "run")
    shown = run("verify", "run", "--pairs", "pairs.tsv", "--images", "faces")
    assert "accuracy" in shown
    folder = tmp_path / "run-verification"
    found = json.loads((folder / "verification.json").read_text())
    assert (found["distance"], found["model"]) == ("euclidean", "run")
    assert 30 < found["sets"]["pairs"]["pairs"] <= 40  # those with the broken image are left out
    with (folder / "pairs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == found["sets"]["pairs"]["pairs"]
    with (folder / "verification-figures" / "roc.csv").open() as file:
        points = list(csv.DictReader(file))
    assert float(points[-1]["tar"]) == float(points[-1]["far"]) == 1
    assert (folder / "verification-figures" / "roc.svg").read_text().startswith("<svg")
    page = (folder / "verification.html").read_text()
    assert "two people taken for one" in page
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )
    assert page.count('src="data:image/') == page.count("<img ")


def test_drawn_pairs_of_people_with_odd_names_are_read_again(tmp_path):
    folder = face_folder(tmp_path / "faces", people=20, images=3)
    for number in range(20):
        (folder / f"person_{number:02d}").rename(folder / f'"Al" {number}, "B"')
    shown = run("faces", "pairs", folder, "-o", tmp_path / "pairs.tsv", "--count", 400, "--folds", 2)
    assert "of 400 asked for" in shown
    pairs = read_pairs(tmp_path / "pairs.tsv", folder)
    assert all(pairs.images.read(place) for place in range(len(pairs.images)))
    assert pairs.images.name(0).startswith('"Al" ')


def test_what_cannot_be_packed_is_refused_before_its_images_are_read(tmp_path, monkeypatch):
    face_folder(tmp_path / "faces", people=4, images=2)
    assert "1 shard:" in run("faces", "pack", tmp_path / "faces", "-o", tmp_path / "packed")
    face_folder(tmp_path / "one", people=1, images=2)
    monkeypatch.setattr("softwarp.data.packing.check_images", None)
    for folder, output, cause in (("faces", "packed", "already"), ("one", "other", "1 class: at least")):
        words = ["faces", "pack", str(tmp_path / folder), "-o", str(tmp_path / output)]
        assert cause in str(CliRunner().invoke(app, words).exception)


def test_records_can_be_packed_too_but_pairs_need_files(tmp_path):
    write_faces(tmp_path / "records", people=4, images=2)
    assert "8 images of 4 people" in run("faces", "pack", tmp_path / "records", "-o", tmp_path / "packed")
    refused = CliRunner().invoke(
        app, ["faces", "pairs", str(tmp_path / "packed"), "-o", str(tmp_path / "x.tsv")]
    )
    assert "folder that it was packed from" in str(refused.exception)


def test_a_backbone_with_its_weights_is_verified_on_bin_files_and_templates(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pairs = [(face(n, 1), face(n + n % 2, 2), n % 2 == 0) for n in range(20)]
    write_bin(tmp_path / "lfw.bin", pairs)
    shown = json.loads(
        run("verify", "test_resnet", "--weights", weights(tmp_path), "--pairs", "lfw.bin", "--json")
    )
    assert shown["sets"]["lfw"]["pairs"] == 20
    assert shown["distance"] == "cosine"
    (tmp_path / "other").mkdir()
    write_bin(tmp_path / "other" / "lfw.bin", pairs[:10])
    words = ("verify", "test_resnet", "--weights", "weights.pth", "--json", "--pairs")
    sets = json.loads(run(*words, "lfw.bin", "--pairs", "other/lfw.bin"))["sets"]
    assert {name: each["pairs"] for name, each in sets.items()} == {"lfw.bin": 20, "other/lfw.bin": 10}
    face_folder(tmp_path / "images", people=4, images=2)
    rows = ["image\ttemplate\tperson\trole"]
    for person in range(4):
        for number, role in ((1, "gallery"), (2, "probe")):
            name = f"person_{person:02d}"
            rows.append(f"{name}/{name}_{number:04d}.jpg\t{person}{role[0]}\t{person}\t{role}")
    (tmp_path / "templates.tsv").write_text("\n".join(rows))
    words = ("verify", "test_resnet", "--weights", "weights.pth", "--templates", "templates.tsv")
    assert "rank@1: 100.00" in run(*words)  # faces of four colours each
    with (tmp_path / "templates.tsv").open("a") as file:
        file.write("\nperson_00/lost.jpg\t0p\t0\tprobe")
    shown = CliRunner().invoke(app, words)
    assert "rank@1: 100.00" in shown.stdout
    assert "left_out: 1" in shown.stdout
    assert "person_00/lost.jpg" in shown.stderr
    (tmp_path / "text.bin").write_text("hello\n")
    for given, cause in (("images", "is a folder"), ("text.bin", "a pickle"), ("none.bin", "not exist")):
        with pytest.raises(AssertionError, match=cause):
            run("verify", "test_resnet", "--weights", "weights.pth", "--pairs", given)
    with pytest.raises(AssertionError, match="nothing to verify"):
        run("verify", "test_resnet")


def weights(folder):
    import timm
    import torch

    torch.manual_seed(0)
    torch.save(timm.create_model("test_resnet").state_dict(), folder / "weights.pth")
    return folder / "weights.pth"


def test_a_list_of_faces_is_packed_like_a_folder(tmp_path):
    folder = face_folder(tmp_path / "faces", people=6, images=2)
    rows = [
        f"faces/{path.parent.name}/{path.name},{path.parent.name} of the list"
        for path in folder.glob("*/*.jpg")
    ]
    assert len(rows) == 12
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *rows]))
    assert "12 images of 6 people" in run("faces", "pack", tmp_path / "list.csv", "-o", tmp_path / "shards")
    table = read_table("shards", tmp_path / "shards")
    assert all(name.endswith("of the list") for name in table.names)
