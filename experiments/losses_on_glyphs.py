"""Every loss for the same short budget on glyphs: does it learn?

    python experiments/losses_on_glyphs.py    -> results/losses_on_glyphs.json
    make docs                                      -> the table in docs/losses.md

A quarter of the demo's classes and epochs, one seed. Each loss is trained with its defaults and with the same
number of settings from its own search space; the best on the validation classes is trained once more and
judged on the test classes. The figures show that each loss learns, not which is best. Only losses without a
row in the results are trained, unless --only or --all asks for more. Runs in the folder are kept, so an
interrupted study resumes; after changing a loss, use another folder.
"""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import typer

from softwarp.events import OnEvent, Work, shown
from softwarp.files import write_json
from softwarp.losses import LOSSES, find_loss
from softwarp.memory import freed_memory_kept
from softwarp.recipe.files import find_recipe, read_settings
from softwarp.recipe.overrides import change_loss, override
from softwarp.recipe.schema import Recipe, parse_recipe
from softwarp.runs.provenance import environment
from softwarp.training.train import train_recipe
from softwarp.tuning.search import search
from softwarp.tuning.space import with_settings

RESULT = Path("results/losses_on_glyphs.json")
METRICS = ("recall@1", "map@r")
BUDGET = (
    "data.max_classes=250",
    "phases=[{epochs: 4, learning_rate: 0.002, proxy_learning_rate: 0.02, schedule: cosine}]",
    "evaluation={split: validation, clustering: false, baseline: true}",
)


def recipe_for(name: str) -> Recipe:
    """Return the demo's recipe with the short budget, this loss and its defaults."""
    settings = override(read_settings(find_recipe("glyphs_euclidean_softmax")), BUDGET)
    settings["loss"] = {"name": "euclidean_softmax" if name != "euclidean_softmax" else "proxy_nca_pp"}
    return parse_recipe(change_loss(settings, name))  # from another, so that its own defaults are taken


def study(name: str, folder: Path, trials: int, on_event: OnEvent | None = None) -> dict[str, Any]:
    """Return what a loss reached: with its defaults on validation classes, with its best on test classes."""
    recipe = recipe_for(name)
    default = train_recipe(recipe, folder / "defaults" / name, resume=True, on_event=on_event).result()
    best = search(recipe, folder / "search" / name, trials=trials, prune=False, on_event=on_event).best
    settings = best.settings if best.value > default.metrics["map@r"] else {}
    final = with_settings(recipe, settings)
    final = final.model_copy(update={"evaluation": final.evaluation.model_copy(update={"split": "test"})})
    run = train_recipe(final, folder / f"best_of_{trials}" / name, resume=True, on_event=on_event)
    return {
        **_metrics(run.result().metrics),
        "settings": settings,
        "first_loss": run.history()[0]["loss"],
        "last_loss": run.history()[-1]["loss"],
        "untrained": _metrics(run.result().baseline or {}),
        "classes": run.result().classes.model_dump(),
        "defaults": _metrics(default.metrics) | {"untrained": _metrics(default.baseline or {})},
    }


def _metrics(result: dict[str, float]) -> dict[str, float]:
    return {metric: result[metric] for metric in METRICS}


def losses_to_study(known: Collection[str], only: Collection[str], everything: bool) -> list[str]:
    """Return the losses to train: those asked for, else those without a row.

    >>> losses_to_study([name for name in LOSSES if name != "hist"], (), False)
    ['hist']
    """
    if only:
        return [name for name in only if find_loss(name)]
    return [name for name in LOSSES if everything or name not in known]


def main(
    trials: int = 4,
    folder: Path = Path("runs/losses_on_glyphs"),
    only: Annotated[list[str] | None, typer.Option(help="Train this loss, even if it has a row.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Train every loss again.")] = False,
) -> None:
    """Study the losses without a row and add them to results/losses_on_glyphs.json."""
    before = json.loads(RESULT.read_text()) if RESULT.exists() else {"losses": {}}
    names = losses_to_study(before["losses"], only or (), everything)
    kept = {} if everything else before["losses"]
    if kept and before["trials"] != trials:
        raise typer.BadParameter(
            f"the rows in {RESULT} had --trials {before['trials']}; --all trains them again"
        )
    with freed_memory_kept(), shown() as on_event:
        bar, new = Work(on_event, "losses", total=len(names)), {}
        for name in names:
            new[name] = study(name, folder, trials, on_event) | {"environment": environment()}
            bar.advance()
    rows = {name: (kept | new)[name] for name in LOSSES if name in kept | new}
    command = f"python experiments/losses_on_glyphs.py --trials {trials}"
    write_json(
        RESULT,
        (before if kept else {}) | {"command": command, "trials": trials, "budget": BUDGET, "losses": rows},
    )


if __name__ == "__main__":
    typer.run(main)
