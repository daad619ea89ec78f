"""`softwarp export`: what it prints, what it writes, what it refuses."""

import pytest
from support.tiny_runs import PHASE, tiny
from typer.testing import CliRunner

import softwarp
from softwarp.cli import app, main
from softwarp.commands.export import Format
from softwarp.export.formats import FORMATS, SingleFile
from softwarp.training.train import train_recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train_recipe(tiny(phases=[PHASE]), tmp_path_factory.mktemp("run")).folder


def export(*arguments):
    return CliRunner().invoke(app, ["export", *map(str, arguments)], catch_exceptions=False)


def refused(monkeypatch, capsys, *arguments):
    monkeypatch.setattr("sys.argv", ["softwarp", "export", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    return capsys.readouterr().err


def test_a_folder_is_written_checked_and_pushed_only_when_asked(run, tmp_path, monkeypatch):
    pushed = []
    monkeypatch.setattr(
        "softwarp.export.formats.push_folder", lambda folder, name: pushed.append((folder, name)) or "there"
    )
    shown = export(run, "--to", "hf", "-o", tmp_path / "model", "--licence", "mit")
    assert "largest difference" in shown.output
    assert "validation images" in shown.output
    assert "softwarp.load(" in shown.output
    assert "license: mit" in (tmp_path / "model" / "README.md").read_text()
    assert softwarp.load(tmp_path / "model").distance == "euclidean"
    assert not pushed
    assert "there" in export(run, "--to", "hf", "-o", tmp_path / "model", "--push", "user/birds").output
    assert pushed == [(tmp_path / "model", "user/birds")]


@pytest.mark.slow
def test_onnx_and_int8_print_what_they_cost(run, tmp_path):
    shown = export(run, "--to", "onnx", "-o", tmp_path / "a.onnx", "--images", 24)
    assert "on 24 validation images" in shown.output
    assert "same for 24 of them" in shown.output
    assert "onnxruntime.InferenceSession(" in shown.output
    shown = export(run, "--to", "onnx", "-o", tmp_path / "b.onnx", "--quantise", "int8")
    assert "linear layers made int8: 1, convolutions left in float32: 4" in shown.output
    assert "Recall@1" in shown.output
    assert (tmp_path / "b.onnx").stat().st_size < (tmp_path / "a.onnx").stat().st_size


@pytest.mark.slow
def test_torch_export_says_how_to_load_it(run, tmp_path):
    assert "torch.export.load(" in export(run, "--to", "torch-export", "-o", tmp_path / "a.pt2").output
    assert (tmp_path / "a.pt2").is_file()


def test_a_wrong_export_is_not_written(run, tmp_path, monkeypatch, capsys):
    wrong = SingleFile(".onnx", lambda _: b"graph", lambda _, model: lambda images: images.flatten(1)[:, :16])
    monkeypatch.setitem(FORMATS, "onnx", wrong)
    error = refused(monkeypatch, capsys, run, "--to", "onnx", "-o", tmp_path / "a.onnx")
    assert "nothing was written" in error
    assert not (tmp_path / "a.onnx").exists()


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["--to", "onnx", "-o", "model.pt2"], ".onnx"),
        (["--to", "timm", "-o", "model.onnx"], ".safetensors"),
        (["--to", "hf", "-o", "model", "--quantise", "int8"], "--quantise needs --to onnx"),
        (["--to", "onnx", "-o", "model.onnx", "--push", "user/birds"], "--push"),
        (["--to", "timm", "-o", "model.safetensors"], "SmallConvNet"),
    ],
)
def test_options_that_do_not_go_together(run, tmp_path, monkeypatch, capsys, arguments, cause):
    monkeypatch.chdir(tmp_path)
    assert cause in refused(monkeypatch, capsys, run, *arguments)
    assert not any(tmp_path.iterdir())


def test_every_format_is_an_option():
    assert {each.value for each in Format} == {*FORMATS, "hf"}
