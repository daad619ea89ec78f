"""`softwarp reality-check`: losses compared by the protocol of Musgrave et al."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softwarp.files import printable

if TYPE_CHECKING:
    from rich.console import Console

    from softwarp.recipe import Recipe
    from softwarp.tables import Table

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
        int, typer.Option(min=1, help="Trials of the search, for each loss; 50 in the paper.")
    ] = 50,
    reproductions: Annotated[
        int, typer.Option(min=2, help="Runs with the best settings, for each loss; 10 in the paper.")
    ] = 10,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the study. Default: runs/RECIPE.")
    ] = None,
    storage: Annotated[
        str | None, typer.Option(help="Database of the searches, like postgresql://USER@HOST/NAME.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
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

    from softwarp.benchmark import parse_losses, recipe_for_each
    from softwarp.commands.benchmark import write_files
    from softwarp.commands.progress import bars_until_stopped, note
    from softwarp.files import write_json
    from softwarp.memory import freed_memory_kept
    from softwarp.overrides import override
    from softwarp.reality_check import check_protocol, open_reality_check, tasks_of
    from softwarp.reality_table import read_reality_check
    from softwarp.recipe import parse_recipe
    from softwarp.recipe_files import find_recipe, read_settings
    from softwarp.report.benchmark import published_table, reality_table
    from softwarp.report.write import write_report
    from softwarp.tasks import work

    path, changes = find_recipe(recipe), [word for word in words if "=" in word]
    losses = parse_losses(",".join(word for word in words if "=" not in word), fewest=1)
    chosen = parse_recipe(override(read_settings(path), changes), path.name)
    check_protocol(chosen)
    recipes = recipe_for_each(chosen, losses)
    folder = output or Path("runs") / f"{path.parent.name}-{path.stem}"
    numbers = {"trials": trials, "reproductions": reproductions, "size": COMPLETE_SIZE}
    if not dry_run:
        open_reality_check(folder, recipes, **numbers)
    note(_plan(recipes, folder, **numbers))
    if dry_run:
        return
    with freed_memory_kept(), bars_until_stopped(folder) as progress:
        work(tasks_of(recipes, **numbers, storage=storage), folder, progress=progress)
    command = shlex.join(["softwarp", *sys.argv[1:]])
    outcome = read_reality_check(folder, recipes, **numbers, command=command)
    shown = reality_table(outcome)
    write_json(folder / "reality_check.json", outcome.model_dump(mode="json", by_alias=True))
    write_files(folder, "reality_check", shown)
    write_report(folder / "report.html", [folder], command)
    _show(Console(), shown)
    published = published_table(chosen.paper)
    if published:
        _show(Console(), published)
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


def _plan(recipes: "dict[str, Recipe]", folder: Path, *, trials: int, reproductions: int, size: int) -> str:
    """What is about to happen, and how long it takes at most."""
    from softwarp.cost import Training, estimate
    from softwarp.reality_check import complete_recipe
    from softwarp.tune import fold_runs

    trainings = []
    for recipe in recipes.values():
        folds = recipe.evaluation.folds
        looks = sum(phase.epochs for phase in recipe.phases) // recipe.evaluation.every
        own, _ = fold_runs(recipe, folder, folds)[0]
        trainings.append(Training(own, folds * reproductions, looks=looks))
        trainings.append(Training(own, folds * trials, looks=looks, kept=False))
        epochs = [phase.epochs for phase in recipe.phases]
        trainings.append(Training(complete_recipe(recipe, epochs, size), reproductions))
    folds = next(iter(recipes.values())).evaluation.folds
    return (
        f"{len(recipes)} losses x ({folds} folds x ({trials} trials + {reproductions} reproductions) + "
        f"{reproductions} complete models), at most: {estimate(trainings, folder)}"
    )
