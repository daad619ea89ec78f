"""Time and memory of a softmax over very many classes that processes divide: `python benchmarks/sharded.py`.

A step is what classes cost: embeddings are gathered, the warped softmax goes forward and backward, and Adam
moves the class vectors; there is no backbone. Two processes take sharded steps; between them the first one
takes the step of the whole loss, and does the three bare matrix products that any exact softmax over N x C
needs. Every process has one thread. Ratios are of processor time, summed over processes, which other load on
the machine hardly changes; seconds are those of the clock, which it does. Figures are medians over rounds.

Memory is measured in fresh processes: the largest resident set over three steps, minus that before the loss
is built. Building is counted apart: each process has all class vectors for a moment, one after the other.
"""

import json
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer
from rich.console import Console
from torch import Tensor, distributed
from torch.multiprocessing.spawn import start_processes

from softwarp import processes
from softwarp.files import write_json
from softwarp.losses import WarpedSoftmaxLoss
from softwarp.losses.sharding import ShardedLoss
from softwarp.memory import freed_memory_kept, trim_memory
from softwarp.runs.provenance import environment

SAMPLES, DIMENSIONS = 256, 256
WARP: dict[str, float] = {"alpha": 25.0, "k1": 0.8, "k2": 1.15, "scale": 4.0, "delta": 1.3}
CURVE = (10_000, 30_000, 100_000, 300_000, 1_000_000)
MEMORY_CLASSES = 300_000
MEMORY_RANKS = (1, 2, 4)
RATE = 0.1
FEW = 100_000  # classes up to which several rounds are taken
Step = Callable[[], None]


def problem(classes: int) -> tuple[Tensor, Tensor]:
    """Return embeddings and labels, the same in every process."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (SAMPLES,), generator=generator)
    return torch.randn(SAMPLES, DIMENSIONS, generator=generator), labels


def sharded_step(classes: int, rate: float = 1.0) -> Step:
    """Return a step of the sharded loss; each process has its share of the batch."""
    with processes.in_turn():
        whole = WarpedSoftmaxLoss(classes, DIMENSIONS, proxy_init="normal", **WARP)
        loss = ShardedLoss(whole, sample_rate=rate)
        trim_memory()  # as the trainer does
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
    embeddings, labels = problem(classes)
    own = embeddings.chunk(processes.count())[processes.place()].clone().requires_grad_()
    own_labels = labels.chunk(processes.count())[processes.place()]

    def step() -> None:
        own.grad = None
        optimizer.zero_grad()
        everyone = processes.whole_batch(own, own_labels)
        with loss.sampled(everyone[1], optimizer):
            loss(*everyone).backward()
            optimizer.step()

    return step


def whole_step(classes: int) -> Step:
    """Return a step of the loss that holds all classes."""
    loss = WarpedSoftmaxLoss(classes, DIMENSIONS, proxy_init="normal", **WARP)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
    embeddings, labels = problem(classes)
    embeddings.requires_grad_()

    def step() -> None:
        embeddings.grad = None
        optimizer.zero_grad()
        loss(embeddings, labels).backward()
        optimizer.step()

    return step


def bare_products(classes: int) -> Step:
    """Return E P', W P and W' E for all classes, tile by tile."""
    embeddings, _ = problem(classes)
    proxies = torch.randn(classes, DIMENSIONS)

    def step() -> None:
        gradient = torch.zeros_like(embeddings)
        for part in proxies.split(2**15):
            logits = embeddings @ part.T
            gradient.addmm_(logits, part)
            _ = logits.T @ embeddings

    return step


class Cost(NamedTuple):
    """Time of one step: of the clock, and of the processor, summed over processes."""

    seconds: float
    processor: float


def together(step: Step) -> Cost:
    """Return the cost of a step that all processes take."""
    processes.wait()
    clock, processor = time.perf_counter(), time.process_time()
    step()
    used = processes.sum_over(torch.tensor(time.process_time() - processor, dtype=torch.float64))
    return Cost(time.perf_counter() - clock, float(used))


def alone(step: Step | None) -> Cost:
    """Return the cost of a step of the first process, while the others wait."""
    processes.wait()
    clock, processor = time.perf_counter(), time.process_time()
    if step is not None:
        step()
    cost = Cost(time.perf_counter() - clock, time.process_time() - processor)
    processes.wait()
    return cost


def medians(rounds: list[dict[str, Cost]], first: str) -> dict[str, Any]:
    """Return the median seconds of each step, and the processor time of the first over that of the others."""
    found = {f"{name}_seconds": statistics.median(row[name].seconds for row in rounds) for name in rounds[0]}
    found |= {
        f"{first}_over_{name}": statistics.median(
            row[first].processor / max(row[name].processor, 1e-9) for row in rounds
        )
        for name in rounds[0]
        if name != first
    }
    return {"rounds": len(rounds), **found}


def timed(classes: int, rounds: int) -> dict[str, Any]:
    """Return the cost of a sharded step, a whole one and the bare products."""
    sharded = sharded_step(classes)
    whole, bare = (whole_step(classes), bare_products(classes)) if processes.is_main() else (None, None)
    rows = [
        {"sharded": together(sharded), "unsharded": alone(whole), "bare": alone(bare)}
        for _ in range(rounds + 1)  # the first is a warm-up
    ]
    return {"classes": classes, **medians(rows[1:], "sharded")}


def sampled(classes: int, rounds: int) -> dict[str, Any]:
    """Return the cost of a sampled step, and of one with a tenth of the classes, all of them."""
    many, few = sharded_step(classes, RATE), sharded_step(int(classes * RATE))
    rows = [{"sampled": together(many), "tenth": together(few)} for _ in range(rounds + 1)]
    return {"classes": classes, "sample_rate": RATE, **medians(rows[1:], "sampled")}


def resident(field: str) -> int:
    """Return the resident set of this process in bytes: VmRSS now, VmHWM the largest since the last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))


def memory(classes: int) -> dict[str, Any]:
    """Return the growth of each process, in bytes: while the loss is built, and over three steps."""
    forget = Path("/proc/self/clear_refs")
    sharded_step(64)()  # loads what torch loads late
    before = resident("VmRSS")
    forget.write_text("5")  # the largest so far
    step = sharded_step(classes)
    built = resident("VmHWM") - before
    processes.wait()
    forget.write_text("5")
    for _ in range(3):
        step()
    return {"before": before, "built": built, "trained": resident("VmHWM") - before}


def work(rank: int, folder: str, world: int, task: str, classes: int, rounds: int) -> None:
    """Do one task as one of the processes; the main one keeps what came out."""
    torch.set_num_threads(1)
    if world > 1:
        distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=world)
    with freed_memory_kept():  # as in `softwarp train`
        if task == "memory":
            result: Any = processes.gather_objects(memory(classes))
        else:
            result = (timed if task == "time" else sampled)(classes, rounds)
    if processes.is_main():
        write_json(Path(folder) / "result.json", {"result": result})
    processes.leave()


def measure(world: int, task: str, classes: int, rounds: int = 0) -> Any:
    """Return what processes of their own find out."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = (folder, world, task, classes, rounds)
        start_processes(work, args=arguments, nprocs=world, start_method="fork")
        return json.loads((Path(folder) / "result.json").read_text())["result"]


def summary(classes: int, world: int, found: list[dict[str, int]]) -> dict[str, Any]:
    """Return the memory of a set of processes, in megabytes."""
    return {
        "classes": classes,
        "ranks": world,
        "trained_per_rank": max(each["trained"] for each in found) / 1e6,
        "built_per_rank": max(each["built"] for each in found) / 1e6,
        "all_ranks": sum(each["before"] + max(each["trained"], each["built"]) for each in found) / 1e6,
    }


def check_bars(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what must hold, with what was measured."""
    memory = {each["ranks"]: each["trained_per_rank"] for each in content["memory"]}
    largest = max(memory)
    share = memory[largest] * largest / memory[1]
    bars = [
        (f"memory per rank times ranks, {largest} over 1", share, 1.25),
        ("two ranks, all classes: gigabytes", content["most_classes"]["all_ranks"] / 1e3, 12.0),
        ("sampled step over one with a tenth of the classes", content["sampled"]["sampled_over_tenth"], 1.5),
    ]
    return [
        {"bar": bar, "measured": value, "at_most": most, "met": value <= most} for bar, value, most in bars
    ]


def main(
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds of each size, after a first one to warm up.")
    ] = 3,
    output: Annotated[Path, typer.Option(help="Where the figures go.")] = Path(
        "results/benchmark_sharded.json"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="A hundredth of the classes, one round.")] = False,
) -> None:
    """Time sharded steps beside whole ones and bare products, and measure the memory of each process."""
    console, load = Console(), os.getloadavg()[0]
    curve = [classes // 100 if quick else classes for classes in CURVE]
    rounds = 1 if quick else rounds
    content: dict[str, Any] = {
        "command": shlex.join(["python", *sys.argv]),
        "environment": {**environment(), "load_at_start": load},
        "samples": SAMPLES,
        "dimensions": DIMENSIONS,
        "optimizer": "adam",
        "memory": [],
        "curve": [],
    }
    for world in MEMORY_RANKS:
        classes = MEMORY_CLASSES // 100 if quick else MEMORY_CLASSES
        content["memory"].append(summary(classes, world, measure(world, "memory", classes)))
        console.print(content["memory"][-1])
    content["most_classes"] = summary(curve[-1], 2, measure(2, "memory", curve[-1]))
    console.print(content["most_classes"])
    content["sampled"] = measure(2, "sampled", curve[-1], rounds)
    console.print(content["sampled"])
    for classes in curve:
        content["curve"].append(measure(2, "time", classes, rounds if classes <= FEW else 1))
        console.print(content["curve"][-1])
    content["bars"] = check_bars(content)
    for bar in content["bars"]:
        console.print(f"{'met   ' if bar['met'] else 'MISSED'} {bar['bar']}: {bar['measured']:.2f}")
    write_json(output, content)
    console.print(f"figures: {output}")


if __name__ == "__main__":
    typer.run(main)
