"""`softwarp serve`: an index in the browser."""

import logging
import os
import re
import secrets
import socket
import sys
from typing import Annotated

import typer

from softwarp.commands.index_progress import note_damage
from softwarp.commands.options import IndexFolder
from softwarp.commands.progress import note

LOOPBACK = ("127.0.0.1", "localhost", "::1")
SHORTEST = 16  # letters of a token


def serve(
    folder: IndexFolder,
    host: Annotated[
        str,
        typer.Option(help="The address to listen on; 0.0.0.0 for all. Beyond localhost a token is needed."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 for any that is free.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="SOFTWARP_TOKEN", help="Token that visitors need. Made and printed if there is none."
        ),
    ] = None,
    upload: Annotated[int, typer.Option(min=1, help="Largest image, in megabytes.")] = 20,
    megapixels: Annotated[int, typer.Option(min=1, help="Largest image, in million pixels.")] = 50,
) -> None:
    """Search an index in the browser: by image, by neighbours, on a map.

    \b
    softwarp serve photos.index                      for this machine
    softwarp serve photos.index --host 0.0.0.0       for others, with a token
    """
    _need_packages()
    from softwarp.index.index import Index

    token = _token(token, host)
    index = Index.open(folder)
    import uvicorn

    from softwarp.memory import give_back_memory
    from softwarp.serve.app import create_app
    from softwarp.serve.connections import Connection
    from softwarp.serve.limits import Limits

    limits = Limits(upload_bytes=upload * 2**20, pixels=megapixels * 1_000_000)
    note_damage(index)
    if index.model_name:
        index.model()  # now, so that a model which cannot be loaded is reported here
    app = create_app(index, token=token, limits=limits)
    with _listen(host, port) as listener:
        typer.echo(f"{index.folder}: {len(index):,} images")
        typer.echo(f"open {_address(host, listener.getsockname()[1], token)} (Ctrl-C stops)")
        # An address may hold the token, so none is logged.
        settings = uvicorn.Config(
            app,
            http=Connection,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        give_back_memory()  # a server lives long
        server = uvicorn.Server(settings)
        # What is cut short when the server stops is no error.
        logging.getLogger("uvicorn.error").addFilter(lambda record: not server.should_exit)
        try:
            server.run([listener])
        except KeyboardInterrupt:  # which uvicorn raises once everything is answered
            note("stopped; everything that was asked is answered")
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(130)  # nothing is left to do, and taking torch apart would take a second or two


def _need_packages() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("fastapi", "uvicorn", "python_multipart") if find_spec(name) is None]
    if missing:
        raise ValueError(f"{', '.join(missing)} not installed; run: pip install 'softwarp[serve]'")


def _token(given: str | None, host: str) -> str | None:
    """The token that is needed: the one given, or a new one if others than this machine can connect."""
    if given is not None and (len(given) < SHORTEST or not re.fullmatch(r"[\w.~-]+", given, re.ASCII)):
        raise ValueError(
            f"a token needs at least {SHORTEST} letters, digits or ._~-; leave --token out and one is made"
        )
    return given if given is not None or host in LOOPBACK else secrets.token_urlsafe(24)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise OSError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}; try --port 0"
        ) from None


def _address(host: str, port: int, token: str | None) -> str:
    name = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    name = f"[{name}]" if ":" in name else name
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")
