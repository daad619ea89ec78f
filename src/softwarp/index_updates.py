"""Brings a store up to date: embeds files into it, compacts it, builds its faiss index."""

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from softwarp.data.trees import class_of
from softwarp.index_faiss import add_rows, choose_kind, make_index, tune
from softwarp.index_store import NewItem, Store, Vectors

if TYPE_CHECKING:
    from softwarp.inference import EmbeddingModel

REMOVED = 0.1  # share of removed rows from which the files are written again
TAIL = 0.05  # share of rows that are not in the faiss index yet from which they are added to it

Progress = Callable[[str, int, int], None]  # what is done, how much of it, out of how much


@dataclass
class Changes:
    """What an update did."""

    added: int = 0
    changed: int = 0
    removed: int = 0
    unchanged: int = 0
    broken: list[str] = field(default_factory=list)  # why each of these files cannot be read


def as_stored(store: Store, vectors: NDArray[Any]) -> Vectors:
    """Return vectors as the store holds them: checked, and of unit length for cosine."""
    dimensions = store.settings["dimensions"]
    if vectors.ndim != 2 or vectors.shape[1] != dimensions:
        raise ValueError(
            f"{store.folder} holds vectors of {dimensions} dimensions, not {list(vectors.shape)}"
        )
    if not np.isfinite(vectors).all():
        raise ValueError("a vector holds NaN or infinity; leave that image out")
    if store.settings["unit"]:
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
        vectors = vectors / np.where(lengths > 0, lengths, 1)
    return np.ascontiguousarray(vectors, np.float32)


def fingerprint(model: "EmbeddingModel") -> str:
    """Return a digest of the model's weights."""
    digest = hashlib.sha256()
    for name, tensor in model.network.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()


def embed_into(
    store: Store,
    model: "EmbeddingModel",
    files: Mapping[str, Path],
    *,
    thumbnails: bool = True,
    progress: Progress | None = None,
) -> Changes:
    """Embed those files, by name, that are new or changed; a batch counts once it is safe on disk."""
    from softwarp.embed_files import embed_files

    before, changes, done = store.digests(), Changes(), 0
    names = {path: name for name, path in files.items()}
    depth, splits = store.settings["depth"], store.settings["splits"]
    todo = list(names)
    for batch in embed_files(model, todo, known=lambda path: before.get(names[path]), thumbnails=thumbnails):
        items = [
            NewItem(name, class_of(name, depth=depth, splits=splits), each.digest, each.thumbnail)
            for each, name in ((each, names[each.path]) for each in batch.pictures)
        ]
        if items:
            store.append(as_stored(store, batch.vectors), items)
        lost = [name for name in (names[each.path] for each in batch.broken) if name in before]
        changes.removed += store.remove(lost) if lost else 0
        old = sum(item.path in before for item in items)
        changes.added += len(items) - old
        changes.changed += old
        changes.unchanged += batch.seen - len(items) - len(batch.broken)
        changes.broken += [each.broken for each in batch.broken]
        done += batch.seen
        if progress is not None:
            progress("embedding", done, len(todo))
    return changes


def settle(store: Store, progress: Progress | None = None) -> None:
    """Write the files again if many rows were removed, and bring the faiss index up to date."""
    if len(store.removed) > REMOVED * len(store.ids):
        store.compact()
    rows, settings = len(store.ids), store.settings
    kind = settings["wanted"]
    if kind == "auto":
        kind = choose_kind(rows, settings["dimensions"])
    if kind == "flat" or not rows:
        store.put(search=None, kind="flat", indexed=0)
    elif settings["kind"] != kind or rows - settings["indexed"] > TAIL * rows:
        _write_faiss(store, kind, progress)


def _write_faiss(store: Store, kind: str, progress: Progress | None) -> None:
    """Extend the faiss index, or build it, and measure its recall."""
    import faiss

    done, total = store.settings["indexed"] if store.settings["kind"] == kind else 0, len(store.ids)

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(f"building {kind}", done, total)

    before = store.settings.get("search")
    if done:
        index = faiss.read_index(os.fspath(store.folder / str(before)))
        add_rows(index, store.vectors[done:], advance=advance)
    else:
        index = make_index(kind, store.vectors, advance=advance)
    effort, recall = tune(index, kind, store.vectors)
    name = f"search-{store.settings['generation']}-{total}.faiss"
    temporary = store.folder / f".{name}"
    faiss.write_index(index, os.fspath(temporary))
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(store.folder / name)
    store.put(search=name, kind=kind, indexed=total, effort=effort.value, recall=recall)
    if before and before != name:
        (store.folder / before).unlink(missing_ok=True)
