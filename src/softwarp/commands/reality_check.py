"""`softwarp reality-check`: losses compared by the protocol of Musgrave et al."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softwarp.commands.options import Budget, DryRun, Storage
from softwarp.commands.progress import bars_until_stopped, note, say, this_command

if TYPE_CHECKING:
    from rich.console import Console

    from softwarp.tables import Table


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
        typer.Option(min=1, help="Trials of the search, for each loss. Default: 50, as in the paper."),
    ] = None,
    reproductions: Annotated[
        int, typer.Option(min=2, help="Runs with the best settings, for each loss; 10 in the paper.")
    ] = 10,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the study. Default: runs/RECIPE.")
    ] = None,
    storage: Storage = None,
    budget: Budget = None,
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

    from softwarp.fair.reality_study import plan_reality_check, run_reality_check
    from softwarp.fair.reality_table import reality_table
    from softwarp.recipe.files import find_recipe, read_settings
    from softwarp.recipe.overrides import override
    from softwarp.recipe.schema import parse_recipe
    from softwarp.report.benchmark import published_table
    from softwarp.report.write import write_report

    path, changes = find_recipe(recipe), [word for word in words if "=" in word]
    losses = [word for word in words if "=" not in word]
    chosen = parse_recipe(override(read_settings(path), changes), path.name)
    folder = output or Path("runs") / f"{path.parent.name}-{path.stem}"
    with bars_until_stopped(folder) as on_event:
        planned = plan_reality_check(
            losses,
            chosen,
            folder,
            trials=trials,
            reproductions=reproductions,
            budget=budget,
            dry_run=dry_run,
        )
        for line in planned.lines():
            note(line)
        if dry_run:
            return
        outcome = run_reality_check(planned, command=this_command(), storage=storage, on_event=on_event)
    write_report(folder / "report.html", [folder], this_command())
    for table in filter(None, (reality_table(outcome), published_table(chosen.paper))):
        _show(Console(), table)
    say(f"report: {folder}/report.html; also reality_check.json, .md and .tex")


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
