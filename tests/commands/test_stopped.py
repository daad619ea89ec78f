"""Ctrl-C in any command: one line that says what is left and how to go on, and exit code 130."""

import os
import subprocess
import sys

import pytest
from support.tiny_index import glyph_files
from typer.main import get_command
from typer.testing import CliRunner

from softwarp.cli import app
from softwarp.commands import stopped

# What each command calls when its work begins, where the signal arrives.
INTERRUPTED = """
import os, pkgutil, signal, sys, time
from softwarp.cli import main

def interrupted(*inputs, **keywords):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)

module, _, name = sys.argv[1].rpartition(".")
setattr(pkgutil.resolve_name(module), name, interrupted)
sys.argv = ["softwarp", *sys.argv[2:]]
main()
"""
CASES = {
    "verify run --pairs pairs.tsv": ("softwarp.inference.load", "no results"),
    "export run --to onnx -o model.onnx": ("softwarp.inference.load", "not written"),
    "evaluate points.npy --labels labels.txt": ("softwarp.data.embedding_files.load_tables", "nothing"),
    "embed run images -o out.safetensors": (
        "softwarp.index.embed_tree.embed_tree",
        "kept in out.safetensors.part",
    ),
    "data check images": ("softwarp.data.check.check_images", "nothing"),
    "faces pack images -o packed": ("softwarp.data.packing.pack_faces", "replaces"),
    "faces pairs images -o pairs.tsv": ("softwarp.data.packing.draw_pairs", "not written"),
    "report run": ("softwarp.report.write.write_report", "not written"),
    "compare run": ("softwarp.report.runs.read_entries", "nothing"),
    "serve index": ("softwarp.index.index.Index.open", "nothing"),
    "search index query.jpg": ("softwarp.index.index.Index.open", "nothing"),
    "index classify index query.jpg": ("softwarp.index.index.Index.open", "nothing"),
    "index remove index query.jpg": ("softwarp.index.index.Index.open", "whole"),
}


@pytest.mark.parametrize("words", CASES)
def test_a_stop_says_what_is_left_and_how_to_go_on(tmp_path, monkeypatch, words):
    def stop(*inputs, **keywords):
        raise KeyboardInterrupt

    glyph_files(tmp_path / "images", classes=4, styles=2)
    target, left = CASES[words]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(target, stop)
    monkeypatch.setattr(sys, "argv", ["softwarp", *words.split()])
    result = CliRunner(env={"COLUMNS": "300"}).invoke(app, words.split())
    assert result.exit_code == 130
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("stopped")]
    assert left in line
    assert line.endswith(f": softwarp {words}")


@pytest.mark.parametrize(
    "words", ["data check images", *(pytest.param(each, marks=pytest.mark.slow) for each in CASES)]
)
def test_a_signal_is_one_line_and_exit_code_130(tmp_path, words):
    glyph_files(tmp_path / "images", classes=4, styles=2)
    target, left = CASES[words]
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, target, *words.split()],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=50,
        env={**os.environ, "COLUMNS": "300"},
    )
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("stopped")]
    assert left in line
    assert line.endswith(f": softwarp {words}")


def test_every_command_that_is_named_is_there():
    """A command under another name would say that nothing was changed."""
    runner, group = CliRunner(), get_command(app)
    for name in (*stopped.RESUMED, *stopped.STARTED_OVER):
        found = group
        for word in name.split():
            found = found.commands[word]
        assert runner.invoke(app, [*name.split(), "--help"]).exit_code == 0
