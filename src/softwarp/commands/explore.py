"""`softwarp explore`: the loss's landscape as a page to play with."""

from pathlib import Path
from typing import Annotated

import typer


def explore(
    write: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Save the page here; do not open it.")
    ] = None,
) -> None:
    """Open a page on which to drag proxies, turn alpha and watch embeddings roll.

    \b
    softwarp explore                       opens it in the browser
    softwarp explore --write page.html     saves it: one file that needs no network
    """
    import webbrowser

    from softwarp.explorer import page
    from softwarp.files import cache_folder, write_text

    path = write or cache_folder() / "explorer.html"
    write_text(path, page())
    typer.echo(f"page: {path}")
    if write is None and not webbrowser.open(path.resolve().as_uri()):
        typer.echo("no browser could be opened; open the page yourself")
