"""Nearest rows by faiss: an exact scan, HNSW or IVF-PQ, chosen by size and memory.

All of them search by Euclidean distance; unit vectors make that the order of cosine. What faiss returns are
candidates: their order and distances come from float64, read from the mapped vectors.
"""

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from softwarp.index.rows import Distances, Mask, Rows, Vectors

KINDS = ("flat", "hnsw", "ivfpq")
FEWEST = {"hnsw": 1, "ivfpq": 16}  # images that a kind needs; fewer are scanned
SCANNED = 2**30  # bytes of vectors that an exact scan reads in about a tenth of a second
SPARE = 8  # candidates beyond k, as float32 may err about the last ones
LINKS = 32  # links of HNSW per vector and direction
FEW = 0.1  # share of the rows; if fewer are allowed, these are scanned exactly
TARGET = 0.95  # the recall@10 until which efforts are doubled
LARGEST_EFFORT = 1024
REFINED = 16  # IVF-PQ: candidates per neighbour asked for, as its codes are coarse
JUDGED = 200  # queries for which recall is measured
BLOCK_VALUES = 2**23  # values of candidates that are compared in float64 at a time
DIVIDED = 2**22  # values of vectors from which threads share the scan for a query
ADDED = 50_000  # rows that are added to a graph at a time


@dataclass(frozen=True)
class Effort:
    """How far an approximate search looks: HNSW's efSearch, or the lists that IVF-PQ opens."""

    kind: str
    value: int = 0


def choose_kind(rows: int, dimensions: int, *, scanned: int = SCANNED, memory: int | None = None) -> str:
    """Return flat if a scan is quick, otherwise hnsw if it fits into half of the memory, otherwise ivfpq.

    >>> choose_kind(1_000_000, 128), choose_kind(10_000_000, 512, memory=2**38)
    ('flat', 'hnsw')
    >>> choose_kind(100_000_000, 512, memory=2**36)
    'ivfpq'
    """
    size = rows * dimensions * 4
    if size <= scanned:
        return "flat"
    memory = _memory() if memory is None else memory
    return "hnsw" if size + rows * LINKS * 2 * 4 <= memory / 2 else "ivfpq"


def make_index(kind: str, vectors: Vectors, *, advance: Callable[[int], None] | None = None) -> Any:
    """Return a faiss index of all vectors, HNSW or IVF-PQ."""
    faiss = _faiss()
    rows, dimensions = vectors.shape
    if kind == "hnsw":
        index = faiss.IndexHNSWFlat(dimensions, LINKS)
        index.hnsw.efConstruction = 80
    else:
        lists = max(1, min(4 * math.isqrt(rows), rows // 39))  # faiss wants 39 vectors per list
        bits = 8 if rows >= 256 * 39 else 4
        index = faiss.IndexIVFPQ(faiss.IndexFlatL2(dimensions), dimensions, lists, _parts(dimensions), bits)
        chosen = np.random.default_rng(0).choice(rows, min(rows, max(256, lists) * 64), replace=False)
        index.train(np.ascontiguousarray(vectors[np.sort(chosen)]))
    add_rows(index, vectors, advance=advance)
    return index


def add_rows(index: Any, vectors: Vectors, *, advance: Callable[[int], None] | None = None) -> None:
    """Add vectors to a faiss index, some at a time."""
    for start in range(0, len(vectors), ADDED):
        part = np.ascontiguousarray(vectors[start : start + ADDED])
        index.add(part)
        if advance is not None:
            advance(len(part))


def open_mapped(path: Path) -> Any:
    """Return a faiss index whose vectors and lists stay on disk until they are needed; None if damaged."""
    # The graph and vectors of HNSW are mapped by the newer flag, the lists of IVF by the older one.
    try:
        return _faiss().read_index(os.fspath(path), _faiss().IO_FLAG_MMAP_IFC)
    except RuntimeError:
        return None


def read_index(path: Path) -> Any:
    """Return a faiss index in memory, to which rows can be added."""
    return _faiss().read_index(os.fspath(path))


def write_index(index: Any, path: Path) -> int:
    """Write a faiss index, safe on disk when this returns, and return its size in bytes."""
    temporary = path.with_name(f".{path.name}")
    try:
        _faiss().write_index(index, os.fspath(temporary))
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
    except (RuntimeError, OSError) as error:
        temporary.unlink(missing_ok=True)
        reason = "the disk is full" if "No space" in str(error) else str(error)
        raise OSError(f"{path} cannot be written ({reason}); make room, then refresh the index") from None
    temporary.replace(path)
    return path.stat().st_size


def scan(queries: Vectors, vectors: Vectors, k: int, allowed: Mask | None = None) -> Rows:
    """Return the rows [Q, k or more] of the nearest vectors by an exact scan, -1 where there are fewer."""
    k = min(k, len(vectors))
    if k == 0 or not len(queries):
        return np.empty((len(queries), k), np.int64)
    if allowed is not None and allowed.mean() < FEW:
        chosen = np.flatnonzero(allowed)
        found = scan(queries, np.ascontiguousarray(vectors[chosen]), k)
        return np.where(found < 0, -1, chosen[found])
    parts = _faiss().omp_get_max_threads() // len(queries) if vectors.size > DIVIDED else 1
    if parts < 2:
        return _scan(queries, vectors, k, allowed)
    # faiss gives a query one thread: few queries are asked in several parts of the vectors at a time.
    edges = [part * len(vectors) // parts for part in range(parts + 1)]

    def scan_part(start: int, stop: int) -> Rows:
        inside = None if allowed is None else allowed[start:stop]
        found = _scan(queries, vectors[start:stop], k, inside)
        return np.where(found < 0, -1, found + start)

    with ThreadPoolExecutor(parts) as pool:
        return np.concatenate(list(pool.map(scan_part, edges[:-1], edges[1:])), axis=1)


def _scan(queries: Vectors, vectors: Vectors, k: int, allowed: Mask | None) -> Rows:
    faiss = _faiss()
    selector, _bits = _selected(allowed)
    distances, rows = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
    pointers = [faiss.swig_ptr(array) for array in (queries, vectors, distances, rows)]
    faiss.knn_L2sqr(
        *pointers[:2], vectors.shape[1], len(queries), len(vectors), k, *pointers[2:], None, selector
    )
    return rows


def _selected(allowed: Mask | None) -> tuple[Any, Any]:
    """faiss's form of a mask, None for all rows, and the bits that it points to and does not keep alive."""
    if allowed is None:
        return None, None
    bits = np.packbits(allowed, bitorder="little")
    return _faiss().IDSelectorBitmap(len(allowed), _faiss().swig_ptr(bits)), bits


def probe(index: Any, effort: Effort, queries: Vectors, k: int, allowed: Mask | None = None) -> Rows:
    """Return the rows [Q, candidates] that an approximate index offers for the k nearest, -1 for none."""
    faiss = _faiss()
    selector, _bits = _selected(allowed)
    if effort.kind == "hnsw":
        count = min(k + SPARE, index.ntotal)
        settings = faiss.SearchParametersHNSW(efSearch=max(effort.value, count), sel=selector)
    else:
        count = min(k * REFINED, index.ntotal)
        settings = faiss.SearchParametersIVF(nprobe=effort.value, sel=selector)
    # pytorch-metric-learning loads faiss.contrib.torch_utils, whose `search` takes no params.
    search = getattr(index, "search_numpy", index.search)
    rows: Rows = search(queries, count, params=settings)[1]
    return rows


def nearest(queries: Vectors, vectors: Vectors, candidates: Rows, k: int) -> tuple[Distances, Rows]:
    """Return distances and rows [Q, k] of the nearest candidates, by float64, ties by row."""
    parts = []
    step = max(1, BLOCK_VALUES // max(1, candidates.shape[1] * vectors.shape[1]))
    for start in range(0, len(queries), step):
        rows = candidates[start : start + step]
        differences = vectors[rows].astype(np.float64) - queries[start : start + step, None]
        squares = np.einsum("qkd,qkd->qk", differences, differences)
        squares[rows < 0] = np.inf
        order = np.lexsort((rows, squares), axis=-1)[:, :k]
        parts.append((np.take_along_axis(squares, order, 1), np.take_along_axis(rows, order, 1)))
    if not parts:
        return np.empty((0, k)), np.empty((0, k), np.int64)
    return np.sqrt(np.concatenate([part[0] for part in parts])), np.concatenate([part[1] for part in parts])


def find_effort(index: Any, kind: str, vectors: Vectors) -> tuple[Effort, float]:
    """Return the least effort whose recall@10 reaches 0.95, or the largest one, and its recall.

    The queries are vectors of the index; each one is left out of its own neighbours.
    """
    rows = np.sort(np.random.default_rng(0).choice(len(vectors), min(JUDGED, len(vectors)), replace=False))
    queries = np.ascontiguousarray(vectors[rows])
    truth = _neighbours(vectors, queries, rows, scan(queries, vectors, 11 + SPARE))
    largest = LARGEST_EFFORT if kind == "hnsw" else index.nlist
    value = min(16, largest)
    while True:
        effort = Effort(kind, value)
        found = _neighbours(vectors, queries, rows, probe(index, effort, queries, 11))
        recall = _share(found, truth)
        if recall >= TARGET or value == largest:
            return effort, recall
        value = min(2 * value, largest)


def _neighbours(vectors: Vectors, queries: Vectors, rows: Rows, candidates: Rows) -> list[set[int]]:
    """The ten nearest of each query, itself left out."""
    others = np.where(candidates == rows[:, None], -1, candidates)
    _, found = nearest(queries, vectors, others, min(10, candidates.shape[1]))
    return [set(each[each >= 0].tolist()) for each in found]


def _share(found: list[set[int]], truth: list[set[int]]) -> float:
    wanted = sum(len(each) for each in truth)
    return sum(len(one & other) for one, other in zip(found, truth, strict=True)) / max(1, wanted)


def _parts(dimensions: int) -> int:
    """The largest divisor that leaves at least 4 dimensions per code; 1 if there is none."""
    return max(number for number in range(1, max(1, dimensions // 4) + 1) if dimensions % number == 0)


def _memory() -> int:
    """Bytes of memory that the machine has."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # Windows
        return 2**33


def _faiss() -> Any:
    """The package, without its types: they lack what is used here."""
    import faiss

    return faiss
