"""The demo: three losses, the same network, batches and budget, judged on characters never seen.

softwarp demo                            one seed, with a report
python -m softwarp.studies.demo          three seeds -> results/demo.json, the table in the README
"""

import statistics
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress

from softwarp.recipe import Recipe, parse_recipe, read_recipe
from softwarp.report.demo import NEIGHBOURS, PROJECTED, write_report
from softwarp.runs import Run, environment, write_json
from softwarp.train import train

LOSSES = {
    "warped_softmax": "warped softmax",
    "euclidean_softmax": "Euclidean softmax",
    "proxy_nca_pp": "ProxyNCA++",
}
COLUMNS = {
    "recall@1": "Recall@1",
    "recall@2": "Recall@2",
    "recall@4": "Recall@4",
    "map@r": "MAP@R",
    "nmi": "NMI",
    "avg_dtp": "AvgDTP",
}
CAPTION = (
    "Percentages on unseen characters, one seed; AvgDTP: mean distance of training embeddings to their proxy "
    "(ProxyNCA++ measures it on the unit sphere)."
)


def run_demo(
    output: Path, *, seed: int = 0, quick: bool = False, progress: Progress | None = None
) -> dict[str, Any]:
    """Train, evaluate, write report.html and result.json into `output`; return the result.

    A demo that was stopped goes on where it was; a finished one, which is one with a result, starts anew.
    """
    runs = collect(output, seed=seed, quick=quick, progress=progress)
    result = summarise(runs, seed=seed, quick=quick)
    write_report(output / "report.html", runs, result)
    write_json(output / "result.json", result)
    return result


def demo_recipes() -> dict[str, Recipe]:
    """Return the recipe of each loss; apart from the loss and its learning rates they are the same."""
    folder = Path(str(files("softwarp") / "recipes"))
    return {name: read_recipe(folder / f"glyphs_{name}.yaml") for name in LOSSES}


def collect(output: Path, *, seed: int, quick: bool, progress: Progress | None = None) -> dict[str, Run]:
    """Return the three finished runs, by the loss's title."""
    recipes = {name: _adapted(recipe, seed, quick) for name, recipe in demo_recipes().items()}
    if not _can_go_on(output, recipes):
        for name, recipe in recipes.items():
            Run.create(output / name, recipe)
        (output / "result.json").unlink(missing_ok=True)
    return {
        LOSSES[name]: train(recipe, output / name, resume=True, progress=progress)
        for name, recipe in recipes.items()
    }


def _adapted(recipe: Recipe, seed: int, quick: bool) -> Recipe:
    settings = recipe.model_dump()
    settings["seed"] = seed
    if quick:
        settings["data"]["max_classes"] = 50
        for phase in settings["phases"]:
            phase["epochs"] = 1
    return parse_recipe(settings)


def _can_go_on(output: Path, recipes: dict[str, Recipe]) -> bool:
    """Whether what is in `output`, if anything, was stopped and is of these recipes."""
    try:
        for name, recipe in recipes.items():
            if Run(output / name).started():
                Run(output / name).check_recipe(recipe)
    except (ValueError, OSError):
        return False
    return not (output / "result.json").exists()


def summarise(runs: dict[str, Run], *, seed: int, quick: bool) -> dict[str, Any]:
    """Return what the table says, with all that the numbers depend on."""
    rows = []
    for title, run in runs.items():
        result = run.result()
        cells = [_cell(name, result["metrics"][name]) for name in COLUMNS]
        rows.append({"loss": title, "cells": cells, **result, "recipe": run.recipe().model_dump(mode="json")})
    for row in rows:
        row["best"] = [name != "avg_dtp" and _leads(row, rows, name) for name in COLUMNS]
    command = f"softwarp demo --seed {seed}" + (" --quick" if quick else "")
    return {
        "title": "Retrieval of characters never seen in training"
        + (" (quick: poor figures)" if quick else ""),
        "caption": CAPTION,
        "command": command,
        "columns": COLUMNS,
        "rows": rows,
        "neighbours": NEIGHBOURS,
        "projected": PROJECTED,
        "environment": environment(),
    }


def _leads(row: dict[str, Any], rows: list[dict[str, Any]], name: str) -> bool:
    return bool(row["metrics"][name] == max(other["metrics"][name] for other in rows))


def _cell(name: str, value: float) -> str:
    return f"{value:.2f}" if name == "avg_dtp" else f"{100 * value:.1f}"


def over_seeds(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return mean and deviation of each metric of each loss over the results of several seeds."""
    rows = []
    for same_loss in zip(*(result["rows"] for result in results), strict=True):
        values = {name: [row["metrics"][name] for row in same_loss] for name in COLUMNS}
        rows.append(
            {
                "loss": same_loss[0]["loss"],
                "mean": {name: statistics.mean(each) for name, each in values.items()},
                "deviation": {name: statistics.stdev(each) for name, each in values.items()},
                "seconds": statistics.mean(row["seconds"] for row in same_loss),
            }
        )
    return rows


def main(
    seeds: Annotated[int, typer.Option(min=2, help="A deviation needs two.")] = 3,
    folder: Path = Path("runs/demo_seeds"),
    results: Path = Path("results"),
) -> None:
    """Run the demo with several seeds and write mean and deviation to results/demo.json."""
    with Progress() as progress:
        demos = [run_demo(folder / str(seed), seed=seed, progress=progress) for seed in range(seeds)]
    content = {
        "command": f"python -m softwarp.studies.demo --seeds {seeds}",
        "seeds": seeds,
        "columns": COLUMNS,
        "rows": over_seeds(demos),
        "recipes": {row["name"]: row["recipe"] for row in demos[0]["rows"]},
        "data_sha256": demos[0]["rows"][0]["data_sha256"],
        "environment": environment(),
    }
    write_json(results / "demo.json", content)


if __name__ == "__main__":
    typer.run(main)
