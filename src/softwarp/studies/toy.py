"""A small LeNet overfitted to FashionMNIST in two dimensions: Eq. 4 beside the warp.

The paper does not give its alpha. A warp pushes outward only if alpha is beyond the distance that Eq. 4 ends
at by itself, so Eq. 4 is trained first, and alpha is twice its AvgDTP with the same seed; beside it stands
the automatic alpha. All have the same network, batches and seeds. The warp begins after a quarter of
training, which is Eq. 4 for all: from the start, when all embeddings lie together, it would push them out
together. The numbers are of the training images, which the network overfits, and of others; compactness and
separability are those of metrics/geometry.py.
"""

import statistics
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from softwarp.events import OnEvent
from softwarp.fair.tasks import Task, open_study, work
from softwarp.figures import Drawing
from softwarp.report.claims import OUR_READING, above, claim, measured, written
from softwarp.studies.finished import read_result
from softwarp.studies.toy_figures import Floats, draw_embeddings, write_animation
from softwarp.studies.toy_training import KINDS, PLAIN, SLOPES, Pictures, load_pictures, train_toy
from softwarp.tables import Cell, Table, counted, figure, metric_title

PAPER = "Fig. 10"
CAPTION = "caption of Fig. 10"
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
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each kind; --quick takes one.")] = 3,
    *,
    output: Path,
    quick: bool,
    on_event: OnEvent | None,
) -> dict[str, Any]:
    """Overfit a LeNet with two-dimensional embeddings, by Eq. 4 and by two warps; draw and measure them.

    \b
    softwarp study toy --data fashion-mnist
    softwarp study toy --quick

    Also writes toy.gif, which shows the embedding as it forms.
    """
    pictures = load_pictures(data, per_class=60 if quick else 600)
    plan = {"rounds": 8 if quick else ROUNDS, "steps": 10 if quick else STEPS, "seeds": 1 if quick else seeds}
    found = collect(pictures, output, plan, on_event)
    write_animation(output / "toy.gif", frames_of(output, len(pictures.names)), pictures.names)
    return summarise(found)


def collect(
    pictures: Pictures, folder: Path, plan: dict[str, int], on_event: OnEvent | None
) -> dict[str, Any]:
    """Train every kind with every seed in a folder of its own; return what each of them measured."""
    kinds = {kind: each._asdict() for kind, each in KINDS.items()}
    about = {"source": pictures.source, "images": len(pictures.train[1]), "plan": plan, "slopes": SLOPES}
    open_study(folder, {"study": "toy", "kinds": kinds, **about})
    options: dict[str, Any] = {"pictures": pictures, "plan": plan}
    tasks = [
        Task(
            f"{kind}-{seed}",
            partial(train_kind, kind=kind, seed=seed, **options),
            after=() if kind == PLAIN else (f"{PLAIN}-{seed}",),
        )
        for kind in KINDS
        for seed in range(plan["seeds"])
    ]
    work(tasks, folder, on_event=on_event)
    results = {
        kind: [read_result(folder / f"{kind}-{seed}") for seed in range(plan["seeds"])] for kind in KINDS
    }
    return {**about, "names": pictures.names, "held_out": len(pictures.held_out[1]), "results": results}


def train_kind(folder: Path, on_event: OnEvent | None, *, kind: str, seed: int, **options: Any) -> None:
    """Train one kind with one seed; a warp's alpha follows from Eq. 4, whose folder is beside this one."""
    alpha = KINDS[kind].alpha
    if kind != PLAIN and not isinstance(alpha, str):
        alpha *= read_result(folder.parent / f"{PLAIN}-{seed}")["train"]["avg_dtp"]
    train_toy(folder, on_event, kind=kind, alpha=alpha, seed=seed, **options)


def read_points(text: str, classes: int) -> Floats:
    """Return points from such a text, by class: [C, N, 2].

    >>> read_points("1,2 3,4", classes=2).shape
    (2, 1, 2)
    """
    return np.array([each.split(",") for each in text.split()], dtype=float).reshape(classes, -1, 2)


def frames_of(folder: Path, classes: int) -> dict[str, list[tuple[Floats, Floats]]]:
    """Return the points [C, N, 2] and proxies [C, 2] of each frame of each loss, of its first seed."""
    found = {}
    for kind, each in KINDS.items():
        frames = torch.load(folder / f"{kind}-0" / "checkpoint.pt", weights_only=True)["frames"]
        found[each.title] = [
            (points.reshape(classes, -1, 2).numpy(), proxies.numpy()) for points, proxies in frames
        ]
    return found


def summarise(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return mean and deviation of every measure, alphas, the embeddings of the first seed, and claims."""
    results = found["results"]
    rows = {
        kind: {part: _over_seeds([result[part] for result in each]) for part in PARTS}
        for kind, each in results.items()
    }
    alphas = {kind: [result["alpha"] for result in each] for kind, each in results.items() if kind != PLAIN}
    drawn = {kind: each[0]["drawn"] for kind, each in results.items()}
    summary = {key: value for key, value in found.items() if key != "results"}
    summary |= {"rows": rows, "alphas": alphas, "drawn": drawn}
    return summary | {"claims": claims_of(summary)}


def _over_seeds(results: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    values = {name: [result[name] for result in results] for name in METRICS}
    deviation = {name: statistics.stdev(each) for name, each in values.items() if len(each) > 1}
    return {"mean": {name: statistics.mean(each) for name, each in values.items()}, "deviation": deviation}


def claims_of(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return what the caption of Fig. 10 says of each warp, held against the training images."""
    said = {
        "separability": ("clusters are better separated", CAPTION),
        "compactness": ("compactness is preserved (not less compact)", CAPTION),
        "separability_ratio": ("separability relative to compactness is larger", OUR_READING),
    }
    claims = []
    for kind in (kind for kind in KINDS if kind != PLAIN):
        for metric, (words, place) in said.items():
            warp, plain = (measured(summary["rows"][each]["train"], metric) for each in (kind, PLAIN))
            verdict = above(plain, warp) if metric == "compactness" else above(warp, plain)
            numbers = f"warp {written(metric, warp)}, Eq. 4 {written(metric, plain)}"
            claims.append(claim(f"{KINDS[kind].title}: {words}", verdict, numbers, said=place))
    return claims


def table(summary: Mapping[str, Any]) -> Table:
    """Return every measure of all kinds, a row for images trained on and one for those held out."""

    def cells(name: str, part: str) -> list[str]:
        found = (summary["rows"][kind][part] for kind in KINDS)
        return [figure(name, each["mean"][name], each["deviation"].get(name)) for each in found]

    alphas = (", ".join(f"{alpha:.2f}" for alpha in summary["alphas"].get(kind, ())) for kind in KINDS)
    rows = [("alpha", "", *(words or "-" for words in alphas))]
    rows += [
        (metric_title(name), words, *cells(name, part)) for name in METRICS for part, words in PARTS.items()
    ]
    seeds = counted(summary["plan"]["seeds"], "seed")
    title = f"{summary['source']}, {summary['images']:,} images, two dimensions, {seeds}"
    heads = ("measure", "images", *(each.title for each in KINDS.values()))
    return Table(heads, tuple(tuple(map(Cell, row)) for row in rows), title=title, words=2)


def draw(summary: Mapping[str, Any]) -> dict[str, Drawing]:
    """Return all embeddings with their proxies."""
    classes = len(summary["names"])
    points, proxies = (
        {KINDS[kind].title: read_points(each[drawn], classes) for kind, each in summary["drawn"].items()}
        for drawn in ("points", "proxies")
    )
    centres = {name: each[:, 0] for name, each in proxies.items()}
    return {"toy": draw_embeddings(points, centres, summary["names"])}
