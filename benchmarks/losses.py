"""Time and peak memory of every loss in LOSSES, at the batch sizes of the paper's experiments.

Every loss goes forward and backward in a separate process, on embeddings around class centres with the
same number of samples of each class. Time is the median of the passes after the first; peak memory is
the growth of the resident set in the first pass, over what it was once parameters, embeddings and their
gradients existed. The same process times the three matrix products that any gradient of all similarities
needs (samples with proxies, or else with each other): times are reported as multiples of these. A loss that
needs more than 20 GB or 300 seconds per pass is reported as such.

The sizes with 100 classes are for all losses, that of 11318 classes (SOP) for those that hold parameters,
and 400 and 4000 samples for those of kind "ranking", whose batches are that large, next to
pytorch-metric-learning's Smooth-AP.
"""

import multiprocessing
import os
import resource
import shlex
import statistics
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from softwarp.files import write_json
from softwarp.losses import LOSSES, build_loss, card_of, find_loss
from softwarp.runs.provenance import environment

# What a loss cannot be built without; the range of the warp is that of a trained model.
SETTINGS: dict[str, dict[str, Any]] = {"warped_softmax": {"alpha": 25.0, "k1": 0.8, "k2": 1.15}}
PEER = "pml_smooth_ap"
MEMORY_LIMIT = 20 * 10**9
SECONDS_LIMIT = 300.0
SECONDS_A_LOSS = 2.0  # no new pass begins after that, once there are three


class Size(NamedTuple):
    samples: int
    classes: int
    dimensions: int
    samples_a_class: int
    of: str  # "all", "parameters" or "ranking": which losses are measured


SIZES = (
    Size(64, 100, 512, 4, "all"),
    Size(120, 100, 512, 4, "all"),
    Size(192, 11318, 512, 3, "parameters"),
    Size(400, 100, 512, 4, "ranking"),
    Size(4000, 1000, 512, 4, "ranking"),
)
QUICK = (Size(16, 6, 8, 4, "all"),)


def problem(size: Size) -> tuple[Tensor, Tensor]:
    """Return embeddings and labels: classes overlap somewhat, so that no loss is at its minimum."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(size.samples // size.samples_a_class).repeat_interleave(size.samples_a_class)
    centres = torch.randn(size.classes, size.dimensions, generator=generator)
    noise = torch.randn(len(labels), size.dimensions, generator=generator)
    return centres[labels] + 2 * noise, labels


def losses_at(size: Size, names: list[str]) -> list[str]:
    """Return those of the names that are measured at this size."""
    if size.of == "ranking":
        return [name for name in names if card_of(name).kind == "ranking"] + [PEER]
    if size.of == "parameters":
        return [name for name in names if any(True for _ in _build(name, 4, 4).parameters())]
    return names


def _build(name: str, classes: int, dimensions: int) -> nn.Module:
    if name == PEER:
        from pytorch_metric_learning.losses import SmoothAPLoss

        peer: nn.Module = SmoothAPLoss()
        return peer
    return build_loss(name, classes, dimensions, **SETTINGS.get(name, {}))


def measure(name: str, size: Size, passes: int) -> dict[str, Any]:
    """Return status, seconds and peak megabytes of one loss, measured in a separate process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["softwarp.losses", "softwarp.runs.run"])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(name, size, passes, sender))
    process.start()
    sender.close()
    row: dict[str, Any] = {"name": name, "status": "measured"}
    seconds: list[float] = []
    products: list[float] = []
    try:
        while receiver.poll(SECONDS_LIMIT):
            message = receiver.recv()
            if message is None:
                break
            row |= message
            seconds += [message["seconds"]] if "seconds" in message else []
            products += [message["products"]] if "products" in message else []
        else:
            row["status"] = f"more than {SECONDS_LIMIT:.0f} s per pass"
    except EOFError:
        row["status"] = "the process died, probably out of memory"
    process.kill()
    process.join()
    timed = seconds[1:] or seconds  # a loss too slow for a second pass has its first one
    row = {key: value for key, value in row.items() if key not in ("seconds", "products")}
    if not timed:
        return row
    median, bare = statistics.median(timed), statistics.median(products)
    return row | {"passes": len(timed), "median_seconds": median, "multiple_of_products": median / bare}


def _measure(name: str, size: Size, passes: int, sender: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT))
    torch.manual_seed(0)
    _pass(_build(name, 6, 8), *problem(QUICK[0]))  # loads libraries and starts threads
    loss = _build(name, size.classes, size.dimensions)
    embeddings, labels = problem(size)
    leaves = [embeddings.requires_grad_(), *loss.parameters()]
    for leaf in leaves:
        leaf.grad = torch.ones_like(leaf)
    before, begin = _peak_bytes(reset=True), time.perf_counter()
    try:
        for index in range(1 + passes):
            if index > 3 and time.perf_counter() - begin > SECONDS_A_LOSS:
                break
            for leaf in leaves:
                leaf.grad = None
            start = time.perf_counter()
            _pass(loss, embeddings, labels)
            message = {"seconds": time.perf_counter() - start}
            message |= {} if index else {"peak_megabytes": (_peak_bytes() - before) / 1e6}
            sender.send(message | {"products": _products(name, size)})
    except RuntimeError as error:
        if "allocate memory" not in str(error):
            raise
        sender.send({"status": f"more than {MEMORY_LIMIT / 1e9:.0f} GB"})
    sender.send(None)


def _products(name: str, size: Size) -> float:
    """Return the seconds of the product of all similarities and of its two gradients."""
    with_proxies = name in LOSSES and card_of(name).kind in ("proxies", "classifier")
    samples = torch.ones(size.samples, size.dimensions)
    others = torch.ones(size.classes if with_proxies else size.samples, size.dimensions)
    start = time.perf_counter()
    similarities = samples @ others.T
    similarities @ others, similarities.T @ samples
    return time.perf_counter() - start


def _pass(loss: nn.Module, embeddings: Tensor, labels: Tensor) -> None:
    loss(embeddings.requires_grad_(), labels).backward()


def _peak_bytes(*, reset: bool = False) -> int:
    """Return the largest resident set so far, on Linux; `reset` restarts from what is resident now."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def table(size: Size, rows: list[dict[str, Any]]) -> Table:
    """Return the figures of one size for the terminal; what could not be measured stands below."""
    failed = [f"{row['name']}: {row['status']}" for row in rows if row["status"] != "measured"]
    title = f"N={size.samples}, C={size.classes}, D={size.dimensions}"
    shown = Table(title=title, caption="; ".join(failed) or None)
    shown.add_column("loss", no_wrap=True)
    for column in ("ms", "x products", "passes", "MB"):
        shown.add_column(column, justify="right")
    for row in rows:
        if "median_seconds" in row:
            milliseconds, megabytes = f"{1000 * row['median_seconds']:.2f}", f"{row['peak_megabytes']:.0f}"
            multiple = f"{row['multiple_of_products']:.1f}"
            shown.add_row(row["name"], milliseconds, multiple, str(row["passes"]), megabytes)
    return shown


def main(
    losses: Annotated[str, typer.Option(help="Names of losses, with commas between; all, if none.")] = "",
    passes: Annotated[
        int, typer.Option(min=1, help="Most passes after the first; two seconds end them too, after three.")
    ] = 30,
    output: Annotated[Path, typer.Option(help="Where the figures go.")] = Path(
        "results/benchmark_losses.json"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="One tiny size, two passes.")] = False,
) -> None:
    """Time every loss forward and backward, and measure its peak memory."""
    names = [name for name in losses.split(",") if name] or list(LOSSES)
    for name in names:
        find_loss(name)
    console = Console()
    load = os.getloadavg()[0]
    results = []
    for size in QUICK if quick else SIZES:
        rows = [measure(name, size, min(passes, 2) if quick else passes) for name in losses_at(size, names)]
        console.print(table(size, rows))
        results.append({**size._asdict(), "losses": rows})
    content = {
        "command": shlex.join(["python", *sys.argv]),
        "environment": {**environment(), "load_at_start": load},
        "sizes": results,
    }
    write_json(output, content)
    console.print(f"figures: {output}")


if __name__ == "__main__":
    typer.run(main)
