"""Indexes of images: `build`, `open_index`, search, add, remove, refresh.

After `index = build("runs/birds", "photos", "photos.index")`, the ten images nearest to a query are
`ids, distances = index.search("query.jpg", k=10)`, and `index.item(ids[0, 0]).path` is the nearest one's
file. torch is loaded with the model, not before.
"""

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from softwarp.data.trees import (
    FoundImages,
    absolute,
    class_notes,
    find_images,
    has_splits,
    is_list,
    name_of,
    root_of,
)
from softwarp.events import OnEvent
from softwarp.index.faiss_index import FEW, KINDS, SPARE, Effort, nearest, open_mapped, probe, scan
from softwarp.index.queries import as_vectors, model_of, parse_where
from softwarp.index.sources import by_name, held_by, refuse_losses
from softwarp.index.store import IndexedImage, IndexStore, NewImage, Rows, Vectors
from softwarp.index.table import TABLE
from softwarp.index.updates import Changes, as_stored, compact_and_index, embed_into, weights_digest

if TYPE_CHECKING:
    from torch import Tensor

    from softwarp.index.queries import Queries
    from softwarp.inference import EmbeddingModel

Found = tuple[NDArray[np.int64], NDArray[np.float64]]


class Index:
    """Images that can be searched; made by `build` and `open_index`.

    `items`, `ids` and `vectors` belong together row by row. Vectors are of unit length where the distance is
    "cosine". An id stays with an image as long as its content does, and is never used again. Everything shows
    the index as it was when it was opened, or last changed by this object, whatever others do to it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = IndexStore(folder)
        self.changes = Changes()  # what the last add, remove or refresh did

    def __len__(self) -> int:
        return len(self.store.ids) - len(self.store.removed)

    def __repr__(self) -> str:
        return f"Index({str(self.folder)!r}, {len(self):,} images, {self.dimensions} dimensions, {self.kind})"

    @property
    def address(self) -> str:
        """Where it is, as a command takes it."""
        return str(self.folder)

    @property
    def distance(self) -> str:
        """The distance of the model's embeddings: "euclidean" or "cosine" (1 - cos)."""
        return str(self.store.settings["distance"])

    @property
    def dimensions(self) -> int:
        return int(self.store.settings["dimensions"])

    @property
    def root(self) -> Path:
        """The folder that the items' paths start from."""
        return Path(self.store.settings["root"])

    @property
    def model_name(self) -> str:
        """The run folder or pretrained model that the vectors come from."""
        return str(self.store.settings["model"])

    @property
    def kind(self) -> str:
        """How vectors are searched: flat (exact), hnsw or ivfpq."""
        return str(self.store.settings["kind"]) if self._faiss is not None else "flat"

    @property
    def damaged(self) -> bool:
        """Whether the approximate index is missing or broken, and is scanned for until a refresh mends it."""
        return bool(self.store.settings.get("search")) and self._faiss is None

    @property
    def recall(self) -> float:
        """Recall@10 against an exact scan, measured when an approximate index was built; 1 if flat."""
        return float(self.store.settings["recall"]) if self.kind != "flat" else 1.0

    @cached_property
    def ids(self) -> Rows:
        """The ids of all items, ascending."""
        return np.asarray(
            self.store.ids[self.store.live_rows()] if len(self.store.removed) else self.store.ids
        )

    @cached_property
    def vectors(self) -> Vectors:
        """The vectors [N, D] of all items, mapped from disk; copied if some were removed since compaction."""
        return self.store.vectors[self.store.live_rows()] if len(self.store.removed) else self.store.vectors

    @cached_property
    def items(self) -> list[IndexedImage]:
        """All items, by id."""
        return self.store.items()

    def item(self, number: int) -> IndexedImage:
        """Return the item with that id."""
        return self.store.items([number])[0]

    def file(self, item: IndexedImage) -> Path:
        """Return where the image of an item is."""
        return self.root / item.path

    def thumbnail(self, number: int) -> bytes:
        """Return a JPEG of at most 160 pixels a side of the item with that id."""
        return self.store.thumbnail(number)

    def picture(self, item: IndexedImage) -> bytes:
        """Return a small JPEG of an item."""
        return self.thumbnail(item.id)

    def model(self) -> "EmbeddingModel":
        """Return the model that made the vectors; an error if it has been trained again since."""
        return self._model

    @cached_property
    def _model(self) -> "EmbeddingModel":
        return model_of(self.model_name, self.store.settings["fingerprint"], str(self.folder))

    def search(self, queries: "Queries", k: int = 10, *, where: str | Sequence[str] = ()) -> Found:
        """Return ids and distances [Q, k] of the nearest items, or of all if there are fewer than k.

        Args:
            queries: embeddings [Q, D] or [D]; or what the model embeds: a file, an image, or several.
            where: `class=NAME` or `path=GLOB`, or several that must all hold.
        """
        if k < 1:
            raise ValueError(f"k is {k}; ask for at least 1")
        allowed = self._allowed(parse_where(where))
        vectors = as_stored(self.store, np.atleast_2d(as_vectors(queries, self.model)))
        k = min(k, len(self) if allowed is None else int(allowed.sum()))
        distances, rows = nearest(vectors, self.store.vectors, self._candidates(vectors, k, allowed), k)
        short = (rows < 0).any(axis=1)  # a graph may offer fewer than k that a filter lets through
        if short.any():
            candidates = scan(vectors[short], self.store.vectors, k + SPARE, allowed)
            distances[short], rows[short] = nearest(vectors[short], self.store.vectors, candidates, k)
        if (rows < 0).any():
            raise ValueError(
                f"vectors of {self.folder} are too large to compare; scale them, and build it again"
            )
        ids = np.asarray(self.store.ids)[rows] if k else rows
        return ids, distances**2 / 2 if self.distance == "cosine" else distances

    def find(
        self, queries: "Queries", k: int = 10, *, where: str | Sequence[str] = ()
    ) -> list[list[tuple[IndexedImage, float]]]:
        """Return what `search` does as items and distances, a list per query."""
        ids, distances = self.search(queries, k, where=where)
        return [
            list(zip(self.store.items(near), away, strict=True))
            for near, away in zip(ids.tolist(), distances.tolist(), strict=True)
        ]

    def add(self, paths: Iterable[Path | str], *, on_event: OnEvent | None = None) -> Changes:
        """Add images, folders of images and CSV lists; what is in the index already is left alone."""
        places = [Path(path) for path in paths]
        with self._updating(on_event):
            found = find_images(places)
            files, labels = by_name(found, self.root)
            if not files:
                raise ValueError(f"there are no images in {', '.join(map(str, places))}")
            self.store.include(files)
            sources = [str(absolute(place)) for place in places if place.is_dir() or is_list(place)]
            self.store.put(sources=list(dict.fromkeys([*self.store.settings["sources"], *sources])))
            self._remember(found, before=self.store.lists())  # a refresh removes what is no longer listed
            self.changes = embed_into(self.store, self.model(), files, labels=labels, on_event=on_event)
            self.changes.notes += found.notes
            if self.store.settings["depth"] is None:
                named = (name for name in files if name not in labels)
                self.changes.notes += class_notes(named, splits=self.store.settings["splits"])
        return self.changes

    def remove(self, paths: Iterable[Path | str], *, on_event: OnEvent | None = None) -> Changes:
        """Remove images, or all of folders or CSV files; `refresh` does not add them again, `add` does."""
        places = [Path(path) for path in paths]
        with self._updating(on_event):
            names, lists = [item.path for item in self.store.items()], self.store.lists()
            held = held_by([absolute(place) for place in places], names, lists, self.root)
            gone = [name for name in names if any(name in inside for inside in held.values())]
            self.changes = Changes(removed=self.store.remove(gone, exclude=True))
        return self.changes

    def refresh(self, *, remove_missing: bool = False, on_event: OnEvent | None = None) -> Changes:
        """Bring the index up to date with its folders and CSV files: new, changed and vanished images.

        Changed are files with another content, and images to which a CSV file now gives another label.
        Vanished are files, and lines of a CSV file.

        Args:
            remove_missing: go on if more than half of a source's images are gone; not if all are.
        """
        with self._updating(on_event):
            sources = [Path(source) for source in self.store.settings["sources"]]
            found = find_images(sources)
            files, labels = by_name(found, self.root)
            names, lists = [item.path for item in self.store.items()], self.store.lists()
            unlisted = set().union(*lists.values()) - files.keys()
            files |= {name: self.root / name for name in names if name not in files}
            gone = {name for name in names if name in unlisted or not files[name].is_file()}
            held = held_by(sources, names, lists, self.root)
            refuse_losses(names, gone, held=held, index=self.folder, remove_missing=remove_missing)
            left_out = gone | self.store.excluded()
            there = {name: path for name, path in files.items() if name not in left_out}
            removed = self.store.remove(gone)
            self._remember(found)  # not before: killed in between, the next refresh must see what is gone
            self.changes = embed_into(self.store, self.model(), there, labels=labels, on_event=on_event)
            self.changes.removed += removed
            self.changes.notes += found.notes
        return self.changes

    def append(
        self,
        vectors: "NDArray[Any] | Tensor",
        items: Sequence[NewImage],
        *,
        on_event: OnEvent | None = None,
    ) -> None:
        """Add vectors that were made elsewhere, one per item."""
        with self._updating(on_event):
            self.store.append(as_stored(self.store, vectors, [item.path for item in items]), items)

    def _remember(self, found: FoundImages, *, before: Mapping[str, set[str]] | None = None) -> None:
        """Keep what CSV files list, to see later what is gone from them.

        Args:
            before: what they listed earlier, which is kept, too.
        """
        for file, labels in found.lists.items():
            listed = {name_of(path, self.root) for path in labels}
            self.store.put_list(str(file), listed | (before or {}).get(str(file), set()))

    @contextmanager
    def _updating(self, on_event: OnEvent | None) -> Iterator[None]:
        """Keep other writers out; afterwards compact if needed, and bring the faiss index up to date."""
        self._forget()  # what is held of files would keep them
        try:
            with self.store.writing():
                yield
                compact_and_index(self.store, on_event)
        finally:
            self._forget()

    def _forget(self) -> None:
        for name in ("ids", "vectors", "items", "_faiss"):
            self.__dict__.pop(name, None)

    @cached_property
    def _faiss(self) -> Any:
        """The approximate index; None if there is none, or it is damaged."""
        path = self.store.search_file()
        return None if path is None else open_mapped(path)

    def _candidates(self, queries: Vectors, k: int, allowed: NDArray[np.bool_] | None) -> Rows:
        stored = self.store.vectors
        if self.kind == "flat" or k == 0 or (allowed is not None and allowed.mean() < FEW):
            return scan(queries, stored, k + SPARE if k else 0, allowed)
        start, effort = self.store.settings["indexed"], Effort(self.kind, self.store.settings["effort"])
        near = probe(self._faiss, effort, queries, k, None if allowed is None else allowed[:start])
        tail = scan(queries, stored[start:], k + SPARE, None if allowed is None else allowed[start:])
        return np.concatenate([near, np.where(tail < 0, -1, tail + start)], axis=1)

    def _allowed(self, where: Sequence[tuple[str, str]]) -> NDArray[np.bool_] | None:
        """Which rows may be found; None for all."""
        if not where and not len(self.store.removed):
            return None
        for name, value in where:
            if name == "class" and value not in (known := self.store.classes()):
                near = get_close_matches(value, known, n=1)
                answer = f"did you mean {near[0]!r}?" if near else f"it has {len(known):,} others"
                raise ValueError(f"no class of {self.folder} is called {value!r}; {answer}")
        mask = np.zeros(len(self.store.ids), bool)
        rows = self.store.rows_of(self.store.select(where)) if where else self.store.live_rows()
        mask[rows] = True
        return mask


def build(
    model: Path | str,
    images: Path | str | Iterable[Path | str],
    out: Path | str,
    *,
    kind: str = "auto",
    depth: int | None = None,
    on_event: OnEvent | None = None,
) -> Index:
    """Return an index of images, built in the folder `out`; a build that was stopped is resumed.

    Args:
        model: a run folder, `efficientnet_lite0` or a timm name.
        images: a folder, from which the items' paths start, a CSV file (path,label), or files.
        kind: auto, flat (exact), hnsw or ivfpq.
        depth: how many folders below the root name the class; None for all.
        on_event: called with progress as it is made.
    """
    if kind not in ("auto", *KINDS):
        raise ValueError(f"kind must be auto, {', '.join(KINDS)}, not {kind!r}")
    places = [Path(images)] if isinstance(images, Path | str) else [Path(path) for path in images]
    out = Path(out)
    new = next((path for path in (*reversed(out.parents), out) if not path.exists()), None)
    index = _started(model, places, out, kind, depth)
    index.add(places, on_event=on_event)
    if not len(index):
        _discard(out, new)
        broken = index.changes.broken
        raise ValueError(f"none of {len(broken):,} images can be read ({broken[0]})")
    return index


def open_index(folder: Path | str) -> Index:
    """Return the index in a folder; vectors are mapped, not read."""
    return Index(Path(folder))


def create(
    out: Path | str,
    *,
    dimensions: int,
    distance: str,
    root: Path | str = ".",
    model: Path | str = "",
    weights: str = "",
    kind: str = "auto",
    depth: int | None = None,
    splits: bool = False,
) -> Index:
    """Return a new, empty index, or the one that is there: for vectors that were made elsewhere.

    Args:
        weights: the model's `weights_digest`, if it is to embed queries.
    """
    named = str(absolute(Path(model))) if model and Path(model).exists() else str(model)
    IndexStore.create(
        Path(out),
        dimensions=dimensions,
        distance=distance,
        root=str(absolute(Path(root))),
        model=named,
        fingerprint=weights,
        unit=distance == "cosine",
        wanted=kind,
        kind="flat",
        depth=depth,
        splits=splits,
        sources=[],
    )
    return Index(Path(out))


def _started(model: Path | str, places: list[Path], out: Path, kind: str, depth: int | None) -> Index:
    """The index in `out`, new or begun with the same model and root."""
    if out.is_file():
        raise ValueError(f"{out} is a file; an index is a folder, choose another one")
    root = root_of(places)
    files, labels = by_name(find_images(places), root)
    if not files:
        raise ValueError(f"there are no images in {', '.join(map(str, places))}")
    from softwarp.inference import load

    loaded = load(model)
    index = create(
        out,
        dimensions=loaded.network.embedding_size,
        distance=loaded.distance,
        root=root,
        model=model,
        weights=weights_digest(loaded),
        kind=kind,
        depth=depth,
        splits=has_splits([name for name in files if name not in labels]),
    )
    if index.store.settings["fingerprint"] != weights_digest(loaded):
        raise ValueError(f"{out} was built with another model, {index.model_name}; choose another folder")
    if index.root != root:
        raise ValueError(
            f"{out} is an index of {index.root}, not of {root}; choose another folder, or use add"
        )
    index.__dict__["_model"] = loaded
    return index


def _discard(folder: Path, new: Path | None) -> None:
    """Delete an index without images, and the folders that were made for it, of which `new` is the first."""
    if new is not None:
        shutil.rmtree(new)
        return
    for path in folder.iterdir():
        if path.name == TABLE or path.suffix in (".f32", ".i64", ".faiss"):
            path.unlink()
