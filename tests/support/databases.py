"""Addresses of collections in real databases, each new."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from support.postgres import postgres
from support.qdrant import qdrant

KINDS = ("qdrant", "postgresql")


@contextmanager
def databases(kind: str) -> Iterator[Callable[[], str]]:
    """Yield a function that returns the URL of a collection that is not there yet."""
    number = count()
    if kind == "qdrant":
        with qdrant() as server:
            yield lambda: f"{server}/photos-{next(number)}"
    else:
        with postgres() as server:
            mark = "&" if "?" in server else "?"
            yield lambda: f"{server}{mark}table=photos_{next(number)}"
