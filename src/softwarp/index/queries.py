"""What an index is asked: files, images or embeddings, filters, and the model that fits its vectors."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from softwarp.index.updates import weights_digest

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from softwarp.inference import EmbeddingModel

    Picture = Path | str | bytes | Image.Image
    Queries = NDArray[Any] | Tensor | Picture | Sequence[Picture]


def model_of(name: str, weights: str, place: str) -> "EmbeddingModel":
    """Return the model of that name; an error if its `weights_digest` is not that of the vectors at a place."""
    from softwarp.inference import load

    model = load(name)
    if weights_digest(model) != weights:
        raise ValueError(
            f"{name} is not the model that {place} was built with: its weights differ; build the index again"
        )
    return model


def as_vectors(queries: "Queries", model: "Callable[[], EmbeddingModel]") -> "NDArray[Any] | Tensor":
    """Return embeddings as they are; files and images are embedded, by a model that is loaded for them."""
    first: Any = queries[0] if isinstance(queries, list | tuple) and queries else queries
    named = isinstance(first, str | Path | bytes)
    if named or hasattr(first, "getexif") or (getattr(first, "ndim", 0) > 2 and "uint8" in str(first.dtype)):
        pictures: Any = queries
        return model().embed(pictures)
    return np.asarray(queries)


def parse_where(where: str | Sequence[str]) -> list[tuple[str, str]]:
    """Return conditions as pairs: `class` and a name, or `path` and a glob.

    >>> parse_where("class=wren")
    [('class', 'wren')]
    """
    pairs = []
    for condition in [where] if isinstance(where, str) else where:
        name, separator, value = condition.partition("=")
        if not separator or name not in ("class", "path"):
            raise ValueError(f"{condition!r} is no filter; write class=NAME or path=GLOB")
        pairs.append((name, value))
    return pairs
