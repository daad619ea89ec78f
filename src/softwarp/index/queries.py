"""What an index is asked: files, images or embeddings, filters, and the model that fits its vectors."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from softwarp.data.decode import digest_of
from softwarp.index.updates import weights_digest

if TYPE_CHECKING:
    from torch import Tensor

    from softwarp.data.given_images import Picture
    from softwarp.inference import EmbeddingModel

    Queries = NDArray[Any] | Tensor | Picture | Sequence[Picture]


def model_of(name: str, weights: str, place: str) -> "EmbeddingModel":
    """Return the model of that name, if it is the one that made the vectors at a place."""
    from softwarp.inference import load

    if not name:
        raise ValueError(
            f"{place} names no model; search with vectors, or give its model: Index.open(FOLDER, model=MODEL)"
        )
    model = load(name)
    check_model(model, weights, place)
    return model


def check_model(model: "EmbeddingModel", weights: str, place: str) -> None:
    """Refuse a model whose weights are not those, by `weights_digest`, that made the vectors at a place."""
    if weights_digest(model) != weights:
        raise ValueError(
            f"{model.source or model} is not the model that {place} was built with: its weights differ, or "
            "how it pools features; build the index again"
        )


def as_vectors(queries: "Queries", model: "Callable[[], EmbeddingModel]") -> "NDArray[Any] | Tensor":
    """Return embeddings as they are; files and images are embedded, by a model that is loaded for them."""
    first: Any = queries[0] if isinstance(queries, list | tuple) and queries else queries
    named = isinstance(first, str | Path | bytes)
    if named or hasattr(first, "getexif") or (getattr(first, "ndim", 0) > 2 and "uint8" in str(first.dtype)):
        pictures: Any = queries
        return model().embed(pictures)
    return np.asarray(queries)


def origins(queries: "Queries", count: int) -> tuple[list[str], list[str | None]]:
    """Return the name of each query, a file or a number, and the digest of its content, None if unknown."""
    from softwarp.data.decode import read_content

    given: list[Any] = list(queries) if isinstance(queries, list | tuple) else [queries]
    if len(given) != count or not isinstance(given[0], Path | str | bytes):
        return [str(number) for number in range(count)], [None] * count
    names = [str(number) if isinstance(each, bytes) else str(each) for number, each in enumerate(given)]
    contents = (each if isinstance(each, bytes) else read_content(Path(each)) for each in given)
    return names, [digest_of(content).hex() for content in contents]


def farthest(within: float | None) -> float:
    """Return the largest distance that may be found; infinity if none is given.

    >>> farthest(0.3), farthest(None)
    (0.3, inf)
    """
    if within is None:
        return math.inf
    if not within >= 0:  # nor is it a number that NaN is
        raise ValueError(f"within is {within}; give a distance, at least 0, as search tells it")
    return within


def parse_where(where: str | Sequence[str]) -> list[tuple[str, str]]:
    """Return conditions as pairs: `class` and a name, or `path` and a glob.

    >>> parse_where("class=wren")
    [('class', 'wren')]
    """
    pairs = []
    for condition in [where] if isinstance(where, str) else where:
        name, separator, value = condition.partition("=")
        if not separator or name not in ("class", "path"):
            raise ValueError(f"{condition!r} is not a filter; write class=NAME or path=GLOB")
        pairs.append((name, value))
    return pairs
