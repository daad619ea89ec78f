"""`softwarp benchmark`: losses compared fairly."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softwarp.commands.options import Budget, Depth, DryRun, Storage
from softwarp.commands.progress import bars_until_stopped, note, say, this_command

if TYPE_CHECKING:
    from softwarp.fair.benchmark_result import Benchmark
    from softwarp.recipe.schema import Recipe


def benchmark(
    words: Annotated[
        list[str] | None, typer.Argument(help="Changes like phases.0.epochs=5 data.max_classes=250.")
    ] = None,
    losses: Annotated[
        str, typer.Option(help="Losses to compare, like arcface,hist,FILE.py:CLASS; or all.")
    ] = "",
    data: Annotated[
        str | None,
        typer.Option(help="Your images (FOLDER/CLASS/IMAGE or a CSV file), or a recipe. Default: glyphs."),
    ] = None,
    depth: Depth = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Trials of the search, for each loss. Default: 10.")
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
    storage: Storage = None,
    budget: Budget = None,
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

    from softwarp.commands.recipes import recipe_of_words
    from softwarp.fair.benchmark_result import benchmark_table, marks_note, verdict
    from softwarp.fair.compare import plan_benchmark, run_benchmark
    from softwarp.report.write import write_report

    place = Path(data or "")
    images = place if data and (place.is_dir() or place.suffix.lower() == ".csv") else None
    named = [data] if data and images is None else []
    name, recipe = recipe_of_words([*named, *(words or [])], images, "test", depth)
    output = output or Path("runs") / ("benchmark" if data is None else f"{name}-benchmark")
    with bars_until_stopped(output) as on_event:
        planned = plan_benchmark(
            losses,
            recipe,
            output,
            trials=trials,
            seeds=seeds,
            budget=budget,
            dry_run=dry_run,
            on_event=on_event,
        )
        for line in planned.lines():
            note(line)
        if dry_run:
            return
        outcome = run_benchmark(planned, command=this_command(), storage=storage, on_event=on_event)
    write_report(output / "report.html", [output], this_command())
    Console().print(benchmark_table(outcome).terminal())
    typer.echo(marks_note(outcome))
    typer.echo(verdict(outcome))
    say(f"report: {output}/report.html; also benchmark.json, .md and .tex")
    say(f"next: {_next(outcome, planned.plan.recipes, output, images)}")


def _next(outcome: "Benchmark", recipes: "dict[str, Recipe]", output: Path, images: Path | None) -> str:
    """The command that trains the best loss with what the search found.

    Where no loss beats the frozen features, it is the one that searches with these.
    """
    best, part = outcome.entries[0], recipes[outcome.entries[0].loss].data
    pair = outcome.against_frozen(best.loss)
    if pair is not None and pair.difference <= 0 and images is not None and part.name in ("folder", "csv"):
        from softwarp.commands.train import index_command
        from softwarp.fair.benchmark import FROZEN

        # The features that were judged: at the same crop, and untrained ones if these were.
        return index_command(output / FROZEN / f"seed-{recipes[best.loss].seed}", images, part.depth)
    return shlex.join(["softwarp", "train", str(output / "best.yaml")])
