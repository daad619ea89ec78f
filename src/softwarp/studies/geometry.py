"""Separability and compactness in numbers: distances to proxies, scatter, spectrum, norms, hubs.

softwarp study geometry runs/warped_softmax runs/hist       any finished runs, of any loss
softwarp study geometry                                     the demo's three losses on glyphs
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from softwarp.data.sources import Source
from softwarp.evaluation import embed_images, evenly_spaced
from softwarp.events import OnEvent
from softwarp.figures import COLOURS, Drawing, legend_below, panels_of, plain, tidy
from softwarp.files import write_json
from softwarp.inference import load
from softwarp.losses import build_loss
from softwarp.losses.contract import proxies_of
from softwarp.metrics import geometry_metrics, occurrences
from softwarp.metrics.checks import on_unit_sphere
from softwarp.models.principal import class_means
from softwarp.report.runs import ReportedRun
from softwarp.runs.run import Run
from softwarp.studies.finished import Runs, measure_entries, reported_runs, source_of
from softwarp.tables import Cell, Table, metric_title

PAPER = "its argument, in numbers"
IMAGES = 2000  # evenly spaced images of the training classes
BINS = 40
DIRECTIONS = 128  # directions of the spectrum that are kept
FEWEST = 4  # runs; fewer have no correlation
SIDES = {"train": "training classes", "unseen": "unseen classes"}
# What is said of the distances on each side.
DISTANCES = {
    "own": "to its own",
    "other": "to the nearest other",
    "ratio": "own / other",
    "nearest_is_own": "nearest is its own",
}


def main(runs: Runs = None, *, output: Path, quick: bool, on_event: OnEvent | None) -> dict[str, Any]:
    """Measure the embedding spaces of runs, and how each measure relates to MAP@R over all runs.

    Embeddings of training classes are measured from the proxies of the loss; where it has none, or where
    they were not kept, from class means. Unseen classes have no proxies: they are measured from class means.
    A loss that compares by cosine is measured on the unit sphere.
    """
    entries = reported_runs(runs, output, quick=quick, on_event=on_event)
    return summarise(collect(entries, output, images=IMAGES // 10 if quick else IMAGES, on_event=on_event))


def collect(
    entries: Sequence[ReportedRun], output: Path, *, images: int, on_event: OnEvent | None
) -> list[dict[str, Any]]:
    """Return for each entry what was measured of each of its runs."""
    about, parts = {"kind": "geometry", "images": images}, {"": partial(measure_run, images=images)}
    found = measure_entries(entries, output, about, parts, on_event=on_event)
    return [
        {"title": entry.title, "loss": entry.repeats.runs[0].name, "runs": [run[""] for run in each]}
        for entry, each in zip(entries, found, strict=True)
    ]


def measure_run(folder: Path, on_event: OnEvent | None, *, run: Run, images: int) -> None:
    """Write the numbers of one run."""
    result, arrays, source = run.result(), run.load_embeddings(), source_of(run)
    trained, labels = _embed_some(run, source, images)
    cosine = result.distance == "cosine"
    proxies = kept_proxies(run)
    if proxies is None:
        proxies, measured_from = _means(trained, labels, len(source.names), cosine), "class means"
    else:
        measured_from = "proxies"
    unseen, classes = arrays["embeddings"], arrays["labels"]
    means = _means(unseen, classes, int(classes.max()) + 1, cosine)
    _, spectrum, _ = torch.linalg.svd(_in_space(unseen, cosine), full_matrices=False)
    geometry = geometry_metrics(unseen, classes, distance=result.distance)
    content = {
        "map@r": result.metrics["map@r"],
        "distance": result.distance,
        "measured_from": measured_from,
        "train": distances_in_numbers(distances(trained, labels, proxies, cosine=cosine)),
        "unseen": distances_in_numbers(distances(unseen, classes, means, cosine=cosine)),
        "geometry": {key: value if math.isfinite(value) else None for key, value in geometry.items()},
        "spectrum": (spectrum / spectrum.sum()).tolist()[:DIRECTIONS],
        "norms": _histogram(torch.linalg.vector_norm(unseen.double(), dim=1)),
        "occurrences": torch.bincount(occurrences(unseen, distance=result.distance)).tolist(),
    }
    write_json(folder / "result.json", content)


def _embed_some(run: Run, source: Source, images: int) -> tuple[Tensor, Tensor]:
    """Embeddings and labels of some training images, as evaluation would see them."""
    model = load(run.folder)
    items = evenly_spaced(len(source.labels), images)
    found, kept = embed_images(model.network, source.plain, device=model.device, items=items)
    return found, source.labels[kept]


def kept_proxies(run: Run) -> Tensor | None:
    """Return the proxies [C, D] of a run's last checkpoint.

    None if the loss has none, if they are gone, or if the model is not the one that the checkpoint trained.
    """
    recipe = run.recipe()
    if recipe.evaluation.patience or recipe.optimizer.wise_ft:
        return None
    loss = build_loss(
        recipe.loss.name, run.result().classes.train, recipe.model.embedding_size, **recipe.loss.settings
    )
    proxies = proxies_of(loss)
    state, _ = run.load_checkpoint() if proxies is not None else (None, "")
    if proxies is None or state is None or "class_rows" in state:
        return None
    loss.load_state_dict(state["loss"])
    return proxies.detach()


def _means(embeddings: Tensor, labels: Tensor, count: int, cosine: bool) -> Tensor:
    """Class means; NaN for classes without an embedding."""
    means = class_means(embeddings, labels, range(count), unit=cosine)
    means[torch.bincount(labels, minlength=count) == 0] = torch.nan
    return means


def _in_space(points: Tensor, cosine: bool) -> Tensor:
    return on_unit_sphere(points) if cosine else points.double()


def distances(embeddings: Tensor, labels: Tensor, centres: Tensor, *, cosine: bool) -> tuple[Tensor, Tensor]:
    """Return [N] to the centre of its own class and [N] to the nearest other one; absent centres are NaN.

    >>> points, centres = torch.tensor([[1.0], [5.0]]), torch.tensor([[0.0], [4.0]])
    >>> [each.tolist() for each in distances(points, torch.tensor([0, 1]), centres, cosine=False)]
    [[1.0, 1.0], [3.0, 5.0]]
    """
    there = ~centres.isnan().any(1)
    place = there.cumsum(0) - 1
    apart = torch.cdist(
        _in_space(embeddings, cosine),
        _in_space(centres[there], cosine),
        compute_mode="donot_use_mm_for_euclid_dist",
    )
    own = place[labels][:, None]
    mine = apart.gather(1, own)[:, 0].clone()
    return mine, apart.scatter(1, own, math.inf).amin(1)


def distances_in_numbers(found: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """Return means and histograms of distances to own and nearest other centre, over common bins."""
    own, other = found
    high = float(torch.cat(found).max())
    return {
        "own": float(own.mean()),
        "other": float(other.mean()),
        "ratio": float(own.mean() / other.mean()),
        "nearest_is_own": float((own < other).double().mean()),
        "high": high,
        "own_counts": np.histogram(own, BINS, (0, high))[0].tolist(),
        "other_counts": np.histogram(other, BINS, (0, high))[0].tolist(),
    }


def _histogram(values: Tensor) -> dict[str, Any]:
    counts, edges = np.histogram(values, BINS)
    return {"low": float(edges[0]), "high": float(edges[-1]), "counts": counts.tolist()}


def measures_of(run: Mapping[str, Any]) -> dict[str, float | None]:
    """Return all numbers of a run that are related to its MAP@R, by name."""
    apart = {f"{side} {name}": run[side][name] for side in SIDES for name in DISTANCES}
    return {**apart, **run["geometry"]}


def summarise(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the entries, and for each measure its rank correlation with MAP@R over all runs.

    With fewer than four runs there is no correlation.
    """
    runs = [run for entry in entries for run in entry["runs"]]
    values = {name: [measures_of(run)[name] for run in runs] for name in measures_of(runs[0])}
    target = [run["map@r"] for run in runs]
    relations = {name: _correlation(each, target) for name, each in values.items()}
    return {"entries": list(entries), "count": len(runs), "relations": relations}


def _correlation(values: Sequence[float | None], target: Sequence[float]) -> float | None:
    """Spearman's rank correlation; None for few runs, or if all values are alike or one is missing."""
    from scipy.stats import spearmanr

    known = [value for value in values if value is not None]
    if len(known) < max(FEWEST, len(values)) or len(set(known)) < 2 or len(set(target)) < 2:
        return None
    return float(spearmanr(known, target).statistic)


def table(summary: Mapping[str, Any]) -> Table:
    """Return a row per measure and a column per entry, and how each measure relates to MAP@R."""
    entries = summary["entries"]
    measured = [[{"map@r": run["map@r"], **measures_of(run)} for run in entry["runs"]] for entry in entries]
    rows = []
    for name in measured[0][0]:
        related = summary["relations"].get(name)
        cells = [Cell(_figure(name, [run[name] for run in runs])) for runs in measured]
        rows.append((Cell(_title(name)), *cells, Cell("" if related is None else f"{related:+.2f}")))
    sources = [entry["runs"][0]["measured_from"] for entry in entries]
    rows.insert(1, (Cell("train: measured from"), *map(Cell, sources), Cell("")))
    title, heads = f"The geometry of {len(entries)} spaces", ("", *(entry["title"] for entry in entries))
    if summary["count"] < FEWEST:  # too few for a correlation
        return Table(heads, tuple(row[:-1] for row in rows), title=title)
    title += f"; the rank correlation is over {summary['count']} runs"
    return Table((*heads, "with MAP@R"), tuple(rows), title=title)


def _title(name: str) -> str:
    side, _, rest = name.partition(" ")
    return f"{side}: {DISTANCES[rest]}" if side in SIDES else metric_title(name)


def _figure(name: str, values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return ""
    factor, digits = (100, 1) if name == "map@r" else (1, 3)
    spread = f" ± {factor * statistics.stdev(known):.{digits}f}" if len(known) > 1 else ""
    return f"{factor * statistics.mean(known):.{digits}f}{spread}"


def draw(summary: Mapping[str, Any]) -> dict[str, Drawing]:
    """Return histograms of distances, the shape of each space, and each measure beside MAP@R."""
    return {
        "geometry_distances": _draw_distances(summary["entries"]),
        "geometry_shape": _draw_shape(summary["entries"]),
        "geometry_relations": _draw_relations(summary),
    }


def _draw_distances(entries: Sequence[Mapping[str, Any]]) -> Drawing:
    """The distances in the first run of each entry."""
    drawing = Figure(figsize=(10, 0.4 + 1.9 * len(entries)), layout="constrained")
    grid = drawing.subplots(len(entries), len(SIDES), squeeze=False)
    rows = []
    for panels, entry in zip(grid, entries, strict=True):
        run = entry["runs"][0]
        for axes, side in zip(panels, SIDES, strict=True):
            found = run[side]
            edges = np.linspace(0, found["high"], BINS + 1)
            for colour, name in zip(COLOURS[1::-1], ("own", "other"), strict=True):
                axes.stairs(found[f"{name}_counts"], edges, fill=True, alpha=0.6, color=colour)
                rows += [
                    {"run": entry["title"], "side": side, "centre": name, "from": low, "count": count}
                    for low, count in zip(edges.tolist(), found[f"{name}_counts"], strict=False)
                ]
            of = run["measured_from"] if side == "train" else "class means"
            axes.set_title(f"{plain(entry['title'])}, {SIDES[side]}: {of}", fontsize=9)
            axes.set(yticks=[])
    tidy(*grid.flatten())
    names = [f"distance {DISTANCES[name]}" for name in ("own", "other")]
    legend_below(drawing, grid[0][0].patches, names, columns=2)
    return Drawing(drawing, rows)


def _draw_shape(entries: Sequence[Mapping[str, Any]]) -> Drawing:
    drawing = Figure(figsize=(10, 3.4), layout="constrained")
    panels = drawing.subplots(1, 3)
    rows: list[dict[str, Any]] = []
    for colour, entry in zip(cycle(COLOURS), entries, strict=False):
        run, title = entry["runs"][0], entry["title"]
        lengths = np.linspace(run["norms"]["low"], run["norms"]["high"], BINS + 1)[:-1].tolist()
        curves = {
            "spectrum": (range(1, len(run["spectrum"]) + 1), run["spectrum"]),
            "norm": (lengths, run["norms"]["counts"]),
            "occurrences": (range(len(run["occurrences"])), run["occurrences"]),
        }
        for axes, (what, (x, y)) in zip(panels, curves.items(), strict=True):
            axes.plot(x, y, color=colour, drawstyle="default" if what == "spectrum" else "steps-post")
            rows += [{"run": title, "what": what, "x": a, "y": b} for a, b in zip(x, y, strict=True)]
    panels[0].set(title="share of singular values", yscale="log", xscale="log", ylim=(1e-5, 1))
    panels[1].set(title="lengths of embeddings", yticks=[])
    panels[2].set(title="how often among the ten nearest", yscale="log")
    tidy(*panels)
    legend_below(drawing, panels[0].get_lines(), [entry["title"] for entry in entries])
    return Drawing(drawing, rows)


def _draw_relations(summary: Mapping[str, Any]) -> Drawing:
    names = [name for name in summary["relations"] if name not in ("train own", "unseen own")]
    drawing, panels = panels_of(len(names), 4, height=1.9)
    rows = []
    for axes, name in zip(panels, names, strict=True):
        for colour, entry in zip(cycle(COLOURS), summary["entries"], strict=False):
            for run in entry["runs"]:
                value = measures_of(run)[name]
                rows.append({"run": entry["title"], "measure": name, "value": value, "map@r": run["map@r"]})
                if value is not None:
                    look = {"color": colour, "markersize": 4, "label": entry["title"]}
                    axes.plot(value, 100 * run["map@r"], "o", **look)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        related = summary["relations"][name]
        axes.set_title(_title(name) + ("" if related is None else f" ({related:+.2f})"), fontsize=8)
    tidy(*panels)
    drawing.supylabel("MAP@R (%)", fontsize=9)
    handles = {text: line for line, text in zip(*panels[0].get_legend_handles_labels(), strict=True)}
    legend_below(drawing, handles.values(), handles)
    return Drawing(drawing, rows)
