"""softwarp train, recipes and show."""

import os
import shlex
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softwarp.memory import freed_memory_kept

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table

    from softwarp.recipe import Recipe

Words = Annotated[
    list[str] | None,
    typer.Argument(
        help="A recipe, by name or file, and changes to it like phases.0.epochs=5 loss.name=arcface; "
        "a setting of the loss is loss.settings.NAME=VALUE, and `softwarp losses LOSS` lists them."
    ),
]


def train(
    words: Words = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Your images, FOLDER/CLASS/IMAGE or a CSV file (path,label): no recipe is needed."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="The run's folder; else runs/RECIPE-PROTOCOL.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where it stopped; the same command does so, too.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew, whatever is in the folder.")] = False,
    seeds: Annotated[
        int, typer.Option(min=1, help="Train with so many seeds; report mean and deviation.")
    ] = 1,
    protocol: Annotated[
        str | None,
        typer.Option(
            help="validation: train on half the training classes, evaluate on the others, as often as you "
            "like; test: train on all of them, evaluate on the test classes, once."
        ),
    ] = None,
) -> None:
    """Train an embedding model by a recipe, or on your own images, and evaluate it on unseen classes.

    \b
    softwarp train --data my_images            your own folder, settings chosen from the data
    softwarp train cub_lite data.root=CUB      a recipe and where its data is
    softwarp train loss.name=proxy_nca_pp      another loss, on the embedded glyphs

    A run that was stopped, by Ctrl-C or worse, goes on when the same command is given again. Several
    processes: torchrun --nproc-per-node 2 -m softwarp train ...
    """
    if resume and fresh:
        raise ValueError("--resume goes on and --fresh starts anew: choose one")
    with _stopped_early():
        from softwarp.recipe import check_root, dump_recipe

        name, recipe = _choose(words or [], data, protocol)
        folder = output or Path("runs") / f"{name}-{recipe.evaluation.split}"
        if resume and not any(folder.glob("**/checkpoint.pt")):
            raise ValueError(f"{folder} holds no run to go on with; leave --resume out, or give --output")
        check_root(recipe)
        if data is not None and _is_main_process():
            typer.echo(f"# {folder}/recipe.yaml\n{dump_recipe(recipe)}")
        results: list[dict[str, Any]] = []
        for seed in range(recipe.seed, recipe.seed + seeds):
            own = folder / f"seed-{seed}" if seeds > 1 else folder
            if seeds > 1:
                _note(f"seed {seed}, {len(results) + 1} of {seeds}")
            results.append(_run(recipe.model_copy(update={"seed": seed}), own, not fresh))
    if _is_main_process():
        _report(results, folder)


def recipes() -> None:
    """List the recipes that come with softwarp."""
    from rich.console import Console
    from rich.table import Column, Table

    from softwarp.recipe import find_recipe, read_recipe, recipe_names

    table = Table(Column("recipe", no_wrap=True), "data", "backbone", "loss", "epochs", "published")
    for name in recipe_names():
        recipe = read_recipe(find_recipe(name))
        epochs = " + ".join(str(phase.epochs) for phase in recipe.phases)
        published = recipe.paper.get("published", {})
        known = ", ".join(f"{metric} {value}" for metric, value in list(published.items())[:1])
        table.add_row(name, recipe.data.name, recipe.model.backbone, recipe.loss.name, epochs, known)
    Console().print(table)


def show(words: Words = None) -> None:
    """Print a recipe in full, every default written out, with changes to it like phases.0.epochs=5."""
    from softwarp.recipe import dump_recipe

    typer.echo(dump_recipe(_choose(words or [], None, None)[1]), nl=False)


def _choose(words: list[str], data: Path | None, protocol: str | None) -> "tuple[str, Recipe]":
    """Return a name for the run and its recipe."""
    from softwarp.recipe import change_loss, find_recipe, override, parse_recipe, read_settings

    names, changes = [word for word in words if "=" not in word], [word for word in words if "=" in word]
    if len(names) + (data is not None) > 1:
        raise ValueError(
            f"one recipe or --data is trained at a time, got {' and '.join(map(str, [*names, data]))}"
        )
    if protocol not in (None, "validation", "test"):
        raise ValueError(f"--protocol is validation or test, got {protocol!r}")
    if data is not None:
        import torch

        from softwarp.own_data import settings_for

        name, source = data.resolve().name.removesuffix(".csv"), f"recipe for {data}"
        settings = settings_for(
            data,
            protocol="validation" if protocol == "validation" else "test",
            cuda=torch.cuda.is_available(),
        )
    else:
        path = find_recipe(names[0] if names else "glyphs_warped_softmax")
        name, source, settings = path.stem, path.name, read_settings(path)
    for change in changes:
        if change.startswith("loss.name="):
            settings = change_loss(settings, change.partition("=")[2])
            name += f"-{settings['loss']['name']}"
    settings = override(settings, changes)
    if protocol:
        settings["evaluation"] = (settings.get("evaluation") or {}) | {"split": protocol}
    return name, parse_recipe(settings, source)


def _run(recipe: "Recipe", folder: Path, resume: bool) -> dict[str, Any]:
    from softwarp.runs import Run
    from softwarp.train import train

    finished = resume and Run(folder).finished()
    with freed_memory_kept(), bars_until_stopped(folder) as progress:
        result = train(recipe, folder, resume=resume, progress=progress).result()
    if finished:
        _note(f"{folder} was already finished; --fresh trains anew")
    return result


@contextmanager
def _stopped_early() -> Iterator[None]:
    """Answer a Ctrl-C that comes while libraries are loaded; during training `bars_until_stopped` does."""
    try:
        yield
    except KeyboardInterrupt:
        _note("stopped before training began")
        raise typer.Exit(130) from None


@contextmanager
def bars_until_stopped(folder: Path) -> "Iterator[Progress]":
    """Yield progress bars; Ctrl-C ends them with a line on what is kept and how to go on, exit code 130."""
    from softwarp.commands.progress import progress_bars
    from softwarp.train import StoppedError

    with progress_bars() as progress:
        try:
            yield progress
        except KeyboardInterrupt as error:
            progress.stop()
            _note(_how_to_go_on(folder, isinstance(error, StoppedError)))
            raise typer.Exit(130) from None


def _is_main_process() -> bool:
    return int(os.environ.get("RANK", "0")) == 0


def _note(text: str) -> None:
    if _is_main_process():
        typer.secho(text, fg="yellow", err=True)


def _how_to_go_on(folder: Path, saved: bool) -> str:
    if not saved and not any(folder.glob("**/recipe.yaml")):
        return "stopped before training began"
    start = "torchrun ... -m softwarp" if "WORLD_SIZE" in os.environ else "softwarp"
    again = shlex.join(word for word in sys.argv[1:] if word != "--fresh")
    last = (
        "the last checkpoint is kept"
        if any(folder.glob("**/checkpoint.pt"))
        else "there is no checkpoint yet"
    )
    kept = "nothing is lost" if saved else last
    return f"stopped; {kept}. To go on: {start} {again}"


def _report(results: list[dict[str, Any]], folder: Path) -> None:
    """Print the metrics; with several seeds mean and deviation, which also go to seeds.json."""
    from rich.console import Console

    metrics = {name: [result["metrics"][name] for result in results] for name in results[0]["metrics"]}
    mean = {name: statistics.mean(each) for name, each in metrics.items() if None not in each}
    deviation = {name: statistics.stdev(metrics[name]) for name in mean} if len(results) > 1 else {}
    if deviation:
        from softwarp.runs import write_json

        summary = {"seeds": len(results), "mean": mean, "deviation": deviation, "runs": results}
        write_json(folder / "seeds.json", summary)
    Console().print(_table(results, mean, deviation))
    before = results[0].get("baseline", {}).get("recall@1", 0.0)
    if mean["recall@1"] < before:
        text = f"recall@1 is lower than before training ({before:.4f})"
        typer.secho(f"{text}: train longer, or with lower learning rates", fg="yellow", err=True)
    broken = {path for result in results for path in result["broken_images"] + result["evaluation_left_out"]}
    for path in sorted(broken):
        typer.secho(f"skipped, because it cannot be read: {path}", fg="yellow", err=True)
    typer.echo(f"run: {folder}")


def _table(results: list[dict[str, Any]], mean: dict[str, float], deviation: dict[str, float]) -> "Table":
    from rich.table import Table

    first, zero = results[0], results[0].get("baseline", {})
    title = f"{first['name']}: {first['classes']['evaluated']} unseen {first['split']} classes"
    table = Table("metric", title=title)
    table.add_column(f"{len(results)} seeds" if deviation else "value", justify="right")
    if zero:
        table.add_column("untrained", justify="right")
    for name, value in mean.items():
        if name in ("precision@1", "queries_without_positives") and (name == "precision@1" or not value):
            continue  # the same as recall@1; nothing to tell
        text = f"{value:g}" if name.startswith("queries") else f"{value:.4f}"
        spread = f" ± {deviation[name]:.4f}" if deviation else ""
        table.add_row(
            name,
            text + spread,
            *([f"{zero[name]:.4f}" if name in zero and name != "queries" else ""] if zero else []),
        )
    return table
