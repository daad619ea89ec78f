"""Names that people type: which known one an unknown one may have meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "", *, most: int = 1) -> str:
    """Return the question that names the nearest known names, `otherwise` if none is near.

    >>> did_you_mean("arcfaec", ["arcface", "hist"]), did_you_mean("x", ["hist"], "there is hist")
    ('did you mean arcface?', 'there is hist')
    """
    near = get_close_matches(name, list(known), n=most)
    return f"did you mean {' or '.join(near)}?" if near else otherwise
