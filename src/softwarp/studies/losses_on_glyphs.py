"""Every loss for the same short budget on glyphs: does it learn at all, with nothing but its defaults?

    python -m softwarp.studies.losses_on_glyphs    -> results/losses_on_glyphs.json, table in docs/losses.md

One seed, no search, a quarter of the demo's classes and epochs: the figures say that each loss trains, not
which is best. Finished losses are kept, so that an interrupted study goes on.
"""

from pathlib import Path
from typing import Any

import typer
from rich.progress import Progress

from softwarp.losses import LOSSES
from softwarp.recipe import Recipe, change_loss, find_recipe, override, parse_recipe, read_settings
from softwarp.runs import Run, environment, write_json
from softwarp.train import train

RESULT = Path("results/losses_on_glyphs.json")
METRICS = ("recall@1", "map@r")
BUDGET = (
    "data.max_classes=250",
    "phases=[{epochs: 4, learning_rate: 0.002, proxy_learning_rate: 0.02, schedule: cosine}]",
    "evaluation={split: validation, clustering: false, zero_line: true}",
)


def recipe_for(name: str) -> Recipe:
    """Return the demo's recipe with the short budget, this loss and its defaults."""
    settings = override(read_settings(find_recipe("glyphs_euclidean_softmax")), BUDGET)
    settings["loss"] = {"name": "euclidean_softmax" if name != "euclidean_softmax" else "proxy_nca_pp"}
    return parse_recipe(change_loss(settings, name))  # from another, so that its own defaults are taken


def collect(folder: Path, names: list[str], progress: Progress | None = None) -> dict[str, Run]:
    """Return the finished run of each loss."""
    return {name: train(recipe_for(name), folder / name, resume=True, progress=progress) for name in names}


def summarise(runs: dict[str, Run]) -> dict[str, Any]:
    """Return the metrics of each loss and of the network before training."""
    first = next(iter(runs.values())).result()
    rows = {
        name: {metric: run.result()["metrics"][metric] for metric in METRICS}
        | {"seconds": round(run.result()["seconds"], 1), "first_loss": run.history()[0]["loss"]}
        | {"last_loss": run.history()[-1]["loss"]}
        for name, run in runs.items()
    }
    return {
        "command": "python -m softwarp.studies.losses_on_glyphs",
        "budget": list(BUDGET),
        "classes": first["classes"],
        "untrained": {metric: first["zero_line"][metric] for metric in METRICS},
        "losses": rows,
        "data_sha256": first["data_sha256"],
        "environment": environment(),
    }


def main(folder: Path = Path("runs/losses_on_glyphs")) -> None:
    """Train every loss and write results/losses_on_glyphs.json."""
    with Progress() as progress:
        runs = collect(folder, list(LOSSES), progress)
    write_json(RESULT, summarise(runs))


if __name__ == "__main__":
    typer.run(main)
