"""What an automatic warp gives away: losses without a search beside tuned ones, from both starts.

    python experiments/automatic_warp.py glyphs
    python experiments/automatic_warp.py cub data.root=CUB_200_2011     -> results/automatic_warp.json

Each tuned loss gets the same number of trials, the same network, epochs and batches. Glyphs are searched on
the validation classes and judged on the test classes; CUB is searched on halves of classes 1 to 50 and judged
on classes 51 to 100. The new start (head as principal directions, proxies at class means) is compared on
glyphs at the settings found without it, as there are no pretrained features; on CUB it is searched for.
The demo's recipes (src/softwarp/recipes/glyphs_*.yaml) have what the search on glyphs found.

Searches and rows are kept in the result as soon as they are done, and a stopped study resumes. Several
processes with the same command share the rows; `--only "tuned warp"` trains some of them.
"""

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from softwarp import losses
from softwarp.events import OnEvent, shown
from softwarp.fair.tasks import Task, work
from softwarp.files import locked_file, write_json
from softwarp.losses.contract import defaults_of
from softwarp.memory import freed_memory_kept
from softwarp.recipe.files import find_recipe, read_settings
from softwarp.recipe.overrides import override
from softwarp.recipe.schema import Recipe, parse_recipe
from softwarp.runs.provenance import environment
from softwarp.runs.repeats import summarise
from softwarp.training.train import train_recipe
from softwarp.tuning.search import Study, search
from softwarp.tuning.space import on_bounds, with_settings

RESULT = Path("results/automatic_warp.json")
MADE = "made.json"  # in the folder of a row
METRICS = ("recall@1", "map@r", "avg_dtp")
AUTOMATIC = {"scale": "auto", "alpha": "auto"}
LOSSES: dict[str, tuple[str, dict[str, Any]]] = {
    "automatic warp": ("warped_softmax", AUTOMATIC),
    "automatic Euclidean softmax": ("euclidean_softmax", {"scale": "auto"}),
    "default ProxyNCA++": ("proxy_nca_pp", {}),
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


def tuned(data: str, row: str, start: str, folder: Path, given: tuple[str, ...], bars: OnEvent | None) -> str:
    """Return the name under which the result has the search for a row, after it was made."""
    start = start if start in DATA[data]["searched_starts"] else "random"
    name, changes = f"{row} from {start}", (*given, *DATA[data]["search"], "seed=1000")
    recipe = recipe_for(data, row, start, changes)
    key = recipe.model_dump(mode="json", exclude={"data": {"root"}})
    before = kept(data, "searches").get(name)
    if before is None or in_full(before["recipe"]) != in_full(key):
        found = search(
            recipe, folder / data / "search" / name, trials=DATA[data]["trials"], prune=False, on_event=bars
        )
        keep(data, "searches", name, {"recipe": key, **rows(found)})
    return name


def study(
    data: str, row: str, start: str, folder: Path, given: tuple[str, ...], bars: OnEvent | None
) -> None:
    """Make a row of the result: what it reached over its seeds, and the name of the search before it."""
    recipe, found, name = recipe_for(data, row, start, given), "", f"{row} from {start}"
    if row.startswith("tuned"):
        found = tuned(data, row, start, folder, given, bars)
        recipe = with_settings(recipe, kept(data, "searches")[found]["best"]["settings"])
    key = recipe.model_dump(mode="json", exclude={"data": {"root"}})
    made = {other: row for other, row in kept(data, "rows").items() if in_full(row["recipe"]) == in_full(key)}
    if made:
        if name not in made:  # the search ended where another row began
            keep(data, "rows", name, next(iter(made.values())) | {"search": found})
        return
    results = []
    for seed in range(DATA[data]["seeds"]):
        seeded = recipe.model_copy(update={"seed": seed})
        results.append(
            train_recipe(seeded, folder / data / name / str(seed), resume=True, on_event=bars).result()
        )
    repeats = summarise(results)
    figures = {
        part: {metric: getattr(repeats, part)[metric] for metric in METRICS}
        for part in ("mean", "deviation", "interval")
    }
    values = {metric: [result.metrics[metric] for result in results] for metric in ("recall@1", "map@r")}
    keep(data, "rows", name, {**figures, "values": values, "search": found, "recipe": key})


def in_full(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return the recipe with all keys of today and all settings of its loss, where "auto:1" is "auto"."""
    recipe = parse_recipe(recipe).model_dump(mode="json", exclude={"data": {"root"}})
    name, given = recipe["loss"]["name"], recipe["loss"]["settings"]
    settings = defaults_of(losses.LOSSES[name]) | {
        key: "auto" if value == "auto:1" else value for key, value in given.items()
    }
    return recipe | {"loss": recipe["loss"] | {"settings": settings}}


def rows(study: Study) -> dict[str, Any]:
    """Return what results keep of a search."""
    trials = [
        {"settings": trial.settings, "value": trial.value} | ({"error": trial.error} if trial.error else {})
        for trial in study.trials
    ]
    return {
        "space": {key: str(each) for key, each in study.space.items()},
        "best": trials[0],
        "on_bounds": on_bounds(study.space, study.best.settings),
        "trials": trials,
    }


def kept(data: str, part: str) -> dict[str, Any]:
    """Return the searches or rows that the result has."""
    found: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    part_of: dict[str, Any] = found.get(data, {}).get(part, {})
    return part_of


def keep(data: str, part: str, name: str, content: dict[str, Any]) -> None:
    """Put a search or a row into the result."""
    with locked_file(RESULT.with_suffix(".lock")):
        results = json.loads(RESULT.read_text()) if RESULT.exists() else {}
        command = f"python experiments/automatic_warp.py {data}" + " data.root=..." * (data != "glyphs")
        of_data = results.setdefault(data, {"command": command, "seeds": DATA[data]["seeds"]})
        of_data.setdefault(part, {})[name] = {"environment": environment()} | content
        write_json(RESULT, results)


def main(
    data: str,
    overrides: Annotated[list[str] | None, typer.Argument()] = None,
    folder: Path = Path("runs/automatic_warp"),
    only: str = "",
) -> None:
    """Train every row of `data` and write it into results/automatic_warp.json."""
    given = tuple(overrides or ())

    def make(place: Path, bars: OnEvent | None, *, row: str, start: str) -> None:
        study(data, row, start, folder, given, bars)
        write_json(place / MADE, {"overrides": given})

    tasks = [
        Task(f"{row} from {start}", partial(make, row=row, start=start), MADE)
        for row in LOSSES
        for start in STARTS
        if only in f"{row} from {start}"
    ]
    with freed_memory_kept(), shown() as bars:
        work(tasks, folder / data, on_event=bars)


if __name__ == "__main__":
    typer.run(main)
