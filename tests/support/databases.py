"""Addresses of collections in real databases, each new."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from support.postgres import postgres
from support.qdrant import qdrant

KINDS = ("qdrant in a folder", "qdrant", "postgresql")


@contextmanager
def databases(kind: str, folder: Path) -> Iterator[Callable[[], str]]:
    """Yield a function that returns the URL of a collection that is not there yet."""
    number = count()
    if kind == "qdrant in a folder":
        yield lambda: f"qdrant://local/photos?path={folder}/local-{next(number)}"
    elif kind == "qdrant":
        with qdrant() as server:
            yield lambda: f"{server}/photos-{next(number)}"
    else:
        with postgres() as server:
            mark = "&" if "?" in server else "?"
            yield lambda: f"{server}{mark}table=photos_{next(number)}"
