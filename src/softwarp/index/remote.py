"""Indexes in a vector database: `push` mirrors one, `open_remote` searches it.

`postgresql://...` is PostgreSQL with pgvector, `qdrant://...` a Qdrant server. A collection is what one
index holds: each image under its id, with its path, class and digest, and the model in the settings.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from softwarp.data.decode import read_image
from softwarp.events import OnEvent, Work
from softwarp.index.images import IndexedImage
from softwarp.index.index import Index
from softwarp.index.postgres import Postgres
from softwarp.index.qdrant import Qdrant
from softwarp.index.queries import as_vectors, farthest, model_of, parse_where
from softwarp.index.results import Neighbour, Neighbours
from softwarp.index.rows import Vectors

if TYPE_CHECKING:
    from softwarp.index.queries import Queries
    from softwarp.inference import EmbeddingModel

DATABASES: dict[str, Callable[[str], "Remote"]] = {
    "postgresql": Postgres,
    "postgres": Postgres,
    "qdrant": Qdrant,
    "qdrants": Qdrant,
}
BATCH = 256  # images that are sent, and confirmed, at a time

Conditions = Sequence[tuple[str, str]]


class Remote(Protocol):
    """What a database does for a collection.

    `writing` keeps other writers out. `settings` is what `create` was given; None if there is no such
    collection. `stamps` has an entry for every image, by id. `put` replaces images of the same ids and is
    safe when it returns. `finish` follows the last change. `nearest` takes conditions of `parse_where`.
    """

    address: str  # without password
    errors: tuple[type[Exception], ...]  # what its client raises

    def close(self) -> None: ...
    def writing(self) -> AbstractContextManager[None]: ...
    def settings(self) -> dict[str, Any] | None: ...
    def create(self, settings: dict[str, Any]) -> None: ...
    def stamps(self) -> dict[int, str]: ...
    def put(self, items: Sequence[IndexedImage], stamps: Sequence[str], vectors: Vectors) -> None: ...
    def remove(self, ids: Sequence[int]) -> None: ...
    def finish(self) -> None: ...
    def nearest(self, query: Vectors, k: int, where: Conditions) -> list[tuple[IndexedImage, float]]: ...


@dataclass
class Pushed:
    """What a push did, and where."""

    address: str
    sent: int = 0
    removed: int = 0
    unchanged: int = 0


class RemoteIndex:
    """A collection that `push` has filled; made by `open_remote`."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        with telling(remote):
            found = remote.settings()
        if found is None:
            raise ValueError(f"{remote.address} is empty; fill it with `softwarp index push INDEX --to URL`")
        self.settings: dict[str, Any] = found
        self._model: EmbeddingModel | None = None

    @property
    def address(self) -> str:
        """Where it is, without password."""
        return self._remote.address

    @property
    def distance(self) -> str:
        """The distance of the model's embeddings: "euclidean" or "cosine" (1 - cos)."""
        return str(self.settings["distance"])

    def file(self, item: "IndexedImage | Neighbour") -> Path:
        """Return where the image of an item was when it was pushed."""
        return Path(self.settings["root"]) / item.path

    def picture(self, item: "IndexedImage | Neighbour") -> bytes:
        """Return a small JPEG of an item, from its file; an error if that is not on this machine."""
        from softwarp.index.thumbnail import thumbnail_of

        return thumbnail_of(read_image(self.file(item)))

    def model(self) -> "EmbeddingModel":
        """Return the model that made the vectors; an error if it has been trained again since."""
        if self._model is None:
            self._model = model_of(self.settings["model"], self.settings["fingerprint"], self.address)
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
            queries: embeddings [Q, D] or [D]; or what the model embeds: a file, an image, or several.
            where: `class=NAME` or `path=GLOB`, or several that must all hold.
            within: the largest distance; images that are farther away are left out.
        """
        limit = farthest(within)
        if k < 1:
            raise ValueError(f"k is {k}; ask for at least 1")
        vectors = np.atleast_2d(np.asarray(as_vectors(queries, self.model), np.float32))
        if vectors.shape[1] != self.settings["dimensions"]:
            raise ValueError(
                f"{self.address} holds vectors of {self.settings['dimensions']} dimensions, "
                f"not {list(vectors.shape)}"
            )
        conditions = [(name, _text(value)) for name, value in parse_where(where)]
        with telling(self._remote):
            answers = [self._remote.nearest(vector, k, conditions) for vector in vectors]
        near = ([pair for pair in each if pair[1] <= limit] for each in answers)
        return Neighbours.of([sorted(each, key=lambda pair: (pair[1], pair[0].id)) for each in near])

    def close(self) -> None:
        """End the connection."""
        self._remote.close()


def is_remote(place: str) -> bool:
    """Return whether that is the URL of a database rather than a folder."""
    return "://" in place


def open_remote(url: str) -> RemoteIndex:
    """Return the index that was pushed to a URL."""
    remote = _connect(url)
    try:
        return RemoteIndex(remote)
    except BaseException:
        remote.close()
        raise


def push(index: Index, url: str, *, remove_missing: bool = False, on_event: OnEvent | None = None) -> Pushed:
    """Make a collection hold what an index holds, and nothing else; what is there already is not sent again.

    Images are sent in batches, each safe when the next one begins: a push that was stopped is resumed.

    Args:
        remove_missing: go on if the collection has more than twice as many images; an empty index is refused.
    """
    remote = _connect(url)
    try:
        with index.store.writing(), telling(remote), remote.writing():
            _prepare(remote, index)
            return _mirror(remote, index, remove_missing, on_event)
    finally:
        remote.close()


@contextmanager
def telling(remote: Remote) -> Iterator[None]:
    """Turn what a database's client raises into an OSError of one line."""
    try:
        yield
    except remote.errors as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise OSError(f"{remote.address}: {reason[:300]}") from None


def _connect(url: str) -> Remote:
    scheme = url.partition("://")[0]
    if scheme not in DATABASES:
        known = ", ".join(f"{each}://" for each in DATABASES)
        raise ValueError(f"softwarp knows no database {scheme}://; write one of {known}")
    return DATABASES[scheme](url)


def _prepare(remote: Remote, index: Index) -> None:
    """Make the collection, or check that it is one of this index."""
    kept = ("model", "fingerprint", "distance", "dimensions", "root")
    wanted = {name: index.store.settings[name] for name in kept} | {"model": index.model_name}
    found = remote.settings()
    if found is None:
        remote.create(wanted)
        return
    if any(found[name] != wanted[name] for name in ("fingerprint", "distance", "dimensions")):
        raise ValueError(
            f"{remote.address} holds vectors of another model, {found['model']}; name another one"
        )
    if found["root"] != wanted["root"]:
        raise ValueError(f"{remote.address} holds images of {found['root']}, not of {wanted['root']}")


def _refuse_losses(address: str, index: Index, there: int, *, remove_missing: bool) -> None:
    """Stop before a collection is emptied, or loses most of its images unless that is expected."""
    if not len(index):
        raise ValueError(f"{index.folder} has no images; {address} has {there:,} and stays as it is")
    if there > 2 * len(index) and not remove_missing:
        raise ValueError(
            f"{address} has {there:,} images, but {index.folder} only {len(index):,}; "
            "if the others are really to be removed, push with --remove-missing"
        )


def _mirror(remote: Remote, index: Index, remove_missing: bool, on_event: OnEvent | None) -> Pushed:
    items, vectors, there = index.store.items(), index.store.vectors, remote.stamps()
    _refuse_losses(remote.address, index, len(there), remove_missing=remove_missing)
    stamps = {item.id: _stamp(item) for item in items}
    gone = [number for number in there if number not in stamps]
    for start in range(0, len(gone), BATCH):
        remote.remove(gone[start : start + BATCH])
    todo = [item for item in items if there.get(item.id) != stamps[item.id]]
    bar = Work(on_event, "pushing", total=len(todo))
    for start in range(0, len(todo), BATCH):
        part = todo[start : start + BATCH]
        rows = index.store.rows_of([item.id for item in part])
        remote.put([_as_text(item) for item in part], [stamps[item.id] for item in part], vectors[rows])
        bar.reach(start + len(part))
    remote.finish()
    return Pushed(remote.address, len(todo), len(gone), len(items) - len(todo))


def _stamp(item: IndexedImage) -> str:
    """What changes when anything about an image does: its content, its path or its class."""
    parts = (item.digest, item.path, item.label or "", "" if item.label is None else "labelled")
    return hashlib.blake2b(b"\0".join(map(os.fsencode, parts)), digest_size=16).hexdigest()


def _as_text(item: IndexedImage) -> IndexedImage:
    return replace(item, path=_text(item.path), label=None if item.label is None else _text(item.label))


def _text(name: str) -> str:
    r"""A name as a database takes it: bytes that are not UTF-8 are written \xNN."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
