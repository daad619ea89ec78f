"""`softwarp benchmark`: losses compared fairly."""

import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softwarp.commands.plans import BudgetOption, DryRun
from softwarp.commands.recipes import Depth
from softwarp.files import printable

if TYPE_CHECKING:
    from softwarp.fair.benchmark import Benchmark
    from softwarp.fair.cost import Training
    from softwarp.recipe.schema import Recipe
    from softwarp.tables import Table
    from softwarp.training.step_batches import Room

TRIALS = 10  # without --trials


def benchmark(
    words: Annotated[
        list[str] | None, typer.Argument(help="Changes like phases.0.epochs=5 data.max_classes=250.")
    ] = None,
    losses: Annotated[str, typer.Option(help="Losses to compare, like arcface,hist; or all.")] = "",
    data: Annotated[
        str | None,
        typer.Option(help="Your images (FOLDER/CLASS/IMAGE or a CSV file), or a recipe. Default: glyphs."),
    ] = None,
    depth: Depth = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help=f"Trials of the search, for each loss. Default: {TRIALS}.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of the comparison, for each loss.")] = 3,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Folder of the study. Default: runs/benchmark, or runs/NAME-benchmark for --data.",
        ),
    ] = None,
    storage: Annotated[
        str | None, typer.Option(help="Database of the searches, like postgresql://USER@HOST/NAME.")
    ] = None,
    budget: BudgetOption = None,
    dry_run: DryRun = False,
) -> None:
    """Find out which loss is best for your images.

    \b
    softwarp benchmark --losses warped_softmax,proxy_anchor,arcface --data my_images
    softwarp benchmark --losses all --trials 5 --dry-run

    Each loss gets the same network, epochs, batches and number of trials on validation classes; what it finds
    is trained with several seeds and judged once on the test classes, beside the frozen features of the
    backbone: a loss can be worse than doing nothing. The same command resumes a benchmark that was stopped,
    adds losses or seeds to a finished one, and, started several times, shares the work.
    """
    if not losses:
        raise ValueError("name the losses to compare: --losses arcface,hist, or --losses all")
    from rich.console import Console

    from softwarp.commands.plans import fit_study
    from softwarp.commands.progress import bars_until_stopped, note
    from softwarp.commands.recipes import choose, protocol_of
    from softwarp.fair.benchmark import (
        frozen_recipe,
        judged_once,
        open_benchmark,
        parse_losses,
        read_benchmark,
        recipe_for_each,
        tasks_of,
    )
    from softwarp.fair.tasks import work
    from softwarp.files import check_writable, write_json
    from softwarp.report.benchmark import benchmark_table, marks_note, search_lines, verdict
    from softwarp.report.write import write_report
    from softwarp.training.step_batches import fit_batches, room_of

    named, images = (data, None) if data is None or not _is_images(data) else (None, Path(data))
    name, recipe = choose([*([named] if named else []), *(words or [])], images, "test", depth)
    output = output or Path("runs") / ("benchmark" if data is None else f"{name}-benchmark")
    base = judged_once(recipe)
    room = room_of(base)
    names = _able(parse_losses(losses), base, everything=losses.strip() == "all")
    recipes = {name: fit_batches(each, room) for name, each in recipe_for_each(base, names).items()}
    if not dry_run:
        check_writable(output)
    note(protocol_of(base))
    if not dry_run and budget is None:  # otherwise epochs follow from what is timed
        open_benchmark(output, recipes, trials=trials or TRIALS, data=room.sha256, write=False)
    plan = fit_study(
        recipes, _trainings(seeds), output, trials=trials, usual=TRIALS, budget=budget, dry_run=dry_run
    )
    recipes, frozen = plan.recipes, frozen_recipe(base, room)
    numbers = {"trials": plan.trials, "seeds": seeds}
    if not dry_run:
        plan.keep(output)  # first: a study without a plan would be taken for one without a budget
        open_benchmark(output, recipes, trials=plan.trials, data=room.sha256)
    note(f"{len(recipes)} losses x ({plan.trials} trials + {seeds} seeds): {plan.cost}")
    note(_batches(next(iter(recipes.values())), room))
    if dry_run:
        return
    with bars_until_stopped(output) as on_event:
        work(tasks_of(recipes, **numbers, storage=storage, frozen=frozen), output, on_event=on_event)
    command = shlex.join(["softwarp", *sys.argv[1:]])
    outcome = read_benchmark(output, recipes, **numbers, command=command, frozen=frozen)
    shown = benchmark_table(outcome)
    write_json(output / "benchmark.json", outcome.model_dump(mode="json", by_alias=True))
    write_files(output, "benchmark", shown)
    write_report(output / "report.html", [output], command)
    Console().print(shown.terminal())
    typer.echo(marks_note(outcome))
    for line in search_lines(outcome):
        note(line)
    typer.echo(verdict(outcome))
    typer.echo(f"report: {printable(str(output))}/report.html; also benchmark.json, .md and .tex")
    typer.echo(f"next: {printable(_next(outcome, recipes, output, images))}")


def _able(names: list[str], base: "Recipe", *, everything: bool) -> list[str]:
    """The losses that the search has classes enough for; others are left out of all, or refused if named."""
    from softwarp.commands.progress import note
    from softwarp.training.step_batches import divide_able, room_of
    from softwarp.tuning.search import judged_recipe

    try:
        room = room_of(judged_recipe(base, objective="map@r", prune=True))
    except ValueError as error:
        raise ValueError(f"a search divides the training classes once more: {error}") from None
    able, reasons = divide_able(names, base.batches.accumulate, room)
    if reasons and not (everything and able):
        raise ValueError(f"{'; '.join(reasons)} in the search; leave it out of --losses, or add classes")
    for reason in reasons:
        note(f"left out: {reason} in the search")
    return able


def _next(outcome: "Benchmark", recipes: "dict[str, Recipe]", output: Path, images: Path | None) -> str:
    """The command that trains the best loss; written to best.yaml with what the search found.

    Where no loss beats the frozen features, it is the one that searches with these.
    """
    from softwarp.files import write_text
    from softwarp.recipe.overrides import dump_recipe
    from softwarp.tuning.search import apply

    best, part = outcome.entries[0], recipes[outcome.entries[0].loss].data
    write_text(output / "best.yaml", dump_recipe(apply(recipes[best.loss], best.settings)))
    pair = outcome.against_frozen(best.loss)
    if pair is not None and pair.difference <= 0 and images is not None and part.name in ("folder", "csv"):
        from softwarp.commands.train import index_command
        from softwarp.fair.benchmark import FROZEN

        # The features that were judged: at the same crop, and untrained ones if these were.
        return index_command(output / FROZEN / f"seed-{recipes[best.loss].seed}", images, part.depth)
    return shlex.join(["softwarp", "train", str(output / "best.yaml")])


def write_files(folder: Path, name: str, shown: "Table") -> None:
    """Write a table as Markdown and LaTeX."""
    from softwarp.files import write_text

    write_text(folder / f"{name}.md", shown.markdown())
    write_text(folder / f"{name}.tex", shown.latex())


def _trainings(seeds: int) -> "Callable[[Mapping[str, Recipe], int], list[Training]]":
    """What a benchmark with these recipes and so many trials trains."""
    from softwarp.fair.cost import Training
    from softwarp.tuning.search import judged_recipe

    def of(recipes: "Mapping[str, Recipe]", trials: int) -> "list[Training]":
        trainings = []
        for recipe in recipes.values():
            searched = judged_recipe(recipe, objective="map@r", prune=True)
            looks = sum(phase.epochs for phase in recipe.phases) // searched.evaluation.every
            trainings += [Training(recipe, seeds), Training(searched, trials, looks=looks, kept=False)]
        return trainings

    return of


def _batches(recipe: "Recipe", room: "Room") -> str:
    from softwarp.commands.plans import batch_line
    from softwarp.training.step_batches import fit_batches, room_of
    from softwarp.tuning.search import judged_recipe

    searched = judged_recipe(recipe, objective="map@r", prune=True)
    there = room_of(searched)
    return batch_line([("search", fit_batches(searched, there), there), ("final runs", recipe, room)])


def _is_images(data: str) -> bool:
    return Path(data).is_dir() or Path(data).suffix.lower() == ".csv"
