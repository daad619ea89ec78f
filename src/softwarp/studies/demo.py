"""The demo: three losses with the same network, batches and budget, judged on unseen characters.

softwarp demo                            one seed, with a report
python -m softwarp.studies.demo          five seeds -> results/demo.json, the table in the README
"""

from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

from softwarp.events import OnEvent, shown
from softwarp.files import write_json
from softwarp.memory import freed_memory_kept
from softwarp.recipe.files import read_recipe
from softwarp.recipe.schema import Recipe, parse_recipe
from softwarp.report.write import write_report
from softwarp.runs.provenance import environment
from softwarp.runs.repeats import Repeats, summarise, t_interval
from softwarp.runs.run import Run
from softwarp.tables import Row, Table, metric_table
from softwarp.training.train import train_recipe

LOSSES = {
    "warped_softmax": "warped softmax",
    "euclidean_softmax": "Euclidean softmax",
    "proxy_nca_pp": "ProxyNCA++",
}
OURS = LOSSES["warped_softmax"]
METRICS = ("recall@1", "recall@2", "recall@4", "map@r", "nmi", "avg_dtp")
CAPTION = (
    "Percentages on unseen characters, one seed. AvgDTP is the mean distance from training embeddings to "
    "their own proxy; ProxyNCA++ measures it on the unit sphere."
)


def run_demo(
    output: Path, *, seed: int = 0, quick: bool = False, on_event: OnEvent | None = None
) -> dict[str, Run]:
    """Train, evaluate, write report.html and demo.json into `output`; return the runs by title.

    A stopped demo resumes; a finished one, which has a demo.json, restarts.
    """
    runs = collect(output, seed=seed, quick=quick, on_event=on_event)
    command = f"softwarp demo --seed {seed}" + " --quick" * quick
    write_report(output / "report.html", [output / name for name in LOSSES], command)
    write_json(output / "demo.json", {"command": command, "runs": list(LOSSES)})
    return runs


def demo_table(runs: dict[str, Run], *, quick: bool) -> Table:
    """Return the runs side by side."""
    rows = [Row((title,), summarise([run.result()]).mean) for title, run in runs.items()]
    title = "Retrieval of characters never seen in training" + " (quick: poor figures)" * quick
    return metric_table(rows, METRICS, ("loss",), title=title)


def demo_recipes() -> dict[str, Recipe]:
    """Return the recipe of each loss; they differ only in the loss and its learning rates."""
    folder = Path(str(files("softwarp") / "recipes"))
    return {name: read_recipe(folder / f"glyphs_{name}.yaml") for name in LOSSES}


def collect(output: Path, *, seed: int, quick: bool, on_event: OnEvent | None = None) -> dict[str, Run]:
    """Return the three finished runs, by the loss's title."""
    recipes = {name: _adapted(recipe, seed, quick) for name, recipe in demo_recipes().items()}
    if not _can_resume(output, recipes):
        for name, recipe in recipes.items():
            with Run(output / name).locked():
                Run.create(output / name, recipe)
        (output / "demo.json").unlink(missing_ok=True)
    return {
        LOSSES[name]: train_recipe(recipe, output / name, resume=True, on_event=on_event)
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


def _can_resume(output: Path, recipes: dict[str, Recipe]) -> bool:
    """Whether `output` holds a stopped demo with these recipes, or nothing."""
    try:
        for name, recipe in recipes.items():
            if Run(output / name).started():
                Run(output / name).check_recipe(recipe)
    except (ValueError, OSError):
        return False
    return not (output / "demo.json").exists()


def main(
    seeds: Annotated[int, typer.Option(min=2, help="A deviation needs two.")] = 5,
    folder: Path = Path("runs/demo_seeds"),
    results: Path = Path("results"),
) -> None:
    """Run the demo with several seeds and write mean and deviation to results/demo.json."""
    with freed_memory_kept(), shown() as on_event:
        demos = [run_demo(folder / str(seed), seed=seed, on_event=on_event) for seed in range(seeds)]
    first = demos[0]
    content = {
        "command": f"python -m softwarp.studies.demo --seeds {seeds}",
        "seeds": seeds,
        "rows": [_row(title, summarise([demo[title].result() for demo in demos])) for title in first],
        "differences": {title: _difference(demos, title) for title in first if title != OURS},
        "recipes": {run.recipe().loss.name: run.recipe().model_dump(mode="json") for run in first.values()},
        "data_sha256": next(iter(first.values())).result().data_sha256,
        "environment": environment(),
    }
    write_json(results / "demo.json", content)


def _difference(demos: list[dict[str, Run]], other: str) -> dict[str, Any]:
    """How far our MAP@R is above another loss's, paired by seed: the mean and its 95% interval."""
    ours, theirs = ([demo[title].result().metrics["map@r"] for demo in demos] for title in (OURS, other))
    values = [our - their for our, their in zip(ours, theirs, strict=True)]
    return {"map@r": sum(values) / len(values), "interval": t_interval(values)}


def _row(title: str, repeats: Repeats) -> dict[str, Any]:
    figures = {name: getattr(repeats, name) for name in ("mean", "deviation", "interval")}
    seconds = sum(run.seconds for run in repeats.runs) / len(repeats.runs)
    return {"loss": title, **{k: {m: v[m] for m in METRICS} for k, v in figures.items()}, "seconds": seconds}


if __name__ == "__main__":
    typer.run(main)
