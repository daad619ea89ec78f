"""Retrieval metrics beside peers: time as a ratio to the bare matrix product, and peak memory.

    python benchmarks/evaluation.py [--oml-python PATH]
    python benchmarks/evaluation.py --size sop --growth       # only by how much ten fresh processes grow

Every contender has a process of its own, which times the bare N x N x D product before and after. It writes
results/benchmark_evaluation.json. open-metric-learning pins NumPy 1.26 and needs an environment of its own:
make one, `pip install open-metric-learning omegaconf`, give its interpreter; without that it is left out.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

RESULT = Path(__file__).parent.parent / "results" / "benchmark_evaluation.json"
SIZES: dict[str, dict[str, Any]] = {
    "cub": {"rows": 5924, "classes": 100, "ks": (1, 2, 4, 8), "noise": 1.9, "repeats": 3},
    "cars": {"rows": 8131, "classes": 98, "ks": (1, 2, 4, 8), "noise": 1.9, "repeats": 1},
    "sop": {"rows": 60502, "classes": 11316, "ks": (1, 10, 100, 1000), "noise": 1.2, "repeats": 1},
}
DOCS = Path(__file__).parent.parent / "docs" / "performance.md"
START, END = "<!-- table: benchmark_evaluation -->\n", "<!-- end of table: benchmark_evaluation -->"
NAMES = {
    "softwarp": "softwarp: every retrieval metric",
    "pml_max_bin_count": 'pytorch-metric-learning, `k="max_bin_count"`: three metrics',
    "pml_default": "pytorch-metric-learning, default `k`: three metrics",
    "faiss_numpy": "faiss `IndexFlatL2` + NumPy: recall@K, r_precision, map@r",
    "oml": "open-metric-learning: cmc, precision and map @K",
    "authors": "the authors' `pairwise_distances` + `argsort`: recall@K",
}
TOO_LARGE = {
    "pml_default": "its index array alone would be 60502 x 60502 x 8 bytes = 29 GB",
    "authors": "its distances and order would be 60502 x 60502 x (4 + 8) bytes = 44 GB",
}
FRESH_PROCESSES = 10
TIME_LIMIT = 900  # seconds for one contender at one size
TILE = 2048  # of the bare product: 16 MB, so that writing it costs little


def make_data(rows: int, classes: int, noise: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings [rows, 512] around class centres, shuffled, with a spectrum that decays."""
    generator = np.random.default_rng(0)
    sizes = np.full(classes, rows // classes)
    if rows // classes < 12:  # Stanford Online Products: 2 to 12 images a class
        sizes = 2 + generator.binomial(10, (rows / classes - 2) / 10, classes)
    most = max(12, rows // classes + 1)
    while sizes.sum() != rows:
        chosen, step = generator.integers(classes), np.sign(rows - sizes.sum())
        sizes[chosen] += step * (2 <= sizes[chosen] + step <= most)
    labels = generator.permutation(np.repeat(np.arange(classes), sizes))
    spread = np.arange(1, 513, dtype=np.float32) ** -0.5
    centres = generator.standard_normal((classes, 512), dtype=np.float32)
    points = np.empty((rows, 512), dtype=np.float32)
    for start in range(0, rows, 4096):  # so that making the data is not the peak of memory
        part = labels[start : start + 4096]
        points[start : start + 4096] = centres[part] + noise * generator.standard_normal(
            (len(part), 512), dtype=np.float32
        )
    points *= spread
    return torch.from_numpy(points), torch.from_numpy(labels)


def product(points: torch.Tensor) -> float:
    """Seconds of the bare N x N x D product, tile by tile, nothing kept."""
    tile = torch.empty(TILE * TILE)
    start = time.perf_counter()
    for left in torch.split(points, TILE):
        for right in torch.split(points, TILE):
            torch.mm(left, right.T, out=tile[: len(left) * len(right)].view(len(left), len(right)))
    return time.perf_counter() - start


def softwarp(points: torch.Tensor, labels: torch.Tensor, ks: tuple[int, ...]) -> dict[str, float]:
    from softwarp.metrics import retrieval_metrics

    return retrieval_metrics(points, labels, ks=ks, map_ks=ks, ndcg_ks=ks)


def pml(points: torch.Tensor, labels: torch.Tensor, k: str | None) -> dict[str, float]:
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    names = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    calculator = AccuracyCalculator(include=names, k=k, device=torch.device("cpu"))
    found = calculator.get_accuracy(points, labels)
    return dict(
        zip(("precision@1", "r_precision", "map@r"), (float(found[name]) for name in names), strict=True)
    )


def faiss_numpy(points: torch.Tensor, labels: torch.Tensor, ks: tuple[int, ...]) -> dict[str, float]:
    """Nearest neighbours by faiss, the query dropped by index, metrics by NumPy; those with R in float64."""
    import faiss

    truth = labels.numpy()
    positives = np.bincount(truth)[truth] - 1
    deepest = int(max(*ks, positives.max()))
    index = faiss.IndexFlatL2(points.shape[1])
    index.add(points.numpy())
    hits = np.zeros((len(truth), deepest), dtype=bool)
    for start in range(0, len(truth), 4096):
        found = index.search(points.numpy()[start : start + 4096], deepest + 1)[1]
        rows = np.arange(start, start + len(found))
        others = found != rows[:, None]
        others[others.all(axis=1), -1] = False  # the query was not found: drop the last
        kept = found[others].reshape(len(found), deepest)
        hits[rows] = truth[kept] == truth[rows, None]
    places = np.arange(1, deepest + 1)
    within = (places <= positives[:, None]) & hits
    precision = np.zeros(len(truth))
    for start in range(0, len(truth), 4096):
        part = slice(start, start + 4096)
        precision[part] = (within[part] * hits[part].cumsum(axis=1) / places).sum(axis=1)
    return {
        **{f"recall@{k}": float(hits[:, :k].any(axis=1).mean()) for k in ks},
        "r_precision": float((within.sum(axis=1) / positives).mean()),
        "map@r": float((precision / positives).mean()),
    }


def oml(points: torch.Tensor, labels: torch.Tensor, ks: tuple[int, ...]) -> dict[str, float]:
    from oml.functional.knn import batched_knn  # type: ignore[import-not-found]
    from oml.functional.metrics import calc_retrieval_metrics  # type: ignore[import-not-found]

    everything = torch.arange(len(points))
    _, found, truth = batched_knn(points, everything, everything, top_n=max(ks), labels_gt=labels)
    metrics = calc_retrieval_metrics(
        retrieved_ids=found,
        gt_ids=truth,
        cmc_top_k=ks,
        precision_top_k=ks,
        map_top_k=ks,
        reduce=True,
        verbose=False,
    )
    return {f"recall@{k}": float(metrics["cmc"][k]) for k in ks}


def authors(points: torch.Tensor, labels: torch.Tensor, ks: tuple[int, ...]) -> dict[str, float]:
    """All distances, all sorted, the first column dropped."""
    from sklearn.metrics import pairwise_distances

    order = np.argsort(pairwise_distances(points.numpy()), axis=1)[:, 1:]
    hits = labels.numpy()[order[:, : max(ks)]] == labels.numpy()[:, None]
    return {f"recall@{k}": float(hits[:, :k].any(axis=1).mean()) for k in ks}


CONTENDERS: dict[str, Callable[[torch.Tensor, torch.Tensor, tuple[int, ...]], dict[str, float]]] = {
    "softwarp": softwarp,
    "pml_max_bin_count": lambda points, labels, ks: pml(points, labels, "max_bin_count"),
    "pml_default": lambda points, labels, ks: pml(points, labels, None),
    "faiss_numpy": faiss_numpy,
    "oml": oml,
    "authors": authors,
}


def work(name: str, size: str) -> dict[str, Any]:
    """One contender on one size: median seconds, those of the product around it, peak memory, findings."""
    setting = SIZES[size]
    points, labels = make_data(setting["rows"], setting["classes"], setting["noise"])
    CONTENDERS[name](points[:2000], labels[:2000], (1,))  # imports and first calls
    seconds, products, values = [], [product(points)], {}
    for _ in range(setting["repeats"]):
        start = time.perf_counter()
        values = CONTENDERS[name](points, labels, setting["ks"])
        seconds.append(time.perf_counter() - start)
        products.append(product(points))
    return {
        "seconds": round(statistics.median(seconds), 3),
        "product_seconds": round(statistics.median(products), 3),
        "ratio_to_product": round(statistics.median(seconds) / statistics.median(products), 3),
        "peak_megabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "repeats": setting["repeats"],
        "values": values,
    }


def growth(size: str, distance: str) -> int:
    """Megabytes that the first call adds, at its peak, to what the process holds before it (Linux)."""
    setting, status = SIZES[size], Path("/proc/self/status")
    points, labels = make_data(setting["rows"], setting["classes"], setting["noise"])
    from softwarp.metrics import retrieval_metrics

    def kilobytes(name: str) -> int:
        line = next(line for line in status.read_text().splitlines() if line.startswith(name))
        return int(line.split()[1])

    Path("/proc/self/clear_refs").write_text("5")  # the peak is what there is now
    before = kilobytes("VmRSS")
    ks = setting["ks"]
    retrieval_metrics(points, labels, ks=ks, map_ks=ks, ndcg_ks=ks, distance=distance)
    return round((kilobytes("VmHWM") - before) / 1024)


def growths(size: str) -> dict[str, Any]:
    """The same in fresh processes, one after the other."""
    command = [sys.executable, __file__, "--worker", "growth", "--size", size]
    found = []
    for _ in range(FRESH_PROCESSES):
        found.append(int(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
        print(f"{size:5} softwarp grows by   {found[-1]:6} MB", flush=True)
    return {"megabytes": found, "largest": max(found)}


def contend(name: str, size: str, python: str) -> dict[str, Any]:
    """The same in a process of its own; a note where it cannot be run."""
    if size == "sop" and name in TOO_LARGE:
        return {"not_run": TOO_LARGE[name]}
    if not python:
        return {"not_run": "no interpreter given"}
    command = [python, __file__, "--worker", name, "--size", size]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        return {"not_run": f"stopped after {TIME_LIMIT} seconds"}
    if done.returncode:
        raise RuntimeError(f"{name} at size {size} failed:\n{done.stderr}")
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"{size:5} {name:18} {row['seconds']:9.3f} s  {row['ratio_to_product']:8.3f} x product", end="  ")
    print(f"{row['peak_megabytes']:6} MB  recall@1 {row['values'].get('recall@1', '')}", flush=True)
    return row


def table(result: dict[str, Any]) -> str:
    """Markdown of a result: a line a contender, a column a size."""
    heads = [f"{size}: {part['setting']['rows']:,} x 512" for size, part in result["sizes"].items()]
    lines = [["retrieval", *heads], ["---", *["---:"] * len(heads)]]
    for name, words in NAMES.items():
        lines.append([words, *(_cell(part["retrieval"][name]) for part in result["sizes"].values())])
    grown = [f"{part['growth']['largest']} MB" for part in result["sizes"].values()]
    lines.append([f"softwarp, growth of memory by the call, most of {FRESH_PROCESSES} processes", *grown])
    seconds = [f"{part['clustering']['seconds']:.0f} s" for part in result["sizes"].values()]
    lines.append(["softwarp, clustering (20 iterations)", *seconds])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(row: dict[str, Any]) -> str:
    if "not_run" in row:
        return str(row["not_run"])
    return f"{row['ratio_to_product']:.2f}x ({row['seconds']:.1f} s), {row['peak_megabytes']:,} MB"


def write_docs(result: dict[str, Any]) -> None:
    before, rest = DOCS.read_text().split(START)
    DOCS.write_text(before + START + table(result) + END + rest.split(END)[1])


def clustering(size: str) -> dict[str, Any]:
    """Seconds of k-means with its three scores, one iteration's share apart."""
    from softwarp.metrics import clustering_metrics

    setting = SIZES[size]
    points, labels = make_data(setting["rows"], setting["classes"], setting["noise"])
    start = time.perf_counter()
    values = clustering_metrics(points, labels, seed=0)
    seconds = round(time.perf_counter() - start, 1)
    print(f"{size:5} clustering         {seconds:9.1f} s  {values}", flush=True)
    return {"seconds": seconds, "iterations": 20, "restarts": 1, "values": values}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--oml-python", default="", help="interpreter of an environment with open-metric-learning"
    )
    parser.add_argument("--size", choices=SIZES, action="append", help="only these sizes")
    parser.add_argument("--contender", choices=CONTENDERS, action="append", help="measure only these again")
    parser.add_argument("--growth", action="store_true", help="measure only the growth of memory again")
    parser.add_argument("--worker", choices=[*CONTENDERS, "growth"], help=argparse.SUPPRESS)
    parser.add_argument("--distance", default="euclidean", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = options.size or list(SIZES)
    if options.worker == "growth":
        print(growth(sizes[0], options.distance))
        return
    if options.worker:
        print(json.dumps(work(options.worker, sizes[0])))
        return
    from softwarp.files import write_text
    from softwarp.runs.provenance import code

    result = json.loads(RESULT.read_text()) if RESULT.exists() else {"sizes": {}}
    result["machine"] = {
        "code": code(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    for size in sizes:
        setting = {name: SIZES[size][name] for name in ("rows", "classes", "ks", "noise")} | {
            "dimensions": 512
        }
        part = result["sizes"].setdefault(size, {"setting": setting, "retrieval": {}})
        if not options.contender:
            part["growth"] = growths(size)
            write_text(RESULT, json.dumps(result, indent=2) + "\n")
        if not options.contender and not options.growth:
            part["clustering"] = clustering(size)
        for name in [] if options.growth else options.contender or CONTENDERS:
            python = options.oml_python if name == "oml" else sys.executable
            part["retrieval"][name] = contend(name, size, python)
            write_text(RESULT, json.dumps(result, indent=2) + "\n")
    complete = (
        len(part["retrieval"]) == len(CONTENDERS) and "growth" in part for part in result["sizes"].values()
    )
    if all(complete):
        write_docs(result)


if __name__ == "__main__":
    main()
