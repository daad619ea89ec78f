"""`softwarp serve` as a user meets it."""

import contextlib
import re
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest
import uvicorn
from support.tiny_index import glyph_index, vector_index
from typer.testing import CliRunner

from softwarp.cli import app, main
from softwarp.index.index import Index


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    return glyph_index(tmp_path_factory.mktemp("served"), classes=2)


@pytest.fixture
def started(monkeypatch, index):
    """Servers that would run: their settings and the address they listen on."""
    found = []

    def run(server, sockets):
        found.append((server.config, sockets[0].getsockname()))

    monkeypatch.setattr(uvicorn.Server, "run", run)
    monkeypatch.setattr(Index, "model", lambda self: index._model)
    return found


def call(*words, **settings):
    return CliRunner().invoke(app, ["serve", *map(str, words)], catch_exceptions=False, **settings)


def failure(monkeypatch, capsys, *words):
    monkeypatch.setattr("sys.argv", ["softwarp", "serve", *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code, capsys.readouterr().err


def guard_of(config):
    (guard,) = [each for each in config.app.user_middleware if each.cls.__name__ == "Guard"]
    return guard.kwargs


def test_it_is_bound_to_this_machine_and_needs_no_token(index, started):
    shown = call(index.folder, "--port", 0).output
    ((config, (host, port)),) = started
    assert host == "127.0.0.1"
    assert f"http://127.0.0.1:{port}/ " in shown
    assert "8 images" in shown
    assert guard_of(config)["token"] is None
    assert config.access_log is False  # an address may hold the token
    assert config.server_header is False


def test_beyond_this_machine_a_token_is_made(index, started):
    shown = [call(index.folder, "--port", 0, "--host", "0.0.0.0").output for _ in range(2)]
    tokens = [guard_of(config)["token"] for config, _ in started]
    assert tokens[0] != tokens[1]
    for text, token in zip(shown, tokens, strict=True):
        assert len(token) >= 32
        assert f"/?token={token} " in text


def test_a_token_of_one_s_own_comes_from_option_or_environment(index, started, monkeypatch, capsys):
    call(index.folder, "--port", 0, "--token", "sixteen-letters-x")
    call(index.folder, "--port", 0, env={"SOFTWARP_TOKEN": "from-the-environment"})
    assert [guard_of(each)["token"] for each, _ in started] == ["sixteen-letters-x", "from-the-environment"]
    for weak in ("short", "with a space in its middle", "ünïcode-letters-here"):
        code, told = failure(monkeypatch, capsys, index.folder, "--token", weak)
        assert code == 2
        assert "16" in told


def test_limits_are_passed_on(index, started):
    call(index.folder, "--port", 0, "--upload", 3, "--megapixels", 7)
    limits = guard_of(started[0][0])["limits"]
    assert (limits.upload_bytes, limits.pixels) == (3 * 2**20, 7_000_000)


def test_ctrl_c_ends_it_with_the_code_of_other_commands_and_one_line(tmp_path):
    folder = vector_index(tmp_path / "index", np.eye(3, dtype=np.float32)).folder
    words = [sys.executable, "-um", "softwarp", "serve", folder, "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        told = [server.stdout.readline() for _ in range(2)]
        port = int(re.search(r":(\d+)/", told[1])[1])
        with socket.create_connection(("127.0.0.1", port)) as browser:  # it keeps its connection open
            browser.sendall(b"GET /api/index HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert browser.recv(100).startswith(b"HTTP/1.1 200")
            server.send_signal(signal.SIGINT)
            said, line = server.communicate(timeout=60)
            assert said == ""
            assert line.startswith("stopped")
            assert line.count("\n") == 1
    assert server.returncode == 130


def test_what_hinders_it_is_told_in_one_line(index, started, monkeypatch, capsys, tmp_path):
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        code, told = failure(monkeypatch, capsys, index.folder, "--port", port)
    assert code == 2
    assert str(port) in told
    assert "--port" in told
    assert "softwarp index" in failure(monkeypatch, capsys, tmp_path)[1]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "fastapi" else object())
    told = failure(monkeypatch, capsys, index.folder)[1]
    assert "fastapi" in told
    assert "softwarp[serve]" in told
