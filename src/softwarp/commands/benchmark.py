"""`softwarp benchmark`: losses compared fairly."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softwarp.files import printable

if TYPE_CHECKING:
    from softwarp.recipe import Recipe
    from softwarp.tables import Table


def benchmark(
    words: Annotated[
        list[str] | None, typer.Argument(help="Changes like phases.0.epochs=5 data.max_classes=250.")
    ] = None,
    losses: Annotated[str, typer.Option(help="Losses to compare, like arcface,hist; or all.")] = "",
    data: Annotated[
        str | None,
        typer.Option(help="Your images (FOLDER/CLASS/IMAGE or a CSV file), or a recipe. Default: glyphs."),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Trials of the search, for each loss.")] = 10,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of the comparison, for each loss.")] = 3,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the study.")] = Path(
        "runs/benchmark"
    ),
    storage: Annotated[
        str | None, typer.Option(help="Database of the searches, like postgresql://USER@HOST/NAME.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
) -> None:
    """Find out which loss is best for your images.

    \b
    softwarp benchmark --losses warped_softmax,proxy_anchor,arcface --data my_images
    softwarp benchmark --losses all --trials 5 --dry-run

    Each loss gets the same network, epochs, batches and number of trials on validation classes; what it finds
    is trained with several seeds and judged once on the test classes. The same command resumes a benchmark
    that was stopped, adds losses or seeds to a finished one, and, started several times, shares the work.
    """
    if not losses:
        raise ValueError("name the losses to compare: --losses arcface,hist, or --losses all")
    from rich.console import Console

    from softwarp.benchmark import (
        judged_once,
        open_benchmark,
        parse_losses,
        read_benchmark,
        recipe_for_each,
        tasks_of,
    )
    from softwarp.commands.progress import bars_until_stopped, note
    from softwarp.commands.recipes import choose, protocol_of
    from softwarp.files import write_json
    from softwarp.memory import freed_memory_kept
    from softwarp.report.benchmark import MARKS, benchmark_table
    from softwarp.report.write import write_report
    from softwarp.tasks import work

    named, images = (data, None) if data is None or not _is_images(data) else (None, Path(data))
    _, recipe = choose([*([named] if named else []), *(words or [])], images, "test")
    recipes = recipe_for_each(judged_once(recipe), parse_losses(losses))
    if not dry_run:
        open_benchmark(output, recipes, trials=trials)
    note(protocol_of(next(iter(recipes.values()))))
    note(_plan(recipes, output, trials, seeds))
    if dry_run:
        return
    with freed_memory_kept(), bars_until_stopped(output) as progress:
        work(tasks_of(recipes, trials=trials, seeds=seeds, storage=storage), output, progress=progress)
    command = shlex.join(["softwarp", *sys.argv[1:]])
    outcome = read_benchmark(output, recipes, trials=trials, seeds=seeds, command=command)
    shown = benchmark_table(outcome)
    write_json(output / "benchmark.json", outcome.model_dump(mode="json", by_alias=True))
    write_files(output, "benchmark", shown)
    write_report(output / "report.html", [output], command)
    Console().print(shown.terminal())
    typer.echo(MARKS)
    typer.echo(f"report: {printable(str(output))}/report.html; also benchmark.json, .md and .tex")


def write_files(folder: Path, name: str, shown: "Table") -> None:
    """Write a table as Markdown and LaTeX."""
    from softwarp.files import write_text

    write_text(folder / f"{name}.md", shown.markdown())
    write_text(folder / f"{name}.tex", shown.latex())


def _plan(recipes: "dict[str, Recipe]", output: Path, trials: int, seeds: int) -> str:
    """What is about to happen, and how long it will take."""
    from softwarp.cost import Training, estimate
    from softwarp.tune import judged_recipe

    trainings = []
    for recipe in recipes.values():
        searched = judged_recipe(recipe, objective="map@r", prune=True)
        looks = sum(phase.epochs for phase in recipe.phases) // searched.evaluation.every
        trainings += [Training(recipe, seeds), Training(searched, trials, looks=looks, kept=False)]
    cost = estimate(trainings, output)
    return f"{len(recipes)} losses x ({trials} trials + {seeds} seeds): {cost}"


def _is_images(data: str) -> bool:
    return Path(data).is_dir() or Path(data).suffix.lower() == ".csv"
