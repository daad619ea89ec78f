"""Commands that softwarp prints can be pasted, and lead from study to study without collisions."""

import shlex
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from softwarp.cli import app
from softwarp.commands.benchmark import benchmark
from softwarp.commands.embed import _next
from softwarp.commands.recipes import recipe_of_words


@pytest.fixture
def best(tmp_path):
    """The best.yaml of a search in a folder whose name has a space."""
    file = tmp_path / "my birds-tune" / "best.yaml"
    file.parent.mkdir()
    file.write_text(CliRunner().invoke(app, ["show", "glyphs_proxy_nca_pp"]).output)
    return file


def test_the_best_of_two_studies_train_into_two_folders(best):
    assert recipe_of_words([str(best)], None, None)[0] == "my birds-tune"
    other = best.rename(best.with_name("other.yaml"))
    assert recipe_of_words([str(other)], None, None)[0] == "other"


@pytest.mark.parametrize(
    ("data", "folder"), [(None, "benchmark"), ("glyphs_proxy_nca_pp", "glyphs_proxy_nca_pp-benchmark")]
)
def test_a_benchmark_has_a_folder_named_after_its_data(monkeypatch, tmp_path, data, folder):
    monkeypatch.chdir(tmp_path)
    seen = []

    def stop(place):
        seen.append(place)
        raise ValueError("far enough")

    monkeypatch.setattr("softwarp.fair.each_loss.check_writable", stop)
    with pytest.raises(ValueError, match="far enough"):
        benchmark(["data.max_classes=20"], losses="arcface,cosface", data=data, trials=1, seeds=1)
    assert [place.name for place in seen] == [folder]


def test_printed_names_are_quoted(tmp_path, monkeypatch):
    file = SimpleNamespace(keys=lambda: ["labels"], metadata=lambda: {"distance": "cosine"})

    class Opened:
        def __enter__(self):
            return file

        def __exit__(self, *_):
            return None

    monkeypatch.setattr("safetensors.safe_open", lambda *_: Opened())
    line = _next([], tmp_path / "my birds.safetensors")
    assert str(tmp_path / "my birds.safetensors") in shlex.split(line)
