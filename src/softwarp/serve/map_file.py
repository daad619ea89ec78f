"""The map of a collection: a place for every image, and their thumbnails in atlases, in one file.

`python -m softwarp.serve.map_file INDEX` makes it. Images are ordered so that the first ones give an
overview: of the cells of a grid that becomes finer and finer, each gets an image before the next grid does.
So a view from afar needs the first atlas alone, and images near each other are in the same atlases.
"""

import hashlib
import io
import json
import os
import re
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from softwarp.files import printable
from softwarp.index.rows import Rows, Vectors
from softwarp.index.store import IndexStore

NAME = "map.sqlite"
LARGEST = 100_000  # images on a map; of more, a sample is shown
TILE, COLUMNS = 48, 32  # pixels of a thumbnail in an atlas, and how many there are in each direction
FEW = 100  # images below which principal components do as well as UMAP
KEPT_DIRECTIONS = 50  # principal directions of the vectors that UMAP gets
NEIGHBOURS = 15  # neighbours of an image that UMAP gets
EPOCHS = 200  # passes that UMAP makes
LEVELS = 13  # number of grids, the finest with 2^12 cells per side
JITTER = 2e-4  # share of the map's width, so that copies of an image do not lie on each other
POINT = np.dtype(
    [("x", "<f4"), ("y", "<f4"), ("id", "<u4"), ("class", "<u4"), ("colour", "u1", 3), ("pad", "u1")]
)
NO_CLASS = 2**32 - 1

Report = Callable[[str, int, int], None]  # what is done, how much of it, out of how much
Places = NDArray[np.float32]
Colours = NDArray[np.uint8]


class MapFile:
    """A finished map."""

    def __init__(self, path: Path) -> None:
        self._table = sqlite3.connect(f"file:{path}?mode=ro", uri=True, check_same_thread=False)
        self.about: dict[str, Any] = json.loads(self.part("about"))

    def part(self, name: str) -> bytes:
        """Return `points` (records of `POINT`) or `atlas-N` (a JPEG)."""
        found = self._table.execute("SELECT content FROM parts WHERE name = ?", (name,)).fetchone()
        if found is None:
            raise ValueError(f"the map has no part {name!r}")
        return bytes(found[0])


def open_map(store: IndexStore) -> MapFile | None:
    """Return the map of an index, if there is one and it shows what the index holds now."""
    path = store.folder / NAME
    if not path.exists():
        return None
    try:
        found = MapFile(path)
    except (sqlite3.DatabaseError, ValueError):
        return None
    return found if found.about["version"] == version_of(store) else None


def version_of(store: IndexStore) -> str:
    """Return a name for the content of an index."""
    digest = hashlib.sha256(np.ascontiguousarray(on_map(store)).data)
    digest.update(b"%d" % changes if (changes := store.settings.get("relabelled", 0)) else b"")
    return digest.hexdigest()[:16]


def on_map(store: IndexStore) -> Rows:
    """Return the ids of the images that are on the map: all, or an even sample."""
    ids = np.asarray(store.ids[store.live_rows()])
    return ids[np.linspace(0, len(ids) - 1, LARGEST).astype(np.int64)] if len(ids) > LARGEST else ids


def write_map(folder: Path, progress: Report) -> None:
    """Make the map of an index; it appears when it is whole."""
    store = IndexStore(folder)
    ids, version = on_map(store), version_of(store)
    method = "umap" if len(ids) >= FEW and find_spec("umap") else "pca"
    places = lay_out(np.asarray(store.vectors[store.rows_of(ids)]), method, progress)
    order = overview_first(places)
    ids, places = ids[order], places[order]
    classes = sorted(store.classes())
    numbers = {name: number for number, name in enumerate(classes)}
    points = np.zeros(len(ids), POINT)
    points["x"], points["y"], points["id"] = places[:, 0], places[:, 1], ids
    labels = [item.label for item in store.items(ids.tolist())]
    points["class"] = [NO_CLASS if label is None else numbers[label] for label in labels]
    about = {
        "method": method,
        "images": len(ids),
        "of": len(store.ids) - len(store.removed),
        "classes": [printable(name) for name in classes],
        "tile": TILE,
        "columns": COLUMNS,
        "version": version,
    }
    temporary = folder / f".{NAME}.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(temporary, isolation_level=None)) as table:
            table.execute("CREATE TABLE parts (name TEXT PRIMARY KEY, content BLOB NOT NULL)")
            for number, (jpeg, colours) in enumerate(atlases(store, ids, progress)):
                start = number * COLUMNS**2
                points["colour"][start : start + len(colours)] = colours
                _put(table, f"atlas-{number}", jpeg)
            _put(table, "points", points.tobytes())
            _put(table, "about", json.dumps(about).encode())
        temporary.replace(folder / NAME)
    finally:
        temporary.unlink(missing_ok=True)


def lay_out(vectors: Vectors, method: str, progress: Report) -> Places:
    """Return a place [N, 2] in the unit square for each vector, by principal components or UMAP."""
    if not len(vectors):
        return np.zeros((0, 2), np.float32)
    progress("principal components", 0, len(vectors))
    reduced = principal(vectors, KEPT_DIRECTIONS if method == "umap" else 2)
    places = _umap(reduced, progress) if method == "umap" else reduced[:, :2]
    if places.shape[1] < 2:
        places = np.pad(places, ((0, 0), (0, 2 - places.shape[1])))
    width = max(float(np.ptp(places, 0).max()), 1e-9)
    moved = places + np.random.default_rng(0).uniform(-1, 1, places.shape) * JITTER * width
    middle, width = (moved.min(0) + moved.max(0)) / 2, float(np.ptp(moved, 0).max()) * 1.02 or 1.0
    return np.asarray((moved - middle) / width + 0.5, np.float32)


def principal(vectors: Vectors, count: int) -> Places:
    """Return the coordinates of vectors along their first principal directions."""
    centred = vectors - vectors.mean(0, dtype=np.float64).astype(np.float32)
    _, directions = np.linalg.eigh((centred.T @ centred).astype(np.float64))
    chosen = directions[:, ::-1][:, :count]
    signs = np.sign(chosen[np.abs(chosen).argmax(0), np.arange(chosen.shape[1])])  # the same on any machine
    return np.asarray(centred @ (chosen * signs).astype(np.float32))


def _umap(vectors: Vectors, progress: Report) -> Places:
    """UMAP of exact neighbours; one thread, so that the same index gives the same map."""
    import warnings

    from softwarp.index.faiss_index import nearest, scan

    parts = []
    for start in range(0, len(vectors), 2048):
        block = np.ascontiguousarray(vectors[start : start + 2048])
        parts.append(nearest(block, vectors, scan(block, vectors, NEIGHBOURS), NEIGHBOURS))
        progress("neighbours", start + len(block), len(vectors))
    distances, found = (np.concatenate(part) for part in zip(*parts, strict=True))
    progress("loading UMAP", 0, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its dependencies warn about one another
        from umap import UMAP

        model = UMAP(
            n_neighbors=NEIGHBOURS,
            min_dist=0.5,
            n_epochs=EPOCHS,
            init=vectors[:, :2] / max(float(np.abs(vectors[:, :2]).max(initial=0)), 1e-9) * 10,
            random_state=0,
            n_jobs=1,
            precomputed_knn=(found, distances.astype(np.float32), None),
            tqdm_kwds={"disable": False, "file": _Ticks(progress), "mininterval": 0.2},
        )
        return np.asarray(model.fit_transform(vectors), np.float32)


class _Ticks(io.StringIO):
    """In place of a terminal: turns tqdm's bar into progress."""

    def __init__(self, progress: Report) -> None:
        super().__init__()
        self._progress = progress

    def write(self, text: str) -> int:
        share = re.search(r"(\d+)%", text)
        if share:
            self._progress("laying out", int(share[1]) * EPOCHS // 100, EPOCHS)
        return len(text)


def overview_first(places: Places) -> Rows:
    """Return an order in which images that give an overview come first, neighbours together.

    For each grid, from one cell to many, every cell that has no image in the order yet gets the one that is
    nearest to its middle. The cells of a grid are passed along a Z-shaped curve.
    """
    level_of = np.full(len(places), LEVELS)
    for level in range(LEVELS):
        cells = np.clip((places * 2**level).astype(np.int64), 0, 2**level - 1)
        keys = cells[:, 0] << 32 | cells[:, 1]
        apart = ((places * 2**level - cells - 0.5) ** 2).sum(1)
        order = np.lexsort((apart, level_of >= level, keys))  # a cell that has an image keeps it
        first = order[np.r_[True, np.diff(keys[order]) != 0]] if len(order) else order
        level_of[first] = np.minimum(level_of[first], level)
    return np.lexsort((_along_curve(places), level_of))


def _along_curve(places: Places) -> Rows:
    """The place of each point on a Z-shaped curve: the bits of both coordinates in turn."""
    cells = np.clip((places * 2**16).astype(np.int64), 0, 2**16 - 1)
    keys = np.zeros(len(places), np.int64)
    for bit in range(16):
        keys |= (cells[:, 0] >> bit & 1) << 2 * bit | (cells[:, 1] >> bit & 1) << (2 * bit + 1)
    return keys


def atlases(store: IndexStore, ids: Rows, progress: Report) -> Iterator[tuple[bytes, Colours]]:
    """Yield pages of small square thumbnails, as JPEGs, with the average colour of each thumbnail."""
    for start in range(0, len(ids), COLUMNS**2):
        part = ids[start : start + COLUMNS**2].tolist()
        rows = -(-len(part) // COLUMNS)
        page = Image.new("RGB", (COLUMNS * TILE, rows * TILE), (128, 128, 128))
        colours = np.full((len(part), 3), 128, np.uint8)
        jpegs = store.thumbnails(part)
        for place, number in enumerate(part):
            tile = _tile(jpegs.get(number, b""))
            if tile is not None:
                page.paste(tile, (place % COLUMNS * TILE, place // COLUMNS * TILE))
                colours[place] = np.asarray(tile).mean((0, 1))
        content = io.BytesIO()
        page.save(content, "JPEG", quality=80)
        progress("thumbnails", start + len(part), len(ids))
        yield content.getvalue(), colours


def _tile(jpeg: bytes) -> Image.Image | None:
    try:
        image = Image.open(io.BytesIO(jpeg))
        image.draft("RGB", (TILE, TILE))
        return ImageOps.fit(image.convert("RGB"), (TILE, TILE), Image.Resampling.BILINEAR)
    except (OSError, ValueError):  # there is none, or it is damaged
        return None


def _put(table: sqlite3.Connection, name: str, content: bytes) -> None:
    table.execute("INSERT INTO parts VALUES (?, ?)", (name, content))


def main() -> None:
    """Make a map, with its progress as lines of JSON on stdout."""

    def show(what: str, done: int, total: int) -> None:
        sys.stdout.write(json.dumps([what, done, total]) + "\n")
        sys.stdout.flush()

    write_map(Path(sys.argv[1]), show)


if __name__ == "__main__":
    main()
