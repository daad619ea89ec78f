"""`softwarp index push` and `softwarp search URL` as a user meets them."""

import json

import pytest
from support.qdrant import qdrant
from support.tiny_index import glyph_files
from support.tiny_runs import PHASE, tiny
from typer.testing import CliRunner

from softwarp.cli import app
from softwarp.training.train import train_recipe

pytest.importorskip("qdrant_client", reason="needs qdrant-client: pip install 'softwarp[qdrant]'")


def call(*words):
    runner = CliRunner(env={"COLUMNS": "200"})
    done = runner.invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_a_pushed_index_answers_as_its_folder_does(tmp_path):
    with qdrant() as server:
        _answers_as_its_folder_does(tmp_path, f"{server}/glyphs", "qdrant://127.0.0.1/glyphs")


def _answers_as_its_folder_does(tmp_path, url, address):
    run = train_recipe(tiny(phases=[PHASE]), tmp_path / "run").folder
    images, index = glyph_files(tmp_path / "images"), tmp_path / "index"
    assert f"{address}: 24 sent" in call("index", run, images, "-o", index, "--to", url)
    (images / "U+0041" / "DejaVuSans.png").unlink()
    call("index", "refresh", index)
    pushed = call("index", "push", index, "--to", url)
    assert f"{address}: 1 removed, 23 unchanged" in pushed
    query = images / "U+0042" / "DejaVuSans.png"
    words = (query, "-k", 5, "--where", "path=*Sans*", "--json")
    here, there = (json.loads(call("search", place, *words)) for place in (index, url))
    assert (here.pop("index"), there.pop("index")) == (str(index), address)
    far = [hit.pop("distance") for hit in there["queries"][0]["results"]]
    near = [hit.pop("distance") for hit in here["queries"][0]["results"]]
    assert there == here
    assert far == pytest.approx(near, abs=1e-3)
    assert len(near) == 5
    call("search", url, query, "-k", 3, "--html", tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().count("data:image/jpeg") == 4
