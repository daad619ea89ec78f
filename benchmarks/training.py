"""A training epoch compared with the bare forward and backward of its backbone on ready tensors.

    python benchmarks/training.py --data CUB_200_2011 [--recipe cub_lite] [--no-cache] [--rounds 100]

Both halves are timed in turn in one process, step by step, so that a machine that slows down slows both.
The training half is the program's own loop: decoding, augmentation, loss, clipping, guards, optimizer. Where
worker processes decode, each turn starts with steps that are not counted: until the batches that were decoded
beside the bare half are used up, and new ones are made. It writes results/benchmark_training.json.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor

from softwarp.data.images import PREFETCHED, Batch
from softwarp.data.sources import load_source
from softwarp.files import write_text
from softwarp.memory import freed_memory_kept
from softwarp.recipe.files import find_recipe, read_settings
from softwarp.recipe.overrides import override
from softwarp.recipe.schema import parse_recipe
from softwarp.runs.provenance import code
from softwarp.runs.run import Run
from softwarp.training.job import Job, prepare, start_accelerator
from softwarp.training.train import set_rates, take_step

RESULT = Path(__file__).parent.parent / "results" / "benchmark_training.json"


def training(job: Job, stream: Iterator[Batch]) -> None:
    """One step of the program's loop, including the wait for images."""
    phase = job.recipe.phases[-1]
    batch = next(stream)
    set_rates(job, phase, 0)
    take_step(job, phase, 0, batch)


def bare(job: Job, images: Tensor) -> None:
    """One forward and backward pass of the backbone alone."""
    job.model.train()
    job.model.zero_grad()
    job.model.backbone(images).sum().backward()


@torch.no_grad()
def embedding(job: Job, images: Tensor) -> None:
    """One forward pass of the model, as evaluation does it."""
    job.model.eval()
    job.model(images)


def seconds(step: Callable[[], None], steps: int, *, first: int = 0) -> float:
    """Seconds per step: the mean over `steps`, after `first` steps that are not counted."""
    for _ in range(first):
        step()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - start) / steps


def typical(step: Callable[[], None]) -> float:
    """Seconds per step: the median of twenty."""
    step()
    return statistics.median(seconds(step, 1) for _ in range(20))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="folder of the data set")
    parser.add_argument("--recipe", default="cub_lite")
    parser.add_argument("--steps", type=int, default=1, help="in each round")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument(
        "--cache",
        action=argparse.BooleanOptionalAction,
        help="cache decoded images; default: as the recipe says",
    )
    options = parser.parse_args()
    changes = [f"data.root={options.data}", "phases.1.epochs=1000"]
    if options.cache is not None:
        changes.append(f"data.cache={str(options.cache).lower()}")
    recipe = parse_recipe(override(read_settings(find_recipe(options.recipe)), changes))
    folder = Path(tempfile.mkdtemp())
    accelerator = start_accelerator(recipe, folder)
    source = load_source(recipe.data, recipe.evaluation.plan())
    job = prepare(recipe, Run.create(folder, recipe), accelerator, source)
    stream = job.stream()
    images = torch.randn(job.batch_size, job.model.backbone.in_channels, recipe.data.crop, recipe.data.crop)
    twice = images.repeat(2, 1, 1, 1)  # evaluation takes larger batches
    halves: list[Callable[[], None]] = [lambda: bare(job, images), lambda: embedding(job, twice)]
    usual = [typical(half) for half in halves]  # with glibc's default memory settings
    with freed_memory_kept():
        kept = [typical(half) for half in halves]
    training(job, stream)
    first = PREFETCHED * job.workers()
    rounds = []
    with freed_memory_kept():  # as `softwarp train` does
        for _ in track(range(options.rounds), "rounds"):
            ours = seconds(lambda: training(job, stream), options.steps, first=first)
            rounds.append((ours, seconds(halves[0], options.steps, first=first)))
    ratios = [ours / limit for ours, limit in rounds]
    result: dict[str, Any] = {
        "recipe": options.recipe,
        "cache": recipe.data.cache,
        "batch": job.batch_size,
        "rounds": options.rounds,
        "steps": options.steps,
        "images_per_second": round(job.batch_size / statistics.median(ours for ours, _ in rounds), 1),
        "ratio_to_bare_forward_backward": round(statistics.median(ratios), 3),
        "ratio_of_all_rounds_together": round(
            sum(ours for ours, _ in rounds) / sum(limit for _, limit in rounds), 3
        ),
        "half_of_all_ratios_lie_in": [round(share, 3) for share in statistics.quantiles(ratios, n=4)[::2]],
        "times_faster_with_freed_memory_kept": {
            "bare_forward_backward": round(usual[0] / kept[0], 2),
            "embedding": round(usual[1] / kept[1], 2),
        },
        "workers": job.workers(),
        "machine": {
            "code": code(),
            "system": f"{platform.system()} {platform.machine()}",
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        },
    }
    write_text(RESULT, json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
