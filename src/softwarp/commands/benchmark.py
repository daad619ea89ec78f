"""`softwarp benchmark`: losses compared fairly."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softwarp.files import printable

if TYPE_CHECKING:
    from softwarp.benchmark import Benchmark, Entry
    from softwarp.recipe import Recipe
    from softwarp.tables import Table

SHOWN = 3  # losses in the galleries


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
    output: Annotated[Path, typer.Option(help="Folder of the study.")] = Path("runs/benchmark"),
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
    from softwarp.commands.recipes import choose
    from softwarp.files import write_json
    from softwarp.memory import freed_memory_kept
    from softwarp.tasks import work

    named, images = (data, None) if data is None or not _is_images(data) else (None, Path(data))
    _, recipe = choose([*([named] if named else []), *(words or [])], images, "test")
    recipes = recipe_for_each(judged_once(recipe), parse_losses(losses))
    if not dry_run:
        open_benchmark(output, recipes, trials=trials)
    note(_plan(recipes, output, trials, seeds))
    if dry_run:
        return
    with freed_memory_kept(), bars_until_stopped(output) as progress:
        work(tasks_of(recipes, trials=trials, seeds=seeds, storage=storage), output, progress=progress)
    command = shlex.join(["softwarp", *sys.argv[1:]])
    outcome = read_benchmark(output, recipes, trials=trials, seeds=seeds, command=command)
    shown = table(outcome)
    write_json(output / "benchmark.json", outcome.model_dump(mode="json", by_alias=True))
    write_files(output, "benchmark", shown)
    write_report(output, outcome, shown)
    Console().print(shown.terminal())
    typer.echo(f"report: {printable(str(output))}/report.html; also benchmark.json, .md and .tex")


def table(outcome: "Benchmark") -> "Table":
    """Return a row per loss, best first: metrics, and how far it is behind the best."""
    from softwarp.benchmark import METRICS
    from softwarp.tables import Cell, Row, Table, metric_table

    rows = [
        Row((entry.title + " (blew up)" * bool(entry.blew_up),), entry.mean, entry.deviation)
        for entry in outcome.entries
    ]
    left = metric_table(rows, METRICS, ("loss",))
    behind = [outcome.behind(entry.loss) for entry in outcome.entries]
    cells = [
        (
            Cell("" if pair is None else f"{_points(-pair.difference)} {pair.marks}".strip()),
            Cell("" if pair is None or pair.over_seeds is None else _between(pair.over_seeds)),
            Cell("" if pair is None else _between(pair.over_classes)),
        )
        for pair in behind
    ]
    title = (
        f"{len(rows)} losses on {outcome.classes['evaluated']} unseen test classes: {outcome.trials} trials "
        f"and {outcome.seeds} seed{'s' * (outcome.seeds > 1)} each"
    )
    return Table(
        (*left.heads, "behind the best", "over seeds", "over classes"),
        tuple((*row, *more) for row, more in zip(left.rows, cells, strict=True)),
        title=title,
    )


def write_files(folder: Path, name: str, shown: "Table") -> None:
    """Write a table as Markdown and LaTeX."""
    from softwarp.files import write_text

    write_text(folder / f"{name}.md", shown.markdown())
    write_text(folder / f"{name}.tex", shown.latex())


def write_report(folder: Path, outcome: "Benchmark", shown: "Table") -> None:
    """Write report.html, with the galleries of the best losses."""
    from softwarp.benchmark import METRIC
    from softwarp.report.benchmark import write_page
    from softwarp.runs import Run

    ranked = [entry for entry in outcome.entries if entry.mean]
    found = {entry.title: outcome.behind(entry.loss) for entry in ranked}
    epochs = sum(phase["epochs"] for phase in outcome.recipe["phases"])
    first = outcome.recipe["seed"]
    write_page(
        folder / "report.html",
        shown,
        text=f"Every loss was trained with the same network, batches and {epochs} epochs. {outcome.trials} "
        "settings of each were compared on validation classes by MAP@R; the best was trained on "
        f"{outcome.classes['train']} classes with {outcome.seeds} seed(s) and judged once on "
        f"{outcome.classes['evaluated']} other classes ({outcome.images['evaluated']} images).",
        seeds={entry.title: entry.seeds[METRIC] for entry in ranked},
        behind={title: pair for title, pair in found.items() if pair is not None},
        best={entry.title: Run(folder / entry.loss / f"seed-{first}") for entry in ranked[:SHOWN]},
        about={
            "command": outcome.command,
            "settings found": "; ".join(f"{entry.title}: {_settings(entry)}" for entry in ranked),
            "images": f"sha256 {outcome.data_sha256}",
            "machine": ", ".join(
                f"{key} {outcome.environment[key]}" for key in ("device", "threads", "python")
            ),
        },
    )


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


def _points(value: float) -> str:
    return f"{100 * value:+.1f}".replace("-", "\N{MINUS SIGN}")


def _between(interval: tuple[float, float]) -> str:
    return " to ".join(_points(-end) for end in reversed(interval))


def _settings(entry: "Entry") -> str:
    """The settings that the search found; a value on a bound of its range is followed by that bound."""
    shown = {
        key: f"{each:.3g}" if isinstance(each, float) else f"{each}" for key, each in entry.settings.items()
    }
    bounds = {key: f" ({entry.on_bounds[key]} bound)" if key in entry.on_bounds else "" for key in shown}
    return ", ".join(f"{key} {text}{bounds[key]}" for key, text in shown.items())
