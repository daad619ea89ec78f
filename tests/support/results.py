"""Results as finished runs leave them, made by hand."""

from pathlib import Path

from softwarp.recipe.schema import parse_recipe
from softwarp.runs.result import Counts, Result
from softwarp.runs.run import Run

RECIPE = parse_recipe(
    {
        "loss": {"name": "euclidean_softmax"},
        "phases": [{"epochs": 1, "learning_rate": 0.1, "proxy_learning_rate": 0.1}],
    }
)


def result(**changes) -> Result:
    settings = {
        "name": "euclidean_softmax",
        "seed": 0,
        "distance": "euclidean",
        "split": "test",
        "classes": Counts(train=5, evaluated=5),
        "images": Counts(train=10, evaluated=10),
        "metrics": {"recall@1": 0.5, "map@r": 0.25, "avg_dtp": 3.0},
        "epochs": 1,
        "seconds": 1.0,
        "data_sha256": "a",
    }
    return Result(**settings | changes)


def finished_run(folder: Path, **changes) -> Run:
    run = Run.create(folder, RECIPE)
    run.write_result(result(**changes))
    return run
