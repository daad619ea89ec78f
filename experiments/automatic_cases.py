"""Does one rule serve all sizes? The automatic warp beside the best fixed setting, case by case, on glyphs.

    python experiments/automatic_cases.py    -> results/automatic_cases.json

In each case scale, alpha and the proxies' learning rate are searched as plain numbers, and the automatic warp
takes its defaults. Both are judged on the validation classes, so the best of the search is flattered. A
stopped study resumes, and several processes with the same command share the cases.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import typer
from automatic_warp import rows

from softwarp.events import OnEvent, shown
from softwarp.fair.tasks import Task, work
from softwarp.files import write_json
from softwarp.memory import freed_memory_kept
from softwarp.recipe.files import find_recipe, read_settings
from softwarp.recipe.overrides import override
from softwarp.recipe.schema import Recipe, parse_recipe
from softwarp.runs.provenance import environment
from softwarp.training.train import train_recipe
from softwarp.tuning.search import search
from softwarp.tuning.space import Parameter

RESULT = Path("results/automatic_cases.json")
OUTCOME = "outcome.json"
SPACE = {
    "loss.settings.scale": Parameter("log", 0.05, 20.0),
    "loss.settings.alpha": Parameter("log", 0.3, 100.0),
    "phases.0.proxy_learning_rate": Parameter("log", 3e-5, 3.0),
}
CASES: dict[str, dict[str, Any]] = {
    "1,005 classes, 128 dimensions": {},
    "32 dimensions": {"settings": ("model.embedding_size=32",)},
    "512 dimensions": {"settings": ("model.embedding_size=512",)},
    "200 classes": {"settings": ("data.max_classes=200",), "epochs": (20, 10)},
    "20 classes": {"settings": ("data.max_classes=20", "batches.classes=20"), "epochs": (40, 20)},
    "network's rate x 0.3": {"network": 0.3},
    "network's rate x 3": {"network": 3.0},
    "all rates x 0.3": {"network": 0.3, "proxies": 0.3},
    "all rates x 3": {"network": 3.0, "proxies": 3.0},
}


def recipe_for(case: str, *, automatic: bool) -> Recipe:
    """Return the recipe of a case: the automatic warp, or one whose numbers are to be searched."""
    plan = CASES[case]
    new = override(
        read_settings(find_recipe("glyphs_warped_softmax")),
        ("evaluation={split: validation, clustering: false, avg_dtp_images: 0}", *plan.get("settings", ())),
    )
    fixed = {"scale": 0.7, "alpha": 10.0}  # where searches begin: good for the demo
    settings = {"scale": "auto", "alpha": "auto"} if automatic else fixed
    new["loss"] = {"name": "warped_softmax", "settings": settings}
    network, factor = plan.get("network", 1.0), plan.get("proxies", 1.0)
    proxies = {"proxy_travel": 2.0 * factor} if automatic else {"proxy_learning_rate": 0.03 * factor}
    new["phases"] = [
        {"epochs": epochs, "learning_rate": 0.004 * network * rate}
        | {key: value * rate for key, value in proxies.items()}
        for epochs, rate in zip(plan.get("epochs", (4, 2)), (1.0, 0.1), strict=True)
    ]
    return parse_recipe(new)


def study(place: Path, on_event: OnEvent | None, *, case: str, trials: int) -> None:
    """Write MAP@R of the automatic warp and of all trials in a case."""
    fixed = recipe_for(case, automatic=False)
    found = search(fixed, place / "search", trials=trials, space=SPACE, prune=False, on_event=on_event)
    run = train_recipe(recipe_for(case, automatic=True), place / "automatic", resume=True, on_event=on_event)
    value, best = run.result().metrics["map@r"], found.best
    row = {
        "case": case,
        "automatic": value,
        "readings": {key: run.history()[-1][key] for key in ("scale", "alpha")},
        "best_fixed": best.value,
        "difference": value - best.value,
        **rows(found),
    }
    write_json(place / OUTCOME, row)


def main(folder: Path = Path("runs/automatic_cases"), trials: int = 10) -> None:
    """Train all cases and write results/automatic_cases.json."""
    places = {case.replace(" ", "_").replace(",", ""): case for case in CASES}
    tasks = [
        Task(place, partial(study, case=case, trials=trials), OUTCOME, trainings=trials + 1)
        for place, case in places.items()
    ]
    with freed_memory_kept(), shown() as on_event:
        work(tasks, folder, on_event=on_event)
    outcome = [json.loads((folder / place / OUTCOME).read_text()) for place in places]
    command = f"python experiments/automatic_cases.py --trials {trials}"
    content = {"command": command, "split": "validation", "rows": outcome, "environment": environment()}
    write_json(RESULT, content)


if __name__ == "__main__":
    typer.run(main)
