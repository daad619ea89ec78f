"""What an automatic warp gives away: no search at all, beside tuned losses, from both starts.

    python -m softwarp.studies.automatic_warp glyphs
    python -m softwarp.studies.automatic_warp cub data.root=CUB_200_2011     -> results/automatic_warp.json

Each tuned loss gets the same number of trials, the same network, epochs and batches. Glyphs are searched on
the validation classes and judged on the test classes; CUB is searched on halves of classes 1 to 50 and judged
on classes 51 to 100. The new start (head as principal directions, proxies at class means) is compared on
glyphs at the settings found without it, as there are no pretrained features; on CUB it is searched for. A
stopped study resumes. `--only "tuned warp"` trains some rows: so several processes share the work; run
it once without at the end.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import MofNCompleteColumn, Progress

from softwarp.files import write_json
from softwarp.overrides import override
from softwarp.recipe import Recipe, find_recipe, parse_recipe, read_settings
from softwarp.repeats import summarise
from softwarp.runs import environment
from softwarp.studies.demo_search import rows
from softwarp.train import train
from softwarp.tune import apply, search

RESULT = Path("results/automatic_warp.json")
METRICS = ("recall@1", "map@r", "avg_dtp")
AUTOMATIC = {"scale": "auto", "alpha": "auto"}
LOSSES: dict[str, tuple[str, dict[str, Any]]] = {
    "automatic warp": ("warped_softmax", AUTOMATIC),
    "tuned warp": ("warped_softmax", AUTOMATIC),
    "tuned Euclidean softmax": ("euclidean_softmax", {"scale": "auto"}),
    "tuned ProxyNCA++": ("proxy_nca_pp", {}),
}
STARTS = {"random": False, "features": True}
DATA: dict[str, dict[str, Any]] = {
    "glyphs": {
        "recipe": "glyphs_warped_softmax",
        "seeds": 5,
        "trials": 30,
        "searched_starts": ("random",),
        "settings": ("evaluation.clustering=false",),
        "random": "phases=[{epochs: 8, learning_rate: 0.004, proxy_travel: 2.0}, "
        "{epochs: 4, learning_rate: 0.0004, proxy_travel: 0.2}]",
        "features": "phases=[{epochs: 8, learning_rate: 0.004, proxy_travel: 2.0}, "
        "{epochs: 4, learning_rate: 0.0004, proxy_travel: 0.2}]",
        "search": ("evaluation.split=validation",),
    },
    "cub": {
        "recipe": "cub_lite",
        "seeds": 3,
        "trials": 5,
        "searched_starts": ("random", "features"),
        "settings": ("evaluation.clustering=false", "evaluation.every=0", "evaluation.baseline=false"),
        "random": "phases=[{epochs: 1, learning_rate: 1e-4, head_learning_rate: 3e-4, proxy_travel: 2.0, "
        "freeze_backbone: true}, {epochs: 4, learning_rate: 1e-4, head_learning_rate: 3e-4, "
        "proxy_travel: 0.2, schedule: cosine}]",
        "features": "phases=[{epochs: 1, learning_rate: 1e-4, proxy_travel: 0.1, freeze_backbone: true}, "
        "{epochs: 4, learning_rate: 1e-4, proxy_travel: 0.1, schedule: cosine}]",
        "search": ("evaluation.fold=0", "evaluation.folds=2", "evaluation.fold_of=validation"),
    },
}


def recipe_for(data: str, row: str, start: str, overrides: tuple[str, ...] = ()) -> Recipe:
    """Return the recipe of a row before any search."""
    plan = DATA[data]
    loss, settings = LOSSES[row]
    new = override(read_settings(find_recipe(plan["recipe"])), (*plan["settings"], plan[start], *overrides))
    new["loss"] = {"name": loss, "settings": settings}
    if STARTS[start]:
        new["loss"]["proxy_init"], new["model"]["head_init"] = "means", "pca"
    return parse_recipe(new)


def tuned(
    data: str, row: str, start: str, folder: Path, overrides: tuple[str, ...], progress: Progress
) -> dict[str, Any]:
    """Return the best trial of a row, its space and all trials."""
    found_at = start if start in DATA[data]["searched_starts"] else "random"
    recipe = recipe_for(data, row, found_at, (*overrides, *DATA[data]["search"], "seed=1000"))
    name = f"{row} from {found_at}".replace(" ", "_").replace("+", "p")
    found = search(
        recipe, folder / data / "search" / name, trials=DATA[data]["trials"], prune=False, progress=progress
    )
    return {"found_with_start": found_at, **rows(found)}


def study(
    data: str, row: str, start: str, folder: Path, overrides: tuple[str, ...], progress: Progress
) -> dict[str, Any]:
    """Return a row: what it reached over its seeds, and the search before it."""
    recipe = recipe_for(data, row, start, overrides)
    found = tuned(data, row, start, folder, overrides, progress) if row.startswith("tuned") else {}
    if found:
        recipe = apply(recipe, found["best"]["settings"])
    name = f"{row} from {start}".replace(" ", "_").replace("+", "p")
    results = []
    for seed in range(DATA[data]["seeds"]):
        run = train(
            recipe.model_copy(update={"seed": seed}),
            folder / data / name / str(seed),
            resume=True,
            progress=progress,
        )
        results.append(run.result())
    repeats = summarise(results)
    figures = {
        part: {metric: getattr(repeats, part)[metric] for metric in METRICS}
        for part in ("mean", "deviation", "interval")
    }
    values = {metric: [result.metrics[metric] for result in results] for metric in ("recall@1", "map@r")}
    return {"row": row, "start": start, **figures, "values": values, "search": found}


def main(
    data: str,
    overrides: Annotated[list[str] | None, typer.Argument()] = None,
    folder: Path = Path("runs/automatic_warp"),
    only: str = "",
) -> None:
    """Train every row of `data` and write it into results/automatic_warp.json."""
    given = tuple(overrides or ())
    chosen = [(row, start) for row in LOSSES for start in STARTS if only in f"{row} from {start}"]
    with Progress(*Progress.get_default_columns(), MofNCompleteColumn()) as progress:
        done = [study(data, row, start, folder, given, progress) for row, start in chosen]
    if only:
        return
    results = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    command = f"python -m softwarp.studies.automatic_warp {data}" + " data.root=..." * (data != "glyphs")
    results[data] = {"command": command, "seeds": DATA[data]["seeds"], "rows": done}
    write_json(RESULT, results | {"environment": environment()})


if __name__ == "__main__":
    typer.run(main)
