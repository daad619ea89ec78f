"""A collection in PostgreSQL with pgvector: a table of vectors with an HNSW index."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from softwarp.index.images import IndexedImage
from softwarp.index.rows import Vectors

INDEXED = 2000  # dimensions that an HNSW index of pgvector takes at most
OPERATORS = {"euclidean": ("<->", "vector_l2_ops"), "cosine": ("<=>", "vector_cosine_ops")}
WAIT = "60s"  # how long another process, perhaps one that was killed, may take to end
OLDEST = (0, 8)  # pgvector that searches on where a filter leaves too few


class Postgres:
    """The table that a URL names: postgresql://user@host/database?table=NAME, `softwarp` by default."""

    def __init__(self, url: str) -> None:
        try:
            import pgvector.psycopg as pgvector
            import psycopg
        except ImportError as error:
            raise ValueError(f"{error.name} is missing: pip install 'softwarp[postgres]'") from None
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        self.name = options.pop("table", "softwarp")
        if not re.fullmatch(r"\w{1,50}", self.name):
            raise ValueError(f"{self.name!r} cannot name a table; use up to 50 letters, digits and _")
        self.address = f"{parts.scheme}://{parts.hostname or ''}{parts.path}?table={self.name}"
        self.errors: tuple[type[Exception], ...] = (psycopg.Error,)
        self._pgvector, self._sql = pgvector, psycopg.sql
        address = parts._replace(query=urlencode(options)).geturl()
        try:
            self._connection: Any = psycopg.connect(address, autocommit=True)
        except psycopg.Error as error:
            raise OSError(f"{self.address} cannot be reached: {error}") from None
        self._settings: dict[str, Any] = {}

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def writing(self) -> Iterator[None]:
        self._connection.execute(f"SET lock_timeout = '{WAIT}'")
        self._connection.execute("SELECT pg_advisory_lock(hashtext(%s))", [f"softwarp {self.name}"])
        yield
        self._connection.execute("SELECT pg_advisory_unlock(hashtext(%s))", [f"softwarp {self.name}"])

    def settings(self) -> dict[str, Any] | None:
        found = None
        if self._connection.execute("SELECT to_regclass('softwarp_collections')").fetchone()[0]:
            query = "SELECT settings FROM softwarp_collections WHERE name = %s"
            found = self._connection.execute(query, [self.name]).fetchone()
        if found is None:
            return None
        self._settings = found[0]
        self._pgvector.register_vector(self._connection)
        return dict(self._settings)

    def create(self, settings: dict[str, Any]) -> None:
        """Make the table, and keep the settings beside it."""
        with self._connection.transaction():
            self._connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            self._check_version()
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS softwarp_collections "
                "(name text PRIMARY KEY, settings jsonb NOT NULL)"
            )
            self._run(
                "CREATE TABLE {table} (id bigint PRIMARY KEY, path text NOT NULL, class text, "
                "digest text NOT NULL, stamp text NOT NULL, embedding vector({dimensions}) NOT NULL)",
                dimensions=self._sql.Literal(int(settings["dimensions"])),
            )
            self._run("CREATE INDEX {index} ON {table} (class)", index=self._identifier("_class"))
            self._connection.execute(
                "INSERT INTO softwarp_collections VALUES (%s, %s)", [self.name, json.dumps(settings)]
            )
        self.settings()

    def stamps(self) -> dict[int, str]:
        return dict(self._run("SELECT id, stamp FROM {table}").fetchall())

    def put(self, items: Sequence[IndexedImage], stamps: Sequence[str], vectors: Vectors) -> None:
        query = self._compose(
            "INSERT INTO {table} VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (id) DO UPDATE SET "
            "path = excluded.path, class = excluded.class, digest = excluded.digest, "
            "stamp = excluded.stamp, embedding = excluded.embedding"
        )
        rows = [
            (item.id, item.path, item.label, item.digest, stamp, vector)
            for item, stamp, vector in zip(items, stamps, vectors, strict=True)
        ]
        with self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.executemany(query, rows)

    def remove(self, ids: Sequence[int]) -> None:
        self._run("DELETE FROM {table} WHERE id = ANY(%s)", [list(ids)])

    def finish(self) -> None:
        """Build the HNSW index, if there is none yet and pgvector can; later changes keep it up to date."""
        if self._settings["dimensions"] <= INDEXED:
            kind = OPERATORS[self._settings["distance"]][1]
            self._run(
                "CREATE INDEX IF NOT EXISTS {index} ON {table} USING hnsw (embedding {kind})",
                index=self._identifier("_hnsw"),
                kind=self._sql.SQL(kind),
            )

    def nearest(
        self, query: Any, k: int, where: Sequence[tuple[str, str]]
    ) -> list[tuple[IndexedImage, float]]:
        operator = self._sql.SQL(OPERATORS[self._settings["distance"]][0])
        tests = {"class": "class = %s", "path": "path ~ %s"}
        condition = " AND ".join(tests[name] for name, _ in where) or "true"
        values = [pattern_of(value) if name == "path" else value for name, value in where]
        with self._connection.transaction():
            self._connection.execute("SET LOCAL hnsw.iterative_scan = strict_order")
            self._connection.execute(f"SET LOCAL hnsw.ef_search = {min(1000, max(100, 2 * k))}")
            rows = self._run(
                f"SELECT id, path, class, digest, embedding {{operator}} %s AS distance FROM {{table}} "
                f"WHERE {condition} ORDER BY embedding {{operator}} %s LIMIT %s",
                [query, *values, query, k],
                operator=operator,
            ).fetchall()
        return [(IndexedImage(*row[:4]), float(row[4])) for row in rows]

    def _check_version(self) -> None:
        query = "SELECT extversion FROM pg_extension WHERE extname = 'vector'"
        (version,) = self._connection.execute(query).fetchone()
        if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
            raise ValueError(f"{self.address} has pgvector {version}; ALTER EXTENSION vector UPDATE to 0.8")

    def _identifier(self, suffix: str = "") -> Any:
        return self._sql.Identifier(self.name + suffix)

    def _compose(self, text: str, **parts: Any) -> Any:
        return self._sql.SQL(text).format(table=self._identifier(), **parts)

    def _run(self, text: str, values: Sequence[Any] = (), **parts: Any) -> Any:
        return self._connection.execute(self._compose(text, **parts), values)


def pattern_of(glob: str) -> str:
    r"""Return the regular expression of PostgreSQL that matches what `fnmatch` does.

    >>> pattern_of("2024/[!a-c]*.jp?g")
    '^2024\\/[^a-c].*\\.jp.g$'
    """
    pieces = re.findall(r"\[(!?+)(\]?+[^\]]*)\]|(.)", glob, re.S)
    return f"^{''.join(_range(*piece[:2]) if not piece[2] else _one(piece[2]) for piece in pieces)}$"


def _one(letter: str) -> str:
    return {"*": ".*", "?": "."}.get(letter) or _literal(letter)


def _range(negated: str, inner: str) -> str:
    """What stands in brackets; ranges that run backwards are empty, as `fnmatch` has it."""
    parts = re.findall(r".-.|.", inner, re.S)
    kept = [
        f"{_literal(part[0])}-{_literal(part[2])}" if len(part) == 3 else _literal(part)
        for part in parts
        if len(part) == 1 or part[0] <= part[2]
    ]
    if not kept:
        return "." if negated else "a^"  # anything, or nothing at all
    return f"[{'^' if negated else ''}{''.join(kept)}]"


def _literal(letter: str) -> str:
    return re.sub(r"[^\w]", r"\\\g<0>", letter)
