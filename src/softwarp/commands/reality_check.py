"""`softwarp reality-check`: losses compared by the protocol of Musgrave et al."""

import shlex
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softwarp.commands.plan_options import BudgetOption, DryRun
from softwarp.files import printable

if TYPE_CHECKING:
    from rich.console import Console

    from softwarp.fair.cost import Training
    from softwarp.recipe.schema import Recipe
    from softwarp.tables import Table

TRIALS = 50  # without --trials, as in the paper
COMPLETE_SIZE = 512  # of the complete model's embeddings, as in the paper


def reality_check(
    words: Annotated[
        list[str],
        typer.Argument(help="Losses, and changes like data.root=CUB_200_2011 model.embedding_size=64."),
    ],
    recipe: Annotated[
        str, typer.Option(help="reality_check/cub.yaml, cars.yaml, sop.yaml, glyphs.yaml, or your own.")
    ] = "reality_check/glyphs.yaml",
    trials: Annotated[
        int | None,
        typer.Option(min=1, help=f"Trials of the search, for each loss. Default: {TRIALS}, as in the paper."),
    ] = None,
    reproductions: Annotated[
        int, typer.Option(min=2, help="Runs with the best settings, for each loss; 10 in the paper.")
    ] = 10,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the study. Default: runs/RECIPE.")
    ] = None,
    storage: Annotated[
        str | None, typer.Option(help="Database of the searches, like postgresql://USER@HOST/NAME.")
    ] = None,
    budget: BudgetOption = None,
    dry_run: DryRun = False,
) -> None:
    """Compare losses by the protocol of "A Metric Learning Reality Check" and the paper's appendix D.

    \b
    softwarp reality-check warped_softmax proxy_nca_pp cosface --trials 5 --reproductions 5
    softwarp reality-check hist cosface --recipe reality_check/cub.yaml data.root=CUB_200_2011

    Half of the classes are for test. Settings are searched by the mean MAP@R over four folds of the others,
    in two phases that end at their plateaus; the best are reproduced and judged as single models, as an
    ensemble and as one model trained on all folds, with 95% intervals. The same command resumes a study that
    was stopped and, started several times, shares the work.
    """
    from rich.console import Console

    from softwarp.commands.progress import bars_until_stopped, note
    from softwarp.fair.benchmark import parse_losses, recipe_for_each
    from softwarp.fair.benchmark_result import search_lines
    from softwarp.fair.plan import fit_study
    from softwarp.fair.reality_check import check_protocol, open_reality_check, reality_tasks
    from softwarp.fair.reality_table import read_reality_check
    from softwarp.fair.tasks import work
    from softwarp.files import check_writable, write_json
    from softwarp.recipe.files import find_recipe, read_settings
    from softwarp.recipe.overrides import override
    from softwarp.recipe.schema import parse_recipe
    from softwarp.report.benchmark import published_table, reality_table
    from softwarp.report.write import write_report
    from softwarp.tables import counted, write_table

    path, changes = find_recipe(recipe), [word for word in words if "=" in word]
    losses = parse_losses(",".join(word for word in words if "=" not in word), fewest=1)
    chosen = parse_recipe(override(read_settings(path), changes), path.name)
    check_protocol(chosen)
    folder = output or Path("runs") / f"{path.parent.name}-{path.stem}"
    recipes, data, steps = _checked(recipe_for_each(chosen, losses), folder)
    known = partial(open_reality_check, folder, reproductions=reproductions, size=COMPLETE_SIZE, data=data)
    if not dry_run:
        check_writable(folder)
    if not dry_run and budget is None:  # otherwise epochs follow from what is timed
        known(recipes, trials=trials or TRIALS, write=False)
    trainings = partial(_trainings, folder=folder, reproductions=reproductions)
    plan = fit_study(recipes, trainings, folder, trials=trials, usual=TRIALS, budget=budget, dry_run=dry_run)
    recipes = plan.recipes
    if not dry_run:
        plan.keep(folder)  # first: a study without a plan would be taken for one without a budget
        known(recipes, trials=plan.trials)
    numbers = {"trials": plan.trials, "reproductions": reproductions, "size": COMPLETE_SIZE}
    folds = chosen.evaluation.folds
    note(
        f"{counted(len(recipes), 'loss', 'losses')} x ({folds} folds x ({counted(plan.trials, 'trial')} + "
        f"{counted(reproductions, 'reproduction')}) + {counted(reproductions, 'complete model')}), "
        f"at most: {plan.cost}"
    )
    note(steps)
    if dry_run:
        return
    with bars_until_stopped(folder) as on_event:
        work(reality_tasks(recipes, **numbers, storage=storage), folder, on_event=on_event)
    command = shlex.join(["softwarp", *sys.argv[1:]])
    outcome = read_reality_check(folder, recipes, **numbers, command=command)
    shown = reality_table(outcome)
    write_json(folder / "reality_check.json", outcome.model_dump(mode="json", by_alias=True))
    write_table(folder / "reality_check", shown)
    write_report(folder / "report.html", [folder], command)
    _show(Console(), shown)
    published = published_table(chosen.paper)
    if published:
        _show(Console(), published)
    for line in search_lines(outcome):
        note(line)
    typer.echo(f"report: {printable(str(folder))}/report.html; also reality_check.json, .md and .tex")


def _show(console: "Console", shown: "Table") -> None:
    """Print a table, one category below the other where they do not fit side by side."""
    from softwarp.tables import Table

    width = max(len(row.text) for cells in shown.rows for row in cells[1:]) + 3
    if console.width >= 20 + width * (len(shown.heads) - 1):
        console.print(shown.terminal())
        return
    place = shown.words
    for title, count in shown.groups:
        columns = (0, *range(place, place + count))
        part = Table(
            tuple(shown.heads[column] for column in columns),
            tuple(tuple(row[column] for column in columns) for row in shown.rows),
            title=f"{title}: {shown.title}",
        )
        console.print(part.terminal())
        place += count


def _checked(recipes: "dict[str, Recipe]", folder: Path) -> "tuple[dict[str, Recipe], str, str]":
    """The recipes, batches fitted to all training classes; the hash of the images; the batches in words."""
    from softwarp.fair.benchmark import judged_once
    from softwarp.fair.plan import batch_line
    from softwarp.training.step_batches import fit_batches, room_of
    from softwarp.tuning.search import check_steps, fold_runs

    first = next(iter(recipes.values()))
    whole = room_of(judged_once(first))
    for recipe in recipes.values():
        check_steps(recipe, folder, recipe.evaluation.folds)
    own, _ = fold_runs(first, folder, first.evaluation.folds)[0]
    part = room_of(own)
    fitted = {name: fit_batches(recipe, whole) for name, recipe in recipes.items()}
    complete = next(iter(fitted.values()))
    line = batch_line([("folds", fit_batches(own, part), part), ("complete models", complete, whole)])
    return fitted, whole.sha256, line


def _trainings(
    recipes: "Mapping[str, Recipe]", trials: int, *, folder: Path, reproductions: int
) -> "list[Training]":
    """What a reality check trains; phases that end at their plateaus count at their full length."""
    from softwarp.fair.cost import Training
    from softwarp.fair.reality_check import complete_recipe
    from softwarp.tuning.search import fold_runs

    trainings = []
    for recipe in recipes.values():
        folds = recipe.evaluation.folds
        looks = sum(phase.epochs for phase in recipe.phases) // recipe.evaluation.every
        own, _ = fold_runs(recipe, folder, folds)[0]
        trainings.append(Training(own, folds * reproductions, looks=looks))
        trainings.append(Training(own, folds * trials, looks=looks, kept=False))
        epochs = [phase.epochs for phase in recipe.phases]
        trainings.append(Training(complete_recipe(recipe, epochs, COMPLETE_SIZE), reproductions))
    return trainings
