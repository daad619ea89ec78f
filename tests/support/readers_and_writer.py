"""Readers that check all they see beside a writer: `readers_and_writer.py FOLDER SECONDS READERS`.

Images come and go in pairs, `N a` and `N b`, and the vector of each follows from its path. So every state
that was confirmed is known by itself: pairs are whole, and each vector is that of its path.
"""

import multiprocessing
import sys
import time
import zlib
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from softwarp.index.images import NewImage
from softwarp.index.index import Index
from support.tiny_index import brute_force

DIMENSIONS, K = 8, 10


def vector(path):
    return np.random.default_rng(zlib.crc32(path.encode())).standard_normal(DIMENSIONS).astype(np.float32)


def pairs(first, count):
    return [f"{number} {half}" for number in range(first, first + count) for half in "ab"]


def write(folder, stop):
    """Add, replace and remove, so that files are compacted and the graph is extended and rebuilt."""
    index, first, generator = Index.open(folder), 0, np.random.default_rng(0)
    while not stop.is_set():
        new = pairs(first, int(generator.integers(1, 40)))
        first += len(new) // 2
        index.append(np.stack([vector(path) for path in new]), [item(path) for path in new])
        numbers = sorted({int(each.path.split()[0]) for each in index.items})
        gone = generator.choice(numbers, int(generator.integers(0, 1 + len(numbers) // 4)), replace=False)
        index.remove([f"{number} {half}" for number in gone for half in "ab"])
        again = pairs(int(generator.choice(sorted({*numbers} - {*gone.tolist()}))), 1)
        index.append(np.stack([vector(path) for path in again]), [item(path) for path in again])
    return index.store.settings["generation"], first


def item(path):
    return NewImage(path, path[-1], path.encode(), path.encode())


def check(index):
    """Everything an open index shows belongs together; return what it shows."""
    items, ids, vectors = index.items, index.ids, np.array(index.vectors)
    assert len(items) == len(ids) == len(vectors) == len(index) > 0
    assert [each.id for each in items] == ids.tolist()
    assert (vectors == np.stack([vector(each.path) for each in items])).all()
    paths = [each.path for each in items]
    assert sorted(paths) == sorted({f"{path.split()[0]} {half}" for path in paths for half in "ab"})
    assert index.store.classes() == {half: len(paths) // 2 for half in "ab"}
    for where, allowed in (((), [True] * len(paths)), ("class=a", [path.endswith("a") for path in paths])):
        queries = np.stack([vector(f"{len(index)} {each}") for each in range(5)])
        truth = brute_force(queries, vectors, "euclidean")
        truth[:, ~np.array(allowed)] = np.inf
        found, distances = index.nearest(queries, min(K, sum(allowed)), where=where)
        rows = np.searchsorted(ids, found)
        assert (ids[rows] == found).all()
        np.testing.assert_allclose(distances, np.take_along_axis(truth, rows, 1), rtol=1e-6)
        expected = np.sort(truth, axis=1)[:, : found.shape[1]]
        assert (distances <= expected[:, -1:] * (1 + 1e-9)).mean() >= 0.8, "found too little"
        for each in found[0]:
            assert index.thumbnail(each) == index.item(each).path.encode()
    return paths, ids.tolist()


def read(folder, stop, wrong, counts):
    """Open, look, keep it open for a while, look again: nothing may have changed."""
    seen = 0
    try:
        while not stop.is_set():
            index = Index.open(folder)
            before = check(index)
            time.sleep(0.05 * (seen % 4))
            index._forget()
            assert check(index) == before
            seen += 1
    except BaseException as error:
        import traceback

        wrong.put("".join(traceback.format_exception(error)))
    counts.put(seen)


def main(folder, seconds, readers):
    index = Index.create(folder, dimensions=DIMENSIONS, distance="euclidean", kind="hnsw")
    start = pairs(10**6, 100)
    index.append(np.stack([vector(path) for path in start]), [item(path) for path in start])
    del index
    context = multiprocessing.get_context("spawn")
    stop, wrong, counts = context.Event(), context.Queue(), context.Queue()
    processes = [context.Process(target=read, args=(folder, stop, wrong, counts)) for _ in range(readers)]
    for process in processes:
        process.start()
    timer = multiprocessing.get_context("spawn").Process(target=wait, args=(seconds, stop))
    timer.start()
    generation, added = write(folder, stop)
    seen = [counts.get(timeout=60) for _ in processes]
    for process in (*processes, timer):
        process.join()
    if not wrong.empty():
        sys.exit(wrong.get())
    assert min(seen) > 1, seen
    assert generation > 1, generation
    final = Index.open(folder)
    check(final)
    with final.store.writing():
        left = final.store.table.execute("SELECT COUNT(*) FROM past WHERE generation < ?", [generation])
        assert left == [(0,)], left
        assert len(list(folder.glob("*.f32"))) == len(list(folder.glob("*.faiss"))) == 1
    print(f"{sum(seen)} states read, {added} pairs added, {generation} compactions")


def wait(seconds, stop):
    time.sleep(seconds)
    stop.set()


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
