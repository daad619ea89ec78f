"""`softwarp.Index`: images that can be searched, compared and named, in a folder that is kept up to date.

After `index = Index.build("runs/birds", "photos", "photos.index")`, `index.search("query.jpg", k=10)` shows
the ten images nearest to a query. torch is loaded with the model, not before.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from softwarp.data.trees import absolute
from softwarp.events import OnEvent
from softwarp.index import classify, insights, updates
from softwarp.index.begin import discard, first_new, look_at, name_in, refuse_other_index
from softwarp.index.faiss_index import KINDS, open_mapped
from softwarp.index.images import IndexedImage, NewImage
from softwarp.index.queries import as_vectors, check_model, farthest, model_of, origins, parse_where
from softwarp.index.results import Answers, Neighbour, Neighbours
from softwarp.index.rows import Distances, Rows, Vectors
from softwarp.index.searching import allowed_rows, as_stored, as_told, nearest_rows
from softwarp.index.store import IndexStore
from softwarp.index.updates import Changes, compact_and_index, weights_digest

if TYPE_CHECKING:
    from torch import Tensor

    from softwarp.index.queries import Queries
    from softwarp.inference import EmbeddingModel


class Index:
    """Images that can be searched; made by `Index.build`, opened by `Index.open`.

    `items`, `ids` and `vectors` belong together row by row. Vectors are of unit length where the distance is
    "cosine". An id stays with an image as long as its content does, and is never used again. Everything shows
    the index as it was when it was opened, or last changed by this object, whatever others do to it.
    """

    def __init__(self, folder: Path, model: "EmbeddingModel | None" = None) -> None:
        self.folder = folder
        self.store = IndexStore(folder)
        self.changes = Changes()  # what the last add, remove or refresh did
        self._model = model

    @classmethod
    def build(
        cls,
        model: "EmbeddingModel | Path | str",
        images: Path | str | Iterable[Path | str],
        out: Path | str,
        *,
        kind: str = "auto",
        depth: int | None = None,
        frozen: bool = False,
        on_event: OnEvent | None = None,
    ) -> "Index":
        """Return an index of images, built in the folder `out`; a build that was stopped is resumed.

        Args:
            model: what `softwarp.load` returned, or what it takes: a run folder, or a network's name; or
                "auto" for the network here that suits the classes best.
            images: a folder, from which the items' paths start, a CSV file (path,label), or files.
            kind: auto, flat (exact), hnsw or ivfpq.
            depth: how many folders below the root name the class; None for all.
            frozen: take a network that is named as it is, though its features might be better calibrated.
            on_event: called with progress as it is made.

        `index = Index.build("runs/birds", "photos", "photos.index")`
        """
        if kind not in ("auto", *KINDS):
            raise ValueError(f"kind must be auto, {', '.join(KINDS)}, not {kind!r}")
        places = [Path(images)] if isinstance(images, Path | str) else [Path(path) for path in images]
        out = Path(out)
        seen = look_at(places, out, depth=depth)
        new = first_new(out)
        if isinstance(model, Path | str):
            from softwarp.index.network import model_for

            model = model_for(model, seen, out, frozen=frozen, on_event=on_event)
        index = cls.create(
            out,
            dimensions=model.network.embedding_size,
            distance=model.distance,
            root=seen.root,
            model=model,
            kind=kind,
            depth=depth,
            splits=seen.splits,
        )
        index.add(places, on_event=on_event)
        if not len(index):
            discard(out, new)
            broken = index.changes.broken
            raise ValueError(f"none of {len(broken):,} images can be read ({broken[0]})")
        return index

    @classmethod
    def open(cls, folder: Path | str, *, model: "EmbeddingModel | None" = None) -> "Index":
        """Return the index in a folder; vectors are mapped, not read.

        Args:
            model: the one that it was built with, if it is loaded already, or was built from no run.
        """
        index = cls(Path(folder), model)
        if model is not None:
            check_model(model, index.store.settings["fingerprint"], index.address)
        return index

    def reopen(self) -> "Index":
        """Return the index as it is on disk now, with the model that is loaded already."""
        return Index(self.folder, self._model)

    @classmethod
    def create(
        cls,
        out: Path | str,
        *,
        dimensions: int,
        distance: str,
        root: Path | str = ".",
        model: "EmbeddingModel | None" = None,
        kind: str = "auto",
        depth: int | None = None,
        splits: bool = False,
    ) -> "Index":
        """Return a new, empty index, or the one that is there: for vectors that were made elsewhere.

        Args:
            model: if it is to embed queries.
            splits: whether top folders are called train, val or test, and so name no class.

        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     index = Index.create(folder, dimensions=2, distance="euclidean")
        ...     index.append(np.array([[0, 0], [3, 4]]), [NewImage("a.jpg"), NewImage("b.jpg", "wren")])
        ...     print(index.search(np.array([0, 1]), k=2))
        Neighbours: 2 rows
        query  rank  distance  label  path   id
        0      1     1                a.jpg  1
        0      2     4.243     wren   b.jpg  2
        """
        store = IndexStore.create(
            Path(out),
            dimensions=dimensions,
            distance=distance,
            root=str(absolute(Path(root))),
            model=name_in(Path(out), model),
            fingerprint=weights_digest(model) if model is not None else "",
            unit=distance == "cosine",
            wanted=kind,
            kind="flat",
            depth=depth,
            splits=splits,
            sources=[],
        )
        if model is not None:
            refuse_other_index(store, model, absolute(Path(root)))
        return cls(Path(out), model)

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
        """The run folder, pretrained network or folder of the index that the vectors come from."""
        return self.store.model_name

    @property
    def calibrated(self) -> bool:
        """Whether its model has a head that was made from the labels of its images."""
        return Path(self.model_name).parent == absolute(self.folder)

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

    def file(self, item: IndexedImage | Neighbour) -> Path:
        """Return where the image of an item is."""
        return self.root / item.path

    def thumbnail(self, number: int) -> bytes:
        """Return a JPEG of at most 160 pixels a side of the item with that id."""
        return self.store.thumbnail(number)

    def picture(self, item: IndexedImage | Neighbour) -> bytes:
        """Return a small JPEG of an item."""
        return self.thumbnail(item.id)

    def model(self) -> "EmbeddingModel":
        """Return the model that made the vectors; an error if it has been trained again since."""
        if self._model is None:
            self._model = model_of(self.model_name, self.store.settings["fingerprint"], self.address)
        return self._model

    def search(
        self,
        queries: "Queries",
        k: int = 10,
        *,
        where: str | Sequence[str] = (),
        within: float | None = None,
    ) -> Neighbours:
        """Return the k nearest images of each query, or all if there are fewer.

        Args:
            queries: what the model embeds: a file, an image, or several; or embeddings [Q, D] or [D].
            where: `class=NAME` or `path=GLOB`, or several that must all hold.
            within: the largest distance; images that are farther away are left out.
        """
        limit = farthest(within)
        ids, distances = self.nearest(queries, k, where=where)
        near = distances <= limit
        items = iter(self.store.items(ids[near].tolist()))
        answers = [
            [(next(items), distance) for distance in away[inside].tolist()]
            for away, inside in zip(distances, near, strict=True)
        ]
        return Neighbours.of(answers, self.store.thumbnails)

    def nearest(
        self, queries: "Queries", k: int = 10, *, where: str | Sequence[str] = ()
    ) -> tuple[Rows, Distances]:
        """Return ids and distances [Q, k] as arrays, without looking paths and labels up.

        Args: those of `search`, but `within`, which would leave rows of different lengths.
        """
        if k < 1:
            raise ValueError(f"k is {k}; ask for at least 1")
        allowed = allowed_rows(self.store, parse_where(where))
        vectors = as_stored(self.store, np.atleast_2d(as_vectors(queries, self.model)))
        k = min(k, len(self) if allowed is None else int(allowed.sum()))
        distances, rows = nearest_rows(self.store, self._faiss, vectors, k, allowed)
        ids = np.asarray(self.store.ids)[rows] if k else rows
        return ids, as_told(distances, self.distance)

    # What the vectors tell of the images: each takes the index as its first argument, self here.
    duplicates = insights.duplicates
    outliers = insights.outliers
    clusters = insights.clusters
    calibrate = classify.calibrate

    def classify(
        self, queries: "Queries", k: int = 10, *, calibration: classify.Calibration | None = None
    ) -> Answers:
        """Return the class of each query by the votes of its k neighbours, or that it is none of them.

        Args:
            queries: as `search` takes them; an image of the index does not vote for its own file.
            calibration: of `calibrate` with the same k; without it each call makes one.
        """
        calibration = self.calibrate(k) if calibration is None else calibration
        vectors = np.atleast_2d(as_vectors(queries, self.model))
        names, digests = origins(queries, len(vectors))
        return classify.classify(self, vectors, k, calibration=calibration, names=names, digests=digests)

    def add(self, paths: Iterable[Path | str], *, on_event: OnEvent | None = None) -> Changes:
        """Add images, folders of images and CSV lists; what is in the index already is left alone."""
        places = [Path(path) for path in paths]
        with self._updating(on_event):
            self.changes = updates.add(self.store, self.model, places, on_event)
        return self.changes

    def remove(self, paths: Iterable[Path | str], *, on_event: OnEvent | None = None) -> Changes:
        """Remove images, or all of folders or CSV files; `refresh` does not add them again, `add` does."""
        places = [Path(path) for path in paths]
        with self._updating(on_event):
            self.changes = updates.remove(self.store, places)
        return self.changes

    def refresh(self, *, remove_missing: bool = False, on_event: OnEvent | None = None) -> Changes:
        """Bring the index up to date with its folders and CSV files: new, changed and vanished images.

        Changed are files with another content, and images to which a CSV file now gives another label.
        Vanished are files, and lines of a CSV file.

        Args:
            remove_missing: go on if more than half of a source's images are gone; not if all are.
        """
        with self._updating(on_event):
            self.changes = updates.refresh(self.store, self.model, remove_missing, on_event)
        return self.changes

    def append(
        self, vectors: "NDArray[Any] | Tensor", items: Sequence[NewImage], *, on_event: OnEvent | None = None
    ) -> None:
        """Add vectors that were made elsewhere, one per item."""
        with self._updating(on_event):
            self.store.append(as_stored(self.store, vectors, [item.path for item in items]), items)

    @contextmanager
    def _updating(self, on_event: OnEvent | None) -> Iterator[None]:
        """Keep other writers out; afterwards compact if needed, and bring the faiss index up to date."""
        self._forget()  # mapped files could not be deleted
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
