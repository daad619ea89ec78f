"""A collection in Qdrant."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import urlsplit

from softwarp.index.images import IndexedImage
from softwarp.index.rows import Vectors

SCROLLED = 10_000  # stamps that are read at a time
WIDER = 4  # factor by which more are asked for where a glob leaves too few
FIELDS = ["path", "class", "digest"]


class Qdrant:
    """The collection that a URL names.

    qdrant://host:6333/NAME, or qdrants://... for TLS, with the key in QDRANT_API_KEY if the server wants one.
    """

    def __init__(self, url: str) -> None:
        try:
            import qdrant_client
            from qdrant_client.http.exceptions import ApiException
        except ImportError as error:
            raise ValueError(f"{error.name} is missing: pip install 'softwarp[qdrant]'") from None
        parts = urlsplit(url)
        self.name = parts.path.strip("/")
        if not parts.hostname or not self.name or "/" in self.name:
            raise ValueError(f"{url!r} names no collection; write qdrant://HOST:6333/NAME")
        self.address = f"{parts.scheme}://{parts.hostname}/{self.name}"
        self.errors: tuple[type[Exception], ...] = (ApiException,)
        self._models: Any = qdrant_client.models
        self._cosine = False
        scheme = "https" if parts.scheme == "qdrants" else "http"
        self._client: Any = qdrant_client.QdrantClient(
            url=f"{scheme}://{parts.hostname}:{parts.port or 6333}",
            api_key=os.environ.get("QDRANT_API_KEY"),
            timeout=60,
            check_compatibility=False,  # it warns of any server that is older than the client
        )

    def close(self) -> None:
        self._client.close()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Qdrant has no locks: several processes that push the same index end with the same collection."""
        yield

    def settings(self) -> dict[str, Any] | None:
        if not self._client.collection_exists(self.name):
            return None
        found = self._client.get_collection(self.name).config.metadata
        if not found:
            raise ValueError(
                f"{self.address} does not say which model it belongs to; choose another name "
                "(a Qdrant before 1.16 does not keep that)"
            )
        self._cosine = found["distance"] == "cosine"  # then Qdrant returns similarities
        return dict(found)

    def create(self, settings: dict[str, Any]) -> None:
        """Make the collection, with the settings as its metadata."""
        distance = {"euclidean": self._models.Distance.EUCLID, "cosine": self._models.Distance.COSINE}
        self._client.create_collection(
            self.name,
            vectors_config=self._models.VectorParams(
                size=settings["dimensions"], distance=distance[settings["distance"]]
            ),
            metadata=settings,
        )

    def stamps(self) -> dict[int, str]:
        found: dict[int, str] = {}
        offset = None
        while True:
            points, offset = self._client.scroll(
                self.name, limit=SCROLLED, offset=offset, with_payload=["stamp"]
            )
            found |= {point.id: point.payload["stamp"] for point in points}
            if offset is None:
                return found

    def put(self, items: Sequence[IndexedImage], stamps: Sequence[str], vectors: Vectors) -> None:
        payloads = [
            {"path": item.path, "class": item.label, "digest": item.digest, "stamp": stamp}
            for item, stamp in zip(items, stamps, strict=True)
        ]
        batch = self._models.Batch(
            ids=[item.id for item in items], vectors=vectors.tolist(), payloads=payloads
        )
        self._client.upsert(self.name, batch, wait=True)

    def remove(self, ids: Sequence[int]) -> None:
        self._client.delete(self.name, self._models.PointIdsList(points=list(ids)), wait=True)

    def finish(self) -> None:
        """Index the classes, which filters need; Qdrant builds its HNSW index by itself."""
        self._client.create_payload_index(self.name, "class", self._models.PayloadSchemaType.KEYWORD)

    def nearest(
        self, query: Vectors, k: int, where: Sequence[tuple[str, str]]
    ) -> list[tuple[IndexedImage, float]]:
        """Return the k nearest images; Qdrant knows no globs, so ever more are asked for until k match."""
        globs = [value for name, value in where if name == "path"]
        asked = k
        while True:
            found = self._ask(query, asked, [value for name, value in where if name == "class"])
            fitting = [each for each in found if all(fnmatchcase(each[0].path, glob) for glob in globs)]
            if len(fitting) >= k or len(found) < asked:
                return fitting[:k]
            asked *= WIDER

    def _ask(self, query: Vectors, k: int, classes: Sequence[str]) -> list[tuple[IndexedImage, float]]:
        conditions = [
            self._models.FieldCondition(key="class", match=self._models.MatchValue(value=name))
            for name in classes
        ]
        answer = self._client.query_points(
            self.name,
            query=query.tolist(),
            limit=k,
            query_filter=self._models.Filter(must=conditions) if conditions else None,
            search_params=self._models.SearchParams(hnsw_ef=max(128, 2 * k)),
            with_payload=FIELDS,
        )
        return [
            (
                IndexedImage(point.id, *(point.payload[field] for field in FIELDS)),
                1 - point.score if self._cosine else point.score,
            )
            for point in answer.points
        ]
