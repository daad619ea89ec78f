"""Speed and memory of the warped softmax next to its peers, as ratios within one run: `make bench`.

Every loss goes forward and backward on the same embeddings and proxies. Its time is divided by that of
the three matrix products that any exact loss over N x C needs (E P', W P, W' E), measured in the same
round; rounds are interleaved, so that other load on the machine hits all alike.

Peak memory is measured in a separate process for each loss: growth of the resident set over what it
was once parameters, embeddings and their gradients existed. Before the pass the gradients are dropped,
as `optimizer.zero_grad()` does; "accumulating" is the same with the old gradients kept and added to.
A loss that needs more than 20 GB or 60 seconds per pass is reported as such and not timed.
"""

import gc
import multiprocessing
import os
import resource
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer
from pytorch_metric_learning import losses as peers
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from softwarp.files import write_json
from softwarp.losses import WarpedSoftmaxLoss, warped_softmax_loss
from softwarp.runs.provenance import environment

# The working range of a trained model: own distances of 18 to 30, on both sides of alpha.
WARP = {"alpha": 25.0, "k1": 0.8, "k2": 1.15, "scale": 4.0, "delta": 1.3}
MEMORY_LIMIT = 20 * 10**9
SECONDS_LIMIT = 60.0
SLOW_SECONDS = 5.0  # a slower loss is timed once and not warmed up
SECONDS_A_BLOCK = 0.02  # a faster loss is repeated until a measurement takes that long
SECONDS_A_SIZE = 30.0  # no new round begins after that
BARE = "three bare products"
OURS = "softwarp, fused"
AUTOMATIC = "softwarp, automatic"


class Size(NamedTuple):
    samples: int
    classes: int
    dimensions: int


class Bar(NamedTuple):
    size: Size
    ratio: float | None  # to the bare products
    fastest: bool
    megabytes: float | None
    automatic: float | None = None  # time of automatic scale and alpha, relative to fixed ones


BARS = (
    Bar(Size(64, 100, 512), ratio=None, fastest=True, megabytes=None),
    Bar(Size(192, 11318, 512), ratio=1.5, fastest=True, megabytes=None),
    Bar(Size(256, 85742, 512), ratio=1.6, fastest=True, megabytes=None, automatic=1.03),
    Bar(Size(256, 200000, 256), ratio=None, fastest=False, megabytes=300.0),
)


def authors_loss(
    embeddings: Tensor,
    proxies: Tensor,
    labels: Tensor,
    *,
    alpha: float,
    k1: float,
    k2: float,
    scale: float,
    delta: float,
) -> Tensor:
    """Return the mean warped softmax loss as the authors' code computes it, rewritten.

    One-hot masks over N x C, distances from the expanded square with a floor of 1e-12 under it, and the
    softmax cross-entropy; of the ways to read that, the one with the fewest operations.
    """
    own = one_hot(labels, len(proxies)).to(embeddings.dtype)
    squares = embeddings.square().sum(1, keepdim=True) + proxies.square().sum(1) - 2 * embeddings @ proxies.T
    t = squares.clamp_min(1e-12).sqrt()
    own_t = (t * own).sum(1, keepdim=True)
    inside = k1 * own_t + delta * ((1 - k1) * own_t).detach()
    outside = k2 * own_t + (1 - k2) * alpha
    warped = torch.where(own_t < alpha, inside, outside)
    return cross_entropy(-scale * (t * (1 - own) + warped * own), labels)


class Competitor(NamedTuple):
    """One forward and backward pass, and the tensors whose gradients it leaves behind."""

    run: Callable[[], None]
    leaves: list[Tensor]

    def clear(self) -> None:
        for leaf in self.leaves:
            leaf.grad = None


def problem(size: Size) -> tuple[Tensor, Tensor, Tensor]:
    """Return embeddings, proxies and labels: each embedding 18 to 30 from its proxy, the others beyond.

    Proxies lie about 13 from one another, so that the softmax over all of them is in its working range.
    """
    generator = torch.Generator().manual_seed(0)
    proxies = torch.randn(size.classes, size.dimensions, generator=generator).mul_(9 / size.dimensions**0.5)
    labels = torch.randint(size.classes, (size.samples,), generator=generator)
    direction = torch.randn(size.samples, size.dimensions, generator=generator)
    distance = 18 + 12 * torch.rand(size.samples, 1, generator=generator)
    embeddings = proxies[labels] + distance * nn.functional.normalize(direction)
    return embeddings, proxies, labels


def with_proxies(loss: nn.Module, proxies: Tensor) -> nn.Module:
    """Return the loss with these proxies in place of its own; some peers hold them as [D, C], as W."""
    if hasattr(loss, "W"):
        loss.W = nn.Parameter(proxies.T.contiguous())
    else:
        loss.proxies = nn.Parameter(proxies)
    return loss


def bare_products(embeddings: Tensor, proxies: Tensor, labels: Tensor) -> Competitor:
    def run() -> None:
        weights = embeddings @ proxies.T
        embeddings.grad = weights @ proxies
        proxies.grad = weights.T @ embeddings

    return Competitor(run, [embeddings, proxies])


def of_function(function: Callable[..., Tensor]) -> Callable[[Tensor, Tensor, Tensor], Competitor]:
    def build(embeddings: Tensor, proxies: Tensor, labels: Tensor) -> Competitor:
        leaves = [embeddings.detach().requires_grad_(), proxies.detach().requires_grad_()]
        return Competitor(lambda: function(*leaves, labels, **WARP).mean().backward(), leaves)

    return build


def of_module(
    module: Callable[..., nn.Module], **settings: Any
) -> Callable[[Tensor, Tensor, Tensor], Competitor]:
    def build(embeddings: Tensor, proxies: Tensor, labels: Tensor) -> Competitor:
        loss = with_proxies(module(*proxies.shape, **settings), proxies)
        leaf = embeddings.detach().requires_grad_()
        return Competitor(lambda: loss(leaf, labels).backward(), [leaf, *loss.parameters()])

    return build


# The peers keep their defaults; being cosine losses, they normalise embeddings and proxies themselves.
COMPETITORS: dict[str, Callable[[Tensor, Tensor, Tensor], Competitor]] = {
    BARE: bare_products,
    OURS: of_module(WarpedSoftmaxLoss, **WARP),
    AUTOMATIC: of_module(WarpedSoftmaxLoss, **WARP | {"scale": "auto", "alpha": "auto"}),
    "softwarp, obvious": of_function(warped_softmax_loss),
    "authors' formulation": of_function(authors_loss),
    "PML ProxyNCALoss": of_module(peers.ProxyNCALoss),
    "PML NormalizedSoftmaxLoss": of_module(peers.NormalizedSoftmaxLoss),
    "PML ArcFaceLoss": of_module(peers.ArcFaceLoss),
    "PML ProxyAnchorLoss": of_module(peers.ProxyAnchorLoss),
}


def peak_memory(name: str, size: Size) -> dict[str, Any]:
    """Return status, seconds and peak megabytes of one pass, measured in a separate process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytorch_metric_learning.losses", "softwarp.losses", "softwarp.runs.run"])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure_memory, args=(name, size, sender))
    process.start()
    sender.close()
    row: dict[str, Any] = {"status": "measured"}
    try:
        receiver.recv()  # ready
        while row["status"] == "measured":
            if not receiver.poll(SECONDS_LIMIT):
                row = {"status": f"more than {SECONDS_LIMIT:.0f} s per pass"}
                break
            message = receiver.recv()
            if message is None:
                break
            row |= message
    except EOFError:
        row = {"status": "the process died, probably out of memory"}
    process.kill()
    process.join()
    return row


def _measure_memory(name: str, size: Size, sender: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT))
    COMPETITORS[name](*problem(Size(8, 16, 32))).run()  # loads libraries and starts threads
    competitor = COMPETITORS[name](*problem(size))
    for leaf in competitor.leaves:
        leaf.grad = torch.ones_like(leaf)
    sender.send("ready")
    try:
        before = _peak_bytes(reset=True)
        start = time.perf_counter()
        competitor.clear()
        competitor.run()
        seconds = time.perf_counter() - start
        sender.send({"first_pass_seconds": seconds, "peak_megabytes": (_peak_bytes() - before) / 1e6})
        if seconds < SLOW_SECONDS and name != BARE:
            before = _peak_bytes(reset=True)
            competitor.run()
            sender.send({"peak_megabytes_accumulating": (_peak_bytes() - before) / 1e6})
    except RuntimeError as error:
        if "allocate memory" not in str(error):
            raise
        sender.send({"status": f"more than {MEMORY_LIMIT / 1e9:.0f} GB"})
    sender.send(None)


def _peak_bytes(*, reset: bool = False) -> int:
    """Return the largest resident set so far, on Linux; `reset` restarts from what is resident now."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def time_rounds(names: dict[str, float], size: Size, rounds: int) -> dict[str, list[float]]:
    """Return the seconds per pass of each loss, one value per round; `names` holds a first guess."""
    tensors = problem(size)
    competitors = {name: COMPETITORS[name](*tensors) for name in names}
    repeats = {}
    for name, guess in names.items():
        if guess < SLOW_SECONDS:
            _block_seconds(competitors[name], 1)
            guess = _block_seconds(competitors[name], 1)
        repeats[name] = max(1, round(SECONDS_A_BLOCK / guess))
    seconds: dict[str, list[float]] = {name: [] for name in names}
    start = time.perf_counter()
    for index in range(rounds):
        if index >= 3 and time.perf_counter() - start > SECONDS_A_SIZE:
            break
        first = index % len(names)  # nobody always comes after the same one
        for name in [*names][first:] + [*names][:first]:
            if index and min(seconds[name], default=0.0) > SLOW_SECONDS:
                continue
            seconds[name].append(_block_seconds(competitors[name], repeats[name]))
    return seconds


def _block_seconds(competitor: Competitor, repeats: int) -> float:
    total = 0.0
    gc.collect()
    for _ in range(repeats):
        competitor.clear()
        start = time.perf_counter()
        competitor.run()
        total += time.perf_counter() - start
    competitor.clear()
    return total / repeats


def measure(size: Size, rounds: int) -> dict[str, Any]:
    """Return all figures of one size; without rounds, memory alone."""
    rows = {name: peak_memory(name, size) for name in COMPETITORS}
    if rounds:
        running = {
            name: row["first_pass_seconds"] for name, row in rows.items() if row["status"] == "measured"
        }
        seconds = time_rounds(running, size, rounds)
        for name, values in seconds.items():
            # Each is divided by the bare products of its own round; the best, by their best.
            ratios = [value / bare for value, bare in zip(values, seconds[BARE], strict=False)]
            rows[name] |= {
                "rounds": len(values),
                "median_seconds": statistics.median(values),
                "best_seconds": min(values),
                "median_ratio": statistics.median(ratios),
                "best_ratio": min(values) / min(seconds[BARE]),
            }
    result = {**size._asdict(), "losses": {name: {"name": name, **row} for name, row in rows.items()}}
    if rounds and any(bar.automatic and bar.size == size for bar in BARS):
        result["automatic_over_fixed"] = automatic_cost(size, rounds)
    return result


def automatic_cost(size: Size, rounds: int) -> float:
    """Return the time of automatic scale and alpha over that of fixed ones.

    Nothing else is timed between them: a few percent would drown in what the others leave in the caches.
    """
    seconds = time_rounds({OURS: 1.0, AUTOMATIC: 1.0}, size, rounds)
    return statistics.median(
        auto / fixed for auto, fixed in zip(seconds[AUTOMATIC], seconds[OURS], strict=True)
    )


def check_bars(sizes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each bar whose size was measured, with what was measured and whether it is met."""
    checks = []
    for bar in BARS:
        for result in (s for s in sizes if all(s[key] == v for key, v in bar.size._asdict().items())):
            losses = result["losses"]
            ours = losses[OURS]
            ratios = {
                n: row["median_ratio"] for n, row in losses.items() if "median_ratio" in row and n != BARE
            }
            where = "N={}, C={}, D={}".format(*bar.size)
            if bar.ratio and OURS in ratios:
                what = f"{where}: at most {bar.ratio} x the bare products"
                checks.append({"bar": what, "measured": ratios[OURS], "met": ratios[OURS] <= bar.ratio})
            if bar.fastest and OURS in ratios:
                other = min(ratio for name, ratio in ratios.items() if name not in (OURS, AUTOMATIC))
                what = f"{where}: faster than every other, time relative to the fastest of them"
                checks.append({"bar": what, "measured": ratios[OURS] / other, "met": ratios[OURS] <= other})
            if bar.automatic and "automatic_over_fixed" in result:
                what = f"{where}: automatic scale and alpha at most {bar.automatic} x fixed ones"
                cost = result["automatic_over_fixed"]
                checks.append({"bar": what, "measured": cost, "met": cost <= bar.automatic})
            if bar.megabytes and "peak_megabytes" in ours:
                what = f"{where}: at most {bar.megabytes:.0f} MB beyond parameters and gradients"
                peak = ours["peak_megabytes"]
                checks.append({"bar": what, "measured": peak, "met": peak <= bar.megabytes})
    return checks


def table(result: dict[str, Any]) -> Table:
    """Return the figures of one size for the terminal; what could not be measured stands below."""
    columns = {
        "x bare": ("median_ratio", 1, ".2f"),
        "x best": ("best_ratio", 1, ".2f"),
        "ms": ("median_seconds", 1000, ".2f"),
        "rounds": ("rounds", 1, "d"),
        "MB": ("peak_megabytes", 1, ".0f"),
        "MB adding": ("peak_megabytes_accumulating", 1, ".0f"),
    }
    rows = result["losses"].values()
    failed = [f"{row['name']}: {row['status']}" for row in rows if row["status"] != "measured"]
    title = "N={samples}, C={classes}, D={dimensions}".format(**result)
    shown = Table(title=title, caption="; ".join(failed) or None)
    shown.add_column("loss", no_wrap=True)
    for name in columns:
        shown.add_column(name, justify="right")
    for row in rows:
        cells = [format(row[key] * by, form) if key in row else "-" for key, by, form in columns.values()]
        shown.add_row(row["name"], *cells)
    return shown


def parse_sizes(text: str) -> list[Size]:
    """Return the sizes of a text such as "64x100x512,192x11318x512": samples x classes x dimensions."""
    sizes = []
    for word in filter(None, text.split(",")):
        numbers = [int(number) if number.isdecimal() else 0 for number in word.split("x")]
        if len(numbers) != 3 or min(numbers) < 1:
            raise typer.BadParameter(f"{word!r} is not samples x classes x dimensions, such as 64x100x512")
        sizes.append(Size(*numbers))
    return sizes


def main(
    sizes: Annotated[
        str, typer.Option(help="Sizes to time, and to measure the memory of: NxCxD,NxCxD,...")
    ] = "64x100x512,192x11318x512,256x85742x512",
    memory_sizes: Annotated[
        str, typer.Option(help="Sizes to measure the memory of, without time.")
    ] = "256x200000x256",
    rounds: Annotated[
        int, typer.Option(min=1, help="Most rounds a size; 30 seconds end them too, after three.")
    ] = 30,
    output: Annotated[Path, typer.Option(help="Where the figures go.")] = Path("results/benchmark_loss.json"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Three rounds of the two small sizes, no others.")
    ] = False,
) -> None:
    """Time every loss beside the three bare matrix products and measure its peak memory."""
    timed, untimed = parse_sizes(sizes), parse_sizes(memory_sizes)
    if quick:
        timed, untimed, rounds = timed[:2], [], min(rounds, 3)
    console = Console()
    load = os.getloadavg()[0]
    results = []
    for size in [*timed, *untimed]:
        results.append(measure(size, rounds if size in timed else 0))
        console.print(table(results[-1]))
    bars = check_bars(results)
    for bar in bars:
        console.print(f"{'met   ' if bar['met'] else 'MISSED'} {bar['bar']}: {bar['measured']:.2f}")
    content = {
        "command": shlex.join(["python", *sys.argv]),
        "environment": {**environment(), "load_at_start": load},
        "warp": WARP,
        "bars": bars,
        "sizes": [{**result, "losses": list(result["losses"].values())} for result in results],
    }
    write_json(output, content)
    console.print(f"figures: {output}")


if __name__ == "__main__":
    typer.run(main)
