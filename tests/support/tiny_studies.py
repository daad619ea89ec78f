"""A benchmark and a reality check that take seconds, and what is compared of them."""

from collections.abc import Sequence
from pathlib import Path

from softwarp.fair import benchmark, each_loss, reality_check, reality_table
from softwarp.fair.tasks import work
from support.tiny_runs import PHASE, tiny

LOSSES = ("euclidean_softmax", "proxy_nca_pp")
TRIALS, SEEDS, REPRODUCTIONS, SIZE = 1, 2, 2, 8
RECIPE = tiny(
    data={"max_classes": 8},
    model={"embedding_size": 4},
    batches={"classes": 4, "samples": 4},
    phases=[PHASE],
    evaluation={"ks": [1], "clustering": False, "avg_dtp_images": 0},
)
PLATEAU = RECIPE.model_copy(
    update={
        "optimizer": RECIPE.optimizer.model_copy(update={"name": "rmsprop"}),
        "phases": (RECIPE.phases[0].model_copy(update={"epochs": 2}), RECIPE.phases[0]),
        "evaluation": RECIPE.evaluation.model_copy(
            update={
                "test_classes": "second_half",
                "folds": 2,
                "every": 1,
                "metric": "map@r",
                "patience": 1,
            }
        ),
    }
)


def run_benchmark(folder: Path, *, trials: int = TRIALS) -> benchmark.Benchmark:
    """Start or resume the benchmark."""
    recipes = each_loss.recipe_for_each(each_loss.judged_once(RECIPE), LOSSES)
    work(benchmark.benchmark_tasks(recipes, trials=trials, seeds=SEEDS), folder)
    return benchmark.read_benchmark(folder, recipes, trials=trials, seeds=SEEDS, command="")


def run_reality_check(
    folder: Path, *, trials: int = TRIALS, losses: Sequence[str] = LOSSES[:1]
) -> reality_table.RealityCheck:
    """Start or resume the reality check."""
    reality_check.check_protocol(PLATEAU)
    recipes = each_loss.recipe_for_each(PLATEAU, losses)
    numbers = {"trials": trials, "reproductions": REPRODUCTIONS, "size": SIZE}
    work(reality_check.reality_tasks(recipes, **numbers), folder)
    return reality_table.read_reality_check(folder, recipes, **numbers, command="")


def figures(kind: str, folder: Path, trials: int) -> dict:
    """Everything that must not depend on how often a study was interrupted."""
    run = run_benchmark if kind == "benchmark" else run_reality_check
    found = run(folder, trials=trials).model_dump(mode="json")
    for entry in found["entries"]:
        entry.pop("seconds", None)
    return {key: found[key] for key in ("entries", "pairs") if key in found}
