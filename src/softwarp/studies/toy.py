"""A small LeNet overfitted to FashionMNIST in two dimensions: Eq. 4 beside the warp.

Both losses have the same network, batches and seeds. The warp begins after a quarter of the training, which
is Eq. 4 for both: from the start, when all embeddings lie together, it would push them out together. The
numbers are of the training images, which the network overfits, and of others; compactness and separability
are those of metrics/geometry.py.
"""

import json
import statistics
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from softwarp.claims import above, claim, measured, shown
from softwarp.figures import Drawing
from softwarp.studies.toy_training import LOSSES, Pictures, load_pictures, train_toy
from softwarp.tables import Cell, Table, figure, metric_title
from softwarp.tasks import Task, open_study, work

if TYPE_CHECKING:
    from rich.progress import Progress

Array = NDArray[np.float64]

PAPER = "Fig. 10"
METRICS = ("separability_ratio", "separability", "compactness", "avg_dtp", "accuracy")
PARTS = {"train": "trained on", "held_out": "held out"}
ROUNDS, STEPS = 40, 100  # a checkpoint and a frame of the animation after each round


def main(
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder of FashionMNIST's idx files, packed or not. Default: ten digits of the glyphs."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each loss; --quick takes one.")] = 3,
    *,
    output: Path,
    quick: bool,
    progress: "Progress",
) -> dict[str, Any]:
    """Overfit a LeNet with two-dimensional embeddings, by Eq. 4 and by the warp; draw and measure them.

    \b
    softwarp study toy --data fashion-mnist
    softwarp study toy --quick

    Also writes toy.gif, in which the embedding forms.
    """
    from softwarp.studies.toy_figures import write_animation

    pictures = load_pictures(data, per_class=60 if quick else 600)
    plan = {"rounds": 8 if quick else ROUNDS, "steps": 10 if quick else STEPS, "seeds": 1 if quick else seeds}
    found = collect(pictures, output, plan, progress)
    write_animation(output / "toy.gif", frames_of(output, len(pictures.names)), pictures.names)
    return summarise(found)


def collect(
    pictures: Pictures, folder: Path, plan: dict[str, int], progress: "Progress | None"
) -> dict[str, Any]:
    """Train every loss with every seed in a folder of its own; return what each of them measured."""
    settings = dict(LOSSES.values())
    about = {"source": pictures.source, "images": len(pictures.train[1]), "plan": plan, "losses": settings}
    open_study(folder, {"study": "toy", **about})
    tasks = [
        Task(f"{loss}-{seed}", partial(train_toy, loss=loss, seed=seed, pictures=pictures, plan=plan))
        for loss in LOSSES
        for seed in range(plan["seeds"])
    ]
    work(tasks, folder, progress=progress)
    results = {
        loss: [
            json.loads((folder / f"{loss}-{seed}" / "result.json").read_text())
            for seed in range(plan["seeds"])
        ]
        for loss in LOSSES
    }
    return {**about, "names": pictures.names, "held_out": len(pictures.held_out[1]), "results": results}


def read_points(text: str, classes: int) -> Array:
    """Return points from such a text, by class: [C, N, 2].

    >>> read_points("1,2 3,4", classes=2).shape
    (2, 1, 2)
    """
    return np.array([each.split(",") for each in text.split()], dtype=float).reshape(classes, -1, 2)


def frames_of(folder: Path, classes: int) -> dict[str, list[tuple[Array, Array]]]:
    """Return the points [C, N, 2] and proxies [C, 2] of each frame of each loss, of its first seed."""
    saved = {
        title: torch.load(folder / f"{loss}-0" / "checkpoint.pt", weights_only=True)["frames"]
        for loss, (title, _) in LOSSES.items()
    }
    return {
        title: [(points.reshape(classes, -1, 2).numpy(), proxies.numpy()) for points, proxies in frames]
        for title, frames in saved.items()
    }


def summarise(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return mean and deviation of every measure, the embeddings of the first seed, and claims."""
    results = found["results"]
    rows = {
        loss: {part: _over_seeds([result[part] for result in each]) for part in PARTS}
        for loss, each in results.items()
    }
    drawn = {loss: each[0]["drawn"] for loss, each in results.items()}
    about = {key: value for key, value in found.items() if key != "results"}
    return {**about, "rows": rows, "drawn": drawn, "claims": claims_of(rows)}


def _over_seeds(results: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    values = {name: [result[name] for result in results] for name in METRICS}
    deviation = {name: statistics.stdev(each) for name, each in values.items() if len(each) > 1}
    return {"mean": {name: statistics.mean(each) for name, each in values.items()}, "deviation": deviation}


def claims_of(rows: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return what the caption of Fig. 10 says, held against the training images."""
    plain, warp = (rows[loss]["train"] for loss in LOSSES)

    def compared(metric: str, words: str, first: Any, second: Any) -> dict[str, str]:
        numbers = (
            f"warp {shown(metric, measured(warp, metric))}, Eq. 4 {shown(metric, measured(plain, metric))}"
        )
        return claim(words, above(measured(first, metric), measured(second, metric)), numbers)

    return [
        compared("separability", "the warp separates clusters better", warp, plain),
        compared("compactness", "while preserving compactness (not less compact)", plain, warp),
        compared("separability_ratio", "separability relative to compactness is larger", warp, plain),
    ]


def table(summary: Mapping[str, Any]) -> Table:
    """Return every measure of both losses, a row for images trained on and one for those held out."""

    def cells(name: str, part: str) -> list[str]:
        found = (summary["rows"][loss][part] for loss in LOSSES)
        return [figure(name, each["mean"][name], each["deviation"].get(name)) for each in found]

    rows = [
        (metric_title(name), words, *cells(name, part)) for name in METRICS for part, words in PARTS.items()
    ]
    seeds = summary["plan"]["seeds"]
    title = (
        f"{summary['source']}, {summary['images']:,} images, two dimensions, {seeds} seed{'s' * (seeds > 1)}"
    )
    heads = ("measure", "images", *(title for title, _ in LOSSES.values()))
    return Table(heads, tuple(tuple(map(Cell, row)) for row in rows), title=title, words=2)


def draw(summary: Mapping[str, Any]) -> dict[str, Drawing]:
    """Return both embeddings with their proxies."""
    from softwarp.studies.toy_figures import draw_embeddings

    classes = len(summary["names"])
    points, proxies = (
        {LOSSES[loss][0]: read_points(each[kind], classes) for loss, each in summary["drawn"].items()}
        for kind in ("points", "proxies")
    )
    return {
        "toy": draw_embeddings(points, {name: each[:, 0] for name, each in proxies.items()}, summary["names"])
    }
