"""The search behind the demo's hyper-parameters: the same number of trials for each loss.

    python -m softwarp.studies.demo_search

Each trial trains at the demo's full budget on the training classes and is judged by MAP@R on the
validation classes. It can be stopped and resumed at any time; the outcome is written to
results/demo_search.json, and the best settings belong in src/softwarp/recipes/glyphs_*.yaml.
"""

from pathlib import Path
from typing import Any

import typer
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from softwarp.files import write_json
from softwarp.runs import environment
from softwarp.studies.demo import demo_recipes
from softwarp.tune import Study, search


def rows(study: Study) -> dict[str, Any]:
    """Return what results keep of a search."""
    trials = [
        {"settings": trial.settings, "value": trial.value} | ({"error": trial.error} if trial.error else {})
        for trial in study.trials
    ]
    return {
        "space": {key: str(each) for key, each in study.space.items()},
        "best": trials[0],
        "trials": trials,
    }


def main(trials: int = 14, folder: Path = Path("runs/demo_search"), results: Path = Path("results")) -> None:
    """Search on the validation classes, with equal effort for each loss."""
    outcome = {}
    with Progress(*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn()) as progress:
        for name, recipe in demo_recipes().items():
            study = search(recipe, folder / name, trials=trials, prune=False, progress=progress)
            outcome[name] = rows(study)
    command = f"python -m softwarp.studies.demo_search --trials {trials}"
    write_json(
        results / "demo_search.json",
        {"command": command, "metric": "map@r", "split": "validation", "environment": environment()}
        | outcome,
    )


if __name__ == "__main__":
    typer.run(main)
