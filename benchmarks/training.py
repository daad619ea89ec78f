"""A training epoch beside the bare forward and backward of its backbone on ready tensors, as a ratio.

    python benchmarks/training.py --data CUB_200_2011 [--recipe cub_lite] [--steps 40]

Both halves are timed in turn in one process, several rounds, so that a machine that slows down slows both.
The training half is the program's own loop: decoding, augmentation, loss, clipping, guards, optimizer. It
writes results/benchmark_training.json.
"""

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from softwarp.data.images import Batch
from softwarp.files import write_text
from softwarp.job import Job, load_source, prepare, start_accelerator
from softwarp.recipe import find_recipe, override, parse_recipe, read_settings
from softwarp.runs import Run
from softwarp.train import set_rates, take_step

RESULT = Path(__file__).parent.parent / "results" / "benchmark_training.json"


def training(job: Job, stream: Iterator[Batch], steps: int) -> float:
    """Seconds of so many steps of the program's loop, the waiting for images included."""
    phase = job.recipe.phases[-1]
    start = time.perf_counter()
    for _ in range(steps):
        batch = next(stream)
        set_rates(job, phase, 0.0)
        take_step(job, phase, 0, batch)
    return time.perf_counter() - start


def bare(job: Job, images: torch.Tensor, steps: int) -> float:
    """Seconds of so many forward and backward passes of the backbone alone."""
    job.model.train()
    start = time.perf_counter()
    for _ in range(steps):
        job.model.zero_grad()
        job.model.backbone(images).sum().backward()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="folder of the data set")
    parser.add_argument("--recipe", default="cub_lite")
    parser.add_argument("--steps", type=int, default=12, help="in each round")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--cache", action="store_true", help="with the cache of decoded images")
    options = parser.parse_args()
    changes = [
        f"data.root={options.data}",
        f"data.cache={str(options.cache).lower()}",
        "phases.1.epochs=1000",
    ]
    recipe = parse_recipe(override(read_settings(find_recipe(options.recipe)), changes))
    folder = Path(tempfile.mkdtemp())
    accelerator = start_accelerator(recipe, folder)
    job = prepare(recipe, Run.create(folder, recipe), accelerator, load_source(recipe))
    stream = job.stream()
    images = torch.randn(job.batch_size, job.model.backbone.in_channels, recipe.data.crop, recipe.data.crop)
    training(job, stream, 2)
    bare(job, images, 2)
    rounds = []
    for _ in range(options.rounds):
        rounds.append((training(job, stream, options.steps), bare(job, images, options.steps)))
        print(f"training {rounds[-1][0]:.2f} s, bare {rounds[-1][1]:.2f} s", flush=True)
    ratios = [ours / limit for ours, limit in rounds]
    result: dict[str, Any] = {
        "recipe": options.recipe,
        "cache": options.cache,
        "batch": job.batch_size,
        "steps": options.steps,
        "images_per_second": round(
            options.steps * job.batch_size / statistics.median(a for a, _ in rounds), 1
        ),
        "ratio_to_bare_forward_backward": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "workers": job.workers(),
        "machine": {
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
