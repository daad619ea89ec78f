"""What noise does to retrieval: nine corruptions of the test images, five severities each.

softwarp study noise runs/warped_softmax runs/hist      finished runs that were judged on the same images
softwarp study noise                                    the demo's three losses on glyphs

The paper's own Table 4 stands beside ours.
"""

import base64
import io
import statistics
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from itertools import cycle
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from softwarp.data.corruptions import CORRUPTIONS, EXTRA, OF_COLOUR, SEVERITIES, Corrupted, corrupt
from softwarp.data.sources import Images, Source
from softwarp.evaluation import embed_images, measure
from softwarp.events import OnEvent, Work
from softwarp.figures import COLOURS, Drawing, legend_below, panels_of, tidy
from softwarp.files import write_json
from softwarp.inference import EmbeddingModel, load
from softwarp.report.runs import ReportedRun
from softwarp.runs.run import Run
from softwarp.studies.finished import Runs, measure_entries, reported_runs, source_of
from softwarp.studies.published import TABLE_4, TABLE_4_LOSSES
from softwarp.tables import Cell, Table, figure

PAPER = "Table 4"
METRICS = ("recall@1", "map@r")
CLEAN = "uncorrupted"
SHOWN = (1, 3, 5)  # severities in the strip of pictures

Values = dict[str, list[float]]  # metric -> its value for each seed


def main(
    runs: Runs = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the noise.")] = 0,
    *,
    output: Path,
    quick: bool,
    on_event: OnEvent | None,
) -> dict[str, Any]:
    """Corrupt the test images and see how well runs still retrieve them.

    Images are corrupted as the model sees them, after resizing and cropping, each always in the same way;
    queries and gallery alike. Models are as they were trained.
    """
    entries = reported_runs(runs, output, quick=quick, on_event=on_event)
    return summarise(**collect(entries, output, seed=seed, quick=quick, on_event=on_event))


def collect(
    entries: Sequence[ReportedRun], output: Path, *, seed: int, quick: bool, on_event: OnEvent | None
) -> dict[str, Any]:
    """Return for each entry its metrics by corruption and severity, and one image to show."""
    if len({entry.judged_on() for entry in entries}) > 1:
        raise ValueError("these runs were judged on different images; name runs of the same data and split")
    first, result = entries[0].runs[0], entries[0].repeats.runs[0]
    grey = first.recipe().data.name == "glyphs"
    severities = SEVERITIES[1::2] if quick else SEVERITIES
    wanted = {CLEAN: (0,)} | {name: severities for name in CORRUPTIONS if not (grey and name in OF_COLOUR)}
    wanted |= dict.fromkeys(EXTRA, (1,))
    about = {"kind": "noise", "seed": seed, "severities": list(severities)}
    parts = {
        _folder(name): partial(evaluate_corrupted, name=name, severities=some, seed=seed)
        for name, some in wanted.items()
    }
    found = measure_entries(entries, output, about, parts, on_event=on_event)
    return {
        "seed": seed,
        "classes": result.classes.evaluated,
        "images": result.images.evaluated,
        "example": example(first),
        "runs": [
            {
                "title": entry.title,
                "loss": entry.repeats.runs[0].name,
                "seeds": len(entry.runs),
                "values": {name: _over_seeds([run[_folder(name)] for run in each]) for name in wanted},
            }
            for entry, each in zip(entries, found, strict=True)
        ],
    }


def _folder(name: str) -> str:
    return name.replace(" ", "_")


def _over_seeds(found: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, Values]:
    """Return by severity and metric the value for each seed."""
    return {
        severity: {metric: [each[severity][metric] for each in found] for metric in METRICS}
        for severity in found[0]
    }


def evaluate_corrupted(
    folder: Path, on_event: OnEvent | None, *, run: Run, name: str, severities: Sequence[int], seed: int
) -> None:
    """Write what a run reaches on one corruption, by severity; severity 0 leaves the images as they are."""
    model, source = _opened(run.folder)
    images = len(source.query_labels)
    bar = Work(on_event, f"{run.folder.name}, {name}", total=len(severities) * images)
    found = {}
    for severity in severities:
        found[str(severity)] = retrieval_of(model, source, name, severity, seed)
        bar.advance(images)
    write_json(folder / "result.json", found)


@lru_cache(maxsize=1)
def _opened(folder: Path) -> tuple[EmbeddingModel, Source]:
    return load(folder), source_of(Run(folder))


def retrieval_of(
    model: EmbeddingModel, source: Source, name: str, severity: int, seed: int
) -> dict[str, float]:
    """Return the metrics of a model on corrupted images."""

    def embedded(images: Images, labels: Tensor, salt: int) -> tuple[Tensor, Tensor]:
        seen = Corrupted(images, name, severity, seed=seed + salt) if severity else images
        found, kept = embed_images(model.network, seen, device=model.device)
        return found, labels[kept]

    embeddings, labels = embedded(source.queries, source.query_labels, 0)
    gallery, gallery_labels = None, None
    if source.gallery is not None and source.gallery_labels is not None:
        gallery, gallery_labels = embedded(source.gallery, source.gallery_labels, 2**31)
    sides: dict[str, Any] = {"gallery": gallery, "gallery_labels": gallery_labels}
    metrics = measure(embeddings, labels, ks=(1,), distance=model.distance, **sides)["metrics"]
    return {metric: metrics[metric] for metric in METRICS}


def example(run: Run) -> str:
    """Return an image of the test classes as the model sees it: a PNG, in base64."""
    _, source = _opened(run.folder)
    half = len(source.query_labels) // 2
    batch = source.queries.__getitems__([(item, 0) for item in range(half, len(source.query_labels))][:20])
    pixels = batch.images[0].permute(1, 2, 0).squeeze(2)
    buffer = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


def summarise(**found: Any) -> dict[str, Any]:
    """Return what was collected with, for each run, means over severities, the mean drop and the rank.

    A mean is over the severities of a corruption; the drop is from the uncorrupted images to the mean over
    corruptions, in Recall@1; the rank is the mean, over corruptions, of the place among the runs.
    """
    runs = [
        run | {"means": {name: _means(each) for name, each in run["values"].items()}} for run in found["runs"]
    ]
    names = corruptions_of(runs)
    for run in runs:
        over = [statistics.mean(run["means"][name]["recall@1"]) for name in names]
        run["mean"] = statistics.mean(over)
        run["drop"] = statistics.mean(run["means"][CLEAN]["recall@1"]) - run["mean"]
        run["rank"] = statistics.mean(_rank(run, runs, name) for name in names)
    return found | {"runs": runs}


def corruptions_of(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the corruptions that come in severities."""
    return [name for name in runs[0]["values"] if name != CLEAN and name not in EXTRA]


def _means(severities: Mapping[str, Values]) -> Values:
    """Metric -> its mean over severities for each seed."""
    values = {metric: [each[metric] for each in severities.values()] for metric in METRICS}
    return {
        metric: [statistics.mean(seed) for seed in zip(*each, strict=True)] for metric, each in values.items()
    }


def _rank(run: Mapping[str, Any], runs: Sequence[Mapping[str, Any]], name: str) -> int:
    own, *others = (statistics.mean(each["means"][name]["recall@1"]) for each in (run, *runs))
    return 1 + sum(bool(other > own) for other in others)


def table(summary: Mapping[str, Any]) -> Table:
    """Return Recall@1 by corruption and run, the mean over severities, as the paper's Table 4 has it.

    The best are marked if every run has several seeds: one seed does not tell which loss is better.
    """
    runs = summary["runs"]
    found = [{name: run["means"][name]["recall@1"] for name in runs[0]["values"]} for run in runs]
    for each in found:
        by_seed = zip(*(each[name] for name in corruptions_of(runs)), strict=True)
        each["mean of corruptions"] = [statistics.mean(seed) for seed in by_seed]
    rows = [(Cell(name), *_best([each[name] for each in found]), *_published(name)) for name in found[0]]
    none = _published("")
    rows.append((Cell("mean drop"), *(Cell(f"{100 * run['drop']:.1f}") for run in runs), *none))
    rows.append((Cell("mean rank"), *(Cell(f"{run['rank']:.1f}") for run in runs), *none))
    title = f"Recall@1 on {summary['images']:,} corrupted images of {summary['classes']} unseen classes"
    title += ", one seed each" * all(run["seeds"] == 1 for run in runs)
    groups = (("", len(runs)), ("paper", len(TABLE_4_LOSSES)))
    heads = ("corruption", *(run["title"] for run in runs), *TABLE_4_LOSSES)
    return Table(heads, tuple(rows), title=title, groups=groups)


def _published(name: str) -> list[Cell]:
    """What the paper's Table 4 has, which is on CUB; the stronger dropout stands beside its dropout."""
    return [Cell(f"{value:.1f}") for value in TABLE_4.get(name, ())] or [Cell("")] * len(TABLE_4_LOSSES)


def _best(values: Sequence[Sequence[float]]) -> list[Cell]:
    means = [statistics.mean(each) for each in values]
    order = sorted(set(means), reverse=True)
    cells = []
    for each, mean in zip(values, means, strict=True):
        spread = statistics.stdev(each) if len(each) > 1 else None
        best, second = mean == order[0], len(order) > 1 and mean == order[1]
        sure = len(values) > 1 and all(len(each) > 1 for each in values)
        cells.append(Cell(figure("recall@1", mean, spread), best=sure and best, second=sure and second))
    return cells


def draw(summary: Mapping[str, Any]) -> dict[str, Drawing]:
    """Return Recall@1 over severity for each corruption, and a strip of pictures of all corruptions."""
    return {"noise": _curves(summary), "corruptions": _strip(summary)}


def _curves(summary: Mapping[str, Any]) -> Drawing:
    runs = summary["runs"]
    names = corruptions_of(runs)
    drawing, panels = panels_of(len(names), 3, height=2.5, sharex=True)
    rows: list[dict[str, Any]] = []
    for axes, name in zip(panels, names, strict=True):
        for colour, run in zip(cycle(COLOURS), runs, strict=False):
            points = {0: run["values"][CLEAN]["0"]} | run["values"][name]
            means = [100 * statistics.mean(each["recall@1"]) for each in points.values()]
            axes.plot([int(severity) for severity in points], means, "o-", color=colour, markersize=3)
            rows += [
                {"run": run["title"], "corruption": name, "severity": int(severity), "seed": number}
                | {metric: each[metric][number] for metric in METRICS}
                for severity, each in points.items()
                for number in range(run["seeds"])
            ]
        axes.set_title(name, fontsize=10)
    tidy(*panels)
    panels[0].set_ylabel("Recall@1 (%)")
    for axes in panels[-3:]:
        axes.set_xlabel("severity; 0 is uncorrupted", fontsize=9)
        axes.tick_params(labelbottom=True)  # even above a panel that is not shown
    legend_below(drawing, panels[0].get_lines(), [run["title"] for run in runs])
    return Drawing(drawing, rows)


def _strip(summary: Mapping[str, Any]) -> Drawing:
    names = corruptions_of(summary["runs"])
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(summary["example"]))))
    image = torch.from_numpy(pixels.copy()).reshape(*pixels.shape[:2], -1).permute(2, 0, 1)
    drawing = Figure(figsize=(1 + len(names), 1.05 * len(SHOWN)), layout="constrained")
    grid = drawing.subplots(len(SHOWN), 1 + len(names))
    for row, severity in enumerate(SHOWN):
        for axes, name in zip(grid[row], (CLEAN, *names), strict=True):
            shown = image if name == CLEAN else corrupt(image, name, severity, seed=summary["seed"])
            axes.imshow(shown.permute(1, 2, 0).squeeze(2).numpy(), cmap="gray", vmin=0, vmax=255)
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            if row == 0:
                axes.set_title(name.replace(" and ", "\nand "), fontsize=8)
        grid[row][0].set_ylabel(f"severity {severity}", fontsize=8)
    strengths = [
        {"corruption": name, "severities 1 to 5": (CORRUPTIONS[name].__doc__ or "").partition("\n")[0]}
        for name in names
    ]
    return Drawing(drawing, strengths)
