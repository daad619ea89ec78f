"""`softwarp weights`: lists, adds and removes."""

import pytest
import torch
from typer.testing import CliRunner

from softwarp.cli import app, main
from softwarp.models.backbones import build_backbone


@pytest.fixture(autouse=True)
def file(monkeypatch, tmp_path):
    monkeypatch.setenv("SOFTWARP_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    torch.save(build_backbone("test_vit").model.state_dict(), tmp_path / "given.pth")
    return tmp_path / "given.pth"


def run(*arguments):
    runner = CliRunner(env={"COLUMNS": "200"})
    result = runner.invoke(app, ["weights", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_added_listed_and_removed(file, tmp_path):
    said = run("add", file, "--as", "test_vit", "--licence", "mit", "--source", "a colleague")
    (line,) = said.splitlines()
    assert "given.pth, licence mit, SHA-256" in line
    sha256 = line.split("SHA-256 ")[1][:12]
    listed = run()
    (row,) = [line for line in listed.splitlines() if "test_vit" in line]
    assert [cell.strip() for cell in row.strip("│ ").split("│")] == [
        "test_vit",
        "the file given.pth (a colleague)",
        "1.2",
        "mit",
        sha256,
    ]
    assert "weights on this machine: 2" in listed
    assert f"into {tmp_path / 'weights'}" in listed
    assert "bn_inception" in listed
    assert "given.pth" in run("remove", "test_vit")
    assert "weights on this machine: 1" in run()


@pytest.mark.parametrize(("name", "licence"), [("test_vit", "apache-2.0"), ("small_conv", "unknown")])
def test_a_licence_that_nobody_gave_is_said(tmp_path, name, licence):
    backbone = build_backbone(name)
    torch.save(getattr(backbone, "model", backbone).state_dict(), tmp_path / "other.pth")
    assert f"licence {licence} (--licence names another)" in run("add", tmp_path / "other.pth", "--as", name)


def test_networks_are_described_without_fetching():
    said = run("--names", "vit_small_patch14_dinov2, iresnet50")
    for words in (
        "https://huggingface.co/timm/vit_small_patch14_dinov2.lvd142m/resolve/main/model.safetensors",
        "licence apache-2.0",
        "VisionTransformer",
        "518 x 518 pixels, 3 channels",
        "88.2 in float32",
        "softwarp weights add FILE --as vit_small_patch14_dinov2",
        "112 x 112 pixels",
    ):
        assert words in said


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["add", "FILE", "--as", "test_resnet"], "different model"),
        (["add", "FILE", "--as", "test_vitt"], "did you mean"),
        (["add", "none.pth", "--as", "test_vit"], "none.pth does not exist"),
        (["remove", "test_vit"], "there are none"),
        (["--names", "test_vitt"], "did you mean"),
        (["--names", ","], "--names needs"),
    ],
)
def test_bad_input_is_one_line(monkeypatch, capsys, file, arguments, cause):
    words = [str(file) if word == "FILE" else word for word in arguments]
    monkeypatch.setattr("sys.argv", ["softwarp", "weights", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    said = capsys.readouterr().err
    assert stop.value.code == 2
    assert cause in said
    assert len(said.splitlines()) == 1
