"""Search and embedding beside what they are made of, as ratios within one run.

    python benchmarks/search.py                 # writes results/benchmark_search.json

Random Gaussian vectors of 128 dimensions, the hardest case for approximate search: a million for the default
index, fewer for the approximate kinds, whose build takes minutes on two cores. Bare faiss searches the same
vectors with the same settings; both take turns. `time_ratio` is softwarp over bare, by the clock;
`processor_time_ratio` counts the processor's seconds, which a busy machine hardly changes. Memory is what
opening an index and searching adds to a process. Embedding is compared with the bare forward pass on ready
tensors of the same images.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

RESULT = Path(__file__).parents[1] / "results" / "benchmark_search.json"
DIMENSIONS, BATCH = 128, 65536
SIZES = {"flat": 1_000_000, "hnsw": 100_000, "ivfpq": 100_000}
QUERIES, SINGLE, REPEATS = 200, 10, 5
IMAGES, IMAGE_BATCH = 192, 64

Vectors = NDArray[np.float32]


def make_vectors(rows: int, seed: int) -> Vectors:
    return np.random.default_rng(seed).standard_normal((rows, DIMENSIONS), dtype=np.float32)


def seconds_of(action: Callable[[], Any]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def take_turns(
    first: Callable[[], Any], second: Callable[[], Any], repeats: int = REPEATS
) -> tuple[dict[str, float], dict[str, float]]:
    """Median seconds of both, by the clock and of the processor, measured in turns after one call of each."""
    first()
    second()
    pairs = [(both_clocks(first), both_clocks(second)) for _ in range(repeats)]
    medians = [
        {clock: statistics.median(pair[place][clock] for pair in pairs) for clock in ("wall", "processor")}
        for place in (0, 1)
    ]
    return medians[0], medians[1]


def both_clocks(action: Callable[[], Any]) -> dict[str, float]:
    """Seconds by the clock, and those of the processor, which other work on the machine hardly changes."""
    start = time.process_time()
    wall = seconds_of(action)
    return {"wall": wall, "processor": time.process_time() - start}


def ratios(own: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    return {
        "time_ratio": round(own["wall"] / other["wall"], 3),
        "processor_time_ratio": round(own["processor"] / other["processor"], 3),
    }


def build_softwarp(folder: Path, kind: str, vectors: Vectors) -> dict[str, float]:
    """Seconds until the vectors are searchable and on disk, and those for the names of the items."""
    from softwarp.index.images import NewImage
    from softwarp.index.index import Index
    from softwarp.index.rows import write_rows
    from softwarp.index.searching import as_stored
    from softwarp.index.updates import compact_and_index

    index = Index.create(folder, dimensions=DIMENSIONS, distance="euclidean", kind=kind)
    written = [0.0]

    def timed(path: Path, start: int, array: NDArray[Any]) -> None:
        written[0] += seconds_of(lambda: write_rows(path, start, array))

    start = time.perf_counter()
    with index.store.writing(), patch("softwarp.index.store.write_rows", timed):
        for first in range(0, len(vectors), BATCH):
            part = as_stored(index.store, vectors[first : first + BATCH])
            names = [NewImage(f"{row:07}.jpg") for row in range(first, first + len(part))]
            index.store.append(part, names)
        appended = time.perf_counter() - start
        settled = seconds_of(lambda: compact_and_index(index.store))
    return {"build_seconds": written[0] + settled, "items_seconds": appended - written[0]}


def build_faiss(path: Path, kind: str, vectors: Vectors) -> float:
    """Seconds until bare faiss has them on disk."""
    import faiss

    from softwarp.index.faiss_index import make_index

    start = time.perf_counter()
    if kind == "flat":
        index: Any = faiss.IndexFlatL2(DIMENSIONS)
        for first in range(0, len(vectors), BATCH):
            index.add(vectors[first : first + BATCH])
    else:
        index = make_index(kind, vectors)  # nothing but calls of faiss
    faiss.write_index(index, os.fspath(path))
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return time.perf_counter() - start


def open_both(folder: Path, kind: str) -> tuple[Any, Any]:
    """The search functions (queries, k) -> ids of softwarp and of bare faiss with the same effort."""
    import faiss

    from softwarp.index.index import Index

    index = Index.open(folder / "index")
    bare: Any = faiss.read_index(os.fspath(folder / "bare.faiss"))
    effort = index.store.settings.get("effort", 0)
    if kind == "hnsw":
        bare.hnsw.efSearch = effort
    if kind == "ivfpq":
        bare.nprobe = effort
    return index, bare


def bare_search(bare: Any, kind: str, queries: Vectors, vectors: Vectors) -> NDArray[np.int64]:
    """What a user of faiss writes: for IVF-PQ with candidates ranked again by their vectors."""
    if kind != "ivfpq":
        found: NDArray[np.int64] = bare.search(queries, 10)[1]
        return found
    from softwarp.index.faiss_index import REFINED

    candidates = bare.search(queries, 10 * REFINED)[1]
    distances = ((vectors[candidates] - queries[:, None]) ** 2).sum(-1)
    return np.take_along_axis(candidates, np.argsort(distances, axis=1)[:, :10], 1)


def compare_search(folder: Path, kind: str, vectors: Vectors) -> dict[str, Any]:
    """Queries per second of both, in batches and one by one, and recall@10 for queries not in the index."""
    from softwarp.index.faiss_index import scan

    index, bare = open_both(folder, kind)
    queries = make_vectors(QUERIES, 1)
    few = [queries[row : row + 1] for row in range(SINGLE)]
    result: dict[str, Any] = {}
    for name, asked in (("batch", [queries]), ("single", few)):
        count = sum(map(len, asked))
        own, other = take_turns(
            lambda asked=asked: [index.nearest(each, 10) for each in asked],  # type: ignore[misc]
            lambda asked=asked: [bare_search(bare, kind, each, vectors) for each in asked],  # type: ignore[misc]
        )
        result[name] = {
            "softwarp_queries_per_second": round(count / own["wall"], 1),
            "faiss_queries_per_second": round(count / other["wall"], 1),
            **ratios(own, other),
        }
    truth = scan(queries, vectors, 10)
    found = index.nearest(queries, 10)[0] - 1
    result["recall@10"] = float(np.mean([np.isin(a, b).mean() for a, b in zip(found, truth, strict=True)]))
    result["recall_at_build"] = index.recall
    result["effort"] = index.store.settings.get("effort")
    return result


def memory_of(name: str, folder: Path, kind: str) -> dict[str, int]:
    """Megabytes of a process of its own that opens and searches: all, and those that are its own."""
    words = [sys.executable, __file__, "--worker", name, str(folder), kind]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found: dict[str, int] = json.loads(done.stdout)
    return found


def work(name: str, folder: Path, kind: str) -> dict[str, int]:
    """Open and search once with one of them: megabytes that this adds, at its peak and of its own.

    The rest of the peak is mapped from files: the system shares it, and drops it when memory is short.
    """
    import faiss

    from softwarp.index.index import Index

    queries = make_vectors(32, 1)
    faiss.IndexFlatL2(DIMENSIONS).search(queries, 1)  # whatever the first call needs
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what there is now
    before = kilobytes("VmRSS"), kilobytes("RssAnon")
    if name == "softwarp":
        search: Any = Index.open(folder / "index").nearest
    else:
        search = faiss.read_index(os.fspath(folder / "bare.faiss")).search
    search(queries, 10)
    grown = kilobytes("VmHWM") - before[0], kilobytes("RssAnon") - before[1]
    return {"peak_megabytes": grown[0] // 1024, "own_megabytes": grown[1] // 1024}


def kilobytes(name: str) -> int:
    """A line of what Linux tells of this process's memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def measure_kind(kind: str) -> dict[str, Any]:
    vectors = make_vectors(SIZES[kind], 0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result: dict[str, Any] = {"rows": len(vectors), "dimensions": DIMENSIONS}
        bare = build_faiss(folder / "bare.faiss", kind, vectors)
        own = build_softwarp(folder / "index", "auto" if kind == "flat" else kind, vectors)
        result["build"] = {
            "softwarp_seconds": round(own["build_seconds"], 2),
            "faiss_seconds": round(bare, 2),
            "time_ratio": round(own["build_seconds"] / bare, 3),
            "items_seconds": round(own["items_seconds"], 2),  # names and classes, which faiss does not keep
        }
        result["memory"] = {each: memory_of(each, folder, kind) for each in ("softwarp", "faiss")}
        result["search"] = compare_search(folder, kind, vectors)
    print(kind, json.dumps(result, indent=2), flush=True)
    return result


def measure_embedding() -> dict[str, Any]:
    """Images per second: the bare forward pass, `embed` on the same tensors, `embed` on JPEG files."""
    import torch
    from PIL import Image

    from softwarp.index.embed_files import embed_files
    from softwarp.inference import load

    model = load("efficientnet_lite0")
    generator = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        files = [Path(name) / f"{number}.jpg" for number in range(IMAGES)]
        for file in files:  # smooth, as photographs are: the size of their JPEG is alike
            coarse = Image.fromarray(generator.integers(0, 256, (24, 32, 3), dtype=np.uint8))
            coarse.resize((500, 375), Image.Resampling.BICUBIC).save(file, quality=90)
        ready = torch.stack([model.transform(model.read(file)) for file in files])

        def forward() -> None:
            with torch.no_grad():
                for part in ready.split(IMAGE_BATCH):
                    model.network(part)

        whole, tensors = take_turns(forward, lambda: model.embed(ready, batch_size=IMAGE_BATCH), REPEATS)
        again, from_files = take_turns(
            forward, lambda: list(embed_files(model, files, batch_size=IMAGE_BATCH)), REPEATS
        )

    def beside(own: dict[str, float], bare: dict[str, float]) -> dict[str, float]:
        return {"images_per_second": round(IMAGES / own["wall"], 1), **ratios(own, bare)}

    result = {
        "images": IMAGES,
        "forward_images_per_second": round(IMAGES / whole["wall"], 1),
        "tensors": beside(tensors, whole),
        "files": beside(from_files, again),
    }
    print("embedding", json.dumps(result, indent=2), flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = [*SIZES, "embedding"]
    parser.add_argument("--only", choices=parts, action="append", help="measure only these again")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(work(options.worker[0], Path(options.worker[1]), options.worker[2])))
        return
    from softwarp.files import write_json
    from softwarp.runs.provenance import code

    result = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    import faiss
    import torch

    result["machine"] = {
        "code": code(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "faiss": faiss.__version__,
    }
    for name in options.only or parts:
        result[name] = measure_embedding() if name == "embedding" else measure_kind(name)
        write_json(RESULT, result)


if __name__ == "__main__":
    main()
