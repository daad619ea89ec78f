"""`softwarp train --data` with another network: whatever is wrong with it is one line that says the cure."""

import sys

import pytest
import timm
import torch
from support.pictures import stripes

from softwarp.cli import main


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return stripes(tmp_path_factory.mktemp("own") / "images")


@pytest.fixture(scope="module")
def of_another(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "resnet.pth"
    torch.save(timm.create_model("test_resnet").state_dict(), path)
    return path


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["model.backbone=vit_smal_patch14_dinov2"], "did you mean vit_small_patch14_dinov2"),
        (["model.backbone=test_vit.nonsense"], "test_vit.nonsense"),
        (["data.crop=100"], "test_vit reads multiples of 16 pixels, not 100; set data.crop=96 or 112"),
        (["model.pretrained=gone.pth"], "gone.pth does not exist; give a .safetensors, .pth or .pt file"),
        (["model.pretrained=OF_ANOTHER"], "holds the weights of a different model"),
        (["model.pretrained=false", "WITHOUT peft"], "pip install 'softwarp[adapters]'"),
    ],
    ids=["name", "tag", "size", "no file", "wrong file", "no peft"],
)
def test_it_is_refused_in_one_line(images, of_another, tmp_path, monkeypatch, capsys, words, cause):
    if "WITHOUT peft" in words:
        monkeypatch.setitem(sys.modules, "peft", None)
    words = [word.replace("OF_ANOTHER", str(of_another)) for word in words if not word.startswith("WITHOUT")]
    command = ["softwarp", "train", "--data", str(images), "--output", str(tmp_path / "run")]
    monkeypatch.setattr("sys.argv", [*command, "model.backbone=test_vit", "data.workers=0", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    said = [line for line in capsys.readouterr().err.splitlines() if line.lower().startswith("error: ")]
    assert stop.value.code == 2
    assert len(said) == 1
    assert cause in said[0]
