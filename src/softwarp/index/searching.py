"""Vectors as a store holds them, and the rows nearest to one, by scan or faiss, that a filter allows."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from softwarp.index.faiss_index import FEW, SPARE, Effort, nearest, probe, scan
from softwarp.index.rows import Distances, Mask, Rows, Vectors
from softwarp.index.store import IndexStore
from softwarp.names import did_you_mean

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 1e16  # value of a vector whose square, added up, surely fits into float32


def nearest_rows(
    store: IndexStore, graph: Any, queries: Vectors, k: int, allowed: Mask | None
) -> tuple[Distances, Rows]:
    """Return Euclidean distances and rows [Q, k].

    Args:
        graph: the faiss index; None to scan.
        allowed: the rows that may be found, at least k; None for all.
    """
    distances, rows = nearest(queries, store.vectors, _candidates(store, graph, queries, k, allowed), k)
    short = (rows < 0).any(axis=1)  # a graph may offer fewer than k that a filter lets through
    if short.any():
        candidates = scan(queries[short], store.vectors, k + SPARE, allowed)
        distances[short], rows[short] = nearest(queries[short], store.vectors, candidates, k)
    if (rows < 0).any():
        raise ValueError(
            f"vectors of {store.folder} are too large to compare; scale them, and build it again"
        )
    return distances, rows


def as_stored(store: IndexStore, vectors: "NDArray[Any] | Tensor", names: Sequence[str] = ()) -> Vectors:
    """Return vectors as the store holds them: checked, and of unit length for cosine.

    Args:
        names: of the images, for errors.
    """
    dimensions = store.settings["dimensions"]
    with np.errstate(over="ignore"):  # what overflows becomes infinite, and is refused below
        found = np.asarray(vectors, np.float32)
    if found.ndim != 2 or found.shape[1] != dimensions:
        raise ValueError(f"{store.folder} holds vectors of {dimensions} dimensions, not {list(found.shape)}")
    _refuse(~np.isfinite(found), names, "NaN or infinity")
    if store.settings["unit"]:
        lengths = np.linalg.norm(found.astype(np.float64), axis=1, keepdims=True)
        found = np.asarray(found / np.where(lengths > 0, lengths, 1), np.float32)
    _refuse(np.abs(found) > LARGEST, names, f"a number beyond {LARGEST:g}")
    return np.ascontiguousarray(found)


def _refuse(wrong: NDArray[np.bool_], names: Sequence[str], what: str) -> None:
    if wrong.any():
        row = int(wrong.any(axis=1).argmax())
        whose = f"the vector of {names[row]}" if row < len(names) else f"vector {row}"
        raise ValueError(f"{whose} holds {what}, which cannot be searched; leave that image out")


def as_told(euclidean: Distances, distance: str) -> Distances:
    """Return Euclidean distances as an index tells them: as 1 - cos if that is its distance."""
    return euclidean**2 / 2 if distance == "cosine" else euclidean


def allowed_rows(store: IndexStore, where: Sequence[tuple[str, str]]) -> Mask | None:
    """Return which rows may be found; None for all."""
    if not where and not len(store.removed):
        return None
    for name, value in where:
        if name == "class" and value not in (known := store.classes()):
            answer = did_you_mean(value, known, f"it has {len(known):,} others")
            raise ValueError(f"no class of {store.folder} is called {value!r}; {answer}")
    mask = np.zeros(len(store.ids), bool)
    mask[store.rows_of(store.select(where)) if where else store.live_rows()] = True
    return mask


def _candidates(store: IndexStore, graph: Any, queries: Vectors, k: int, allowed: Mask | None) -> Rows:
    if graph is None or k == 0 or (allowed is not None and allowed.mean() < FEW):
        return scan(queries, store.vectors, k + SPARE if k else 0, allowed)
    start, effort = store.settings["indexed"], Effort(store.settings["kind"], store.settings["effort"])
    near = probe(graph, effort, queries, k, None if allowed is None else allowed[:start])
    tail = scan(queries, store.vectors[start:], k + SPARE, None if allowed is None else allowed[start:])
    return np.concatenate([near, np.where(tail < 0, -1, tail + start)], axis=1)
