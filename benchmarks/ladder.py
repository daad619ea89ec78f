"""Seconds to each rung of `softwarp train --data`, and the pass over the images beside the bare network.

    python benchmarks/ladder.py --data my_images [--budget 10m] [--backbone efficientnet_lite0] [--rounds 5]

The folder is trained on once, with an empty cache of features. Then the pass that fills the cache, bare
forward passes of the same network on ready tensors, and decoding alone take turns in one process, so that a
machine that slows down slows all. Cores that decode do not compute: on a CPU the limit of the pass is the sum
of the other two. It writes results/benchmark_ladder.json.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

import softwarp
from softwarp.data.trees import find_images
from softwarp.files import write_json
from softwarp.frozen.features import TOGETHER, files_of, pooled_features
from softwarp.inference import BATCH, EmbeddingModel
from softwarp.memory import freed_memory_kept
from softwarp.metrics.threads import read_ahead
from softwarp.runs.provenance import environment
from softwarp.training.backbones import CROP, frozen_model

RESULT = Path(__file__).parent.parent / "results" / "benchmark_ladder.json"
IMAGES = 256  # of the folder, in each pass


def timed(act: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def to_each_rung(data: Path, backbone: str, budget: str, runs: Path) -> dict[str, Any]:
    """Train on the folder; return the seconds until each rung was climbed and the model finished."""
    start = time.perf_counter()
    model = softwarp.train(data, backbone=backbone, budget=budget, output=runs / "run")
    whole, choice = time.perf_counter() - start, model.choice
    assert choice is not None
    climbed = list(accumulate(rung.seconds for rung in choice.rungs))
    rungs = {rung.name: round(seconds, 1) for rung, seconds in zip(choice.rungs, climbed, strict=True)}
    images = model.result.images
    return {
        "images": {"train": images.train, "evaluated": images.evaluated},
        "rungs": rungs,
        "finished": round(whole, 1),
        "chosen": choice.chosen.rung,
    }


def pass_over(model: EmbeddingModel, files: list[Path]) -> None:
    """Fill an empty cache with the features of these files."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["SOFTWARP_CACHE"] = cache
        pooled_features(model, files)


def bare(model: EmbeddingModel, images: torch.Tensor, count: int) -> None:
    """Run the network alone over as many ready images."""
    with torch.no_grad():
        for _ in range(0, count, len(images)):
            model.network.pooled(images)


def decoding(model: EmbeddingModel, files: list[Path]) -> None:
    """Decode, resize and crop the files as the pass does."""
    store = files_of(model, files)
    for _ in read_ahead(range(len(files)), lambda item: model.seen(store.read(item)), BATCH, os.cpu_count()):
        pass


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of images, CLASS/IMAGE")
    parser.add_argument("--backbone", default="efficientnet_lite0")
    parser.add_argument("--budget", default="10m")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SOFTWARP_CACHE"] = str(Path(folder) / "cache")
        ladder = to_each_rung(options.data, options.backbone, options.budget, Path(folder))
    files = find_images([options.data]).paths[:IMAGES]
    files = files[: len(files) // TOGETHER * TOGETHER]
    model = frozen_model(options.backbone, CROP)
    images = torch.zeros(
        TOGETHER, model.network.backbone.in_channels, model.crop, model.crop, dtype=torch.uint8
    )
    acts: list[Callable[[], None]] = [
        lambda: pass_over(model, files),
        lambda: bare(model, images, len(files)),
        lambda: decoding(model, files),
    ]
    with freed_memory_kept():
        for act in acts:
            act()
        rounds = [[timed(act) for act in acts] for _ in track(range(options.rounds), "rounds")]
    result: dict[str, Any] = {
        "backbone": options.backbone,
        "budget": options.budget,
        **ladder,
        "pass": {
            "images": len(files),
            "rounds": options.rounds,
            "images_per_second": round(len(files) / statistics.median(ours for ours, _, _ in rounds), 1),
            "ratio_to_bare_forward": round(statistics.median(net / ours for ours, net, _ in rounds), 3),
            "ratio_to_forward_and_decoding": round(
                statistics.median((net + read) / ours for ours, net, read in rounds), 3
            ),
        },
        "cores": os.cpu_count(),
        "environment": environment(),
    }
    write_json(RESULT, result)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
