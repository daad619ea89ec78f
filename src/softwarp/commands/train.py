"""`softwarp train`: a recipe, or a folder of images -> a finished run."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softwarp.commands.recipes import Depth, Words, choose, protocol_of
from softwarp.files import printable

if TYPE_CHECKING:
    from softwarp.recipe.schema import DataPart, Recipe
    from softwarp.runs.repeats import Repeats
    from softwarp.runs.run import Result
    from softwarp.tables import Table


def train(
    words: Words = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Your images, FOLDER/CLASS/IMAGE or a CSV file (path,label); needs no recipe."),
    ] = None,
    depth: Depth = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the run. Default: runs/RECIPE-PROTOCOL.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Fail unless there is a run to resume.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Restart, even if the folder holds a run.")] = False,
    seeds: Annotated[
        int, typer.Option(min=1, help="Number of seeds to train with; reports mean and deviation.")
    ] = 1,
    protocol: Annotated[
        str | None,
        typer.Option(
            help="validation: train on half of the training classes, evaluate on the other half, as often as "
            "you like; test: train on all of them, evaluate once on the test classes."
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(help="With --data: crop and epochs that fit into this time, like 90s, 10 min or 1h."),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="With --data: print the recipe of the final model.")
    ] = False,
) -> None:
    """Train an embedding model from a recipe, or on your own images, and evaluate it on unseen classes.

    A given split with the same classes in train and test is a closed set: its test images are looked up among
    the training images.

    \b
    softwarp train --data my_images            your own folder, settings chosen from the data
    softwarp train cub_lite data.root=CUB      a recipe and where its data is
    softwarp train loss.name=proxy_nca_pp      another loss, on the built-in glyphs

    The same command resumes a run that was stopped or crashed. Several processes:
    torchrun --nproc-per-node 2 -m softwarp train ...
    """
    if resume and fresh:
        raise ValueError("--resume and --fresh exclude each other: choose one")
    if budget is not None and data is None:
        raise ValueError("--budget needs --data; a recipe sets its own epochs and crop")
    from softwarp.commands.progress import note

    with _stopped_early():
        from softwarp import processes
        from softwarp.data.tables import find_root
        from softwarp.files import check_writable
        from softwarp.recipe.overrides import dump_recipe
        from softwarp.runs.repeats import summarise
        from softwarp.runs.run import Run

        name, recipe = choose(words or [], data, protocol, depth)
        folder = output or Path("runs") / f"{name}-{recipe.evaluation.split}"
        if resume and not any(folder.glob("**/checkpoint*.pt")):
            raise ValueError(f"{folder} holds no run to resume; omit --resume, or set --output")
        if recipe.data.name != "glyphs":
            find_root(recipe.data.name, recipe.data.root)
        check_writable(folder)
        settled = ""
        if data is None and processes.is_main():
            note(protocol_of(recipe))
        if data is not None:
            from softwarp.commands.train_own import settle

            recipe, settled = settle(
                recipe,
                folder,
                lambda each, place: _run(each, place, not fresh),
                changes=words or [],
                budget=budget,
                seeds=seeds,
                fresh=fresh,
            )
            note(settled)
            if verbose and processes.is_main():
                typer.echo(f"# {printable(str(folder))}/recipe.yaml\n{dump_recipe(recipe)}")
        if data is None and not fresh:
            _check_seeds(recipe, folder, seeds)
        if seeds > 1 and processes.is_main():
            (folder / "seeds.json").unlink(missing_ok=True)  # of an earlier set
        results: list[Result] = []
        for seed in range(recipe.seed, recipe.seed + seeds):
            own = folder / f"seed-{seed}" if seeds > 1 else folder
            if seeds > 1:
                note(f"seed {seed}, {len(results) + 1} of {seeds}")
            seeded = recipe.model_copy(update={"seed": seed})
            if data is not None:
                from softwarp.commands.train_own import replace_other

                replace_other(own, seeded)
            finished = not fresh and Run(own).finished()
            results.append(_run(seeded, own, not fresh))
            if finished:
                note(f"{own} was already finished; --fresh trains again")
    processes.leave()
    if processes.is_main():
        _report(summarise(results), folder, settled, data, recipe.data)


def _check_seeds(recipe: "Recipe", folder: Path, seeds: int) -> None:
    """Raise a ValueError if a later seed's folder holds another run, before the first seed trains."""
    from softwarp.runs.run import Run
    from softwarp.training.step_batches import room_of

    places = {seed: Run(folder / f"seed-{seed}") for seed in range(recipe.seed, recipe.seed + seeds)}
    begun = {seed: run for seed, run in places.items() if seeds > 1 and run.started()}
    sha256 = room_of(recipe).sha256 if begun else ""
    for seed, run in begun.items():
        run.check_recipe(recipe.model_copy(update={"seed": seed}))
        if run.finished():
            run.check_data(run.result().data_sha256, sha256)


def _run(recipe: "Recipe", folder: Path, resume: bool) -> "Result":
    from softwarp.commands.progress import bars_until_stopped
    from softwarp.training.train import train

    with bars_until_stopped(folder) as on_event:
        return train(recipe, folder, resume=resume, on_event=on_event).result()


@contextmanager
def _stopped_early() -> Iterator[None]:
    """Handle Ctrl-C while libraries load; during training `bars_until_stopped` does."""
    try:
        yield
    except KeyboardInterrupt:
        from softwarp.commands.progress import note

        note("stopped before training began")
        raise typer.Exit(130) from None


def _report(repeats: "Repeats", folder: Path, settled: str, data: Path | None, part: "DataPart") -> None:
    """Print the metrics; with several seeds print mean and deviation, and write them to seeds.json.

    Args:
        settled: how the model was chosen; empty for a recipe.
        data: one's own images, if there are any.
        part: how the images were read, and which crop the model saw.
    """
    from rich.console import Console

    from softwarp.commands.progress import note
    from softwarp.runs.repeats import write_repeats

    if len(repeats.runs) > 1:
        write_repeats(folder, repeats)
    if repeats.runs[0].images.evaluated:
        Console().print(table(repeats).terminal())
    else:
        note("all classes were trained and none judged: softwarp verify RUN --pairs FILE")
    if settled and repeats.baseline:
        typer.echo(f"before: the frozen features; all figures at a crop of {part.crop} px")
    if settled:
        typer.echo(settled)
    before = repeats.baseline.get("map@r", 0.0)
    if repeats.runs[0].epochs and repeats.mean.get("map@r", before) < before:
        advice = (
            "To search with the frozen features, give the backbone's name, like efficientnet_lite0, as RUN"
            if settled
            else "Try fewer epochs or lower learning rates, and compare them on validation classes "
            "(--protocol validation), never on test classes"
        )
        note(f"MAP@R is lower than before training ({100 * before:.1f}). {advice}")
    for path in sorted({path for run in repeats.runs for path in (*run.broken_images, *run.left_out)}):
        note(f"skipped because it cannot be read: {path}")
    typer.echo(f"run: {printable(str(folder))}")
    report = f"softwarp report {printable(shlex.quote(str(folder)))}"
    if part.root is None or part.name not in ("folder", "csv"):
        typer.echo(f"next: {report}")
        return
    data = data or Path(part.root)
    run = folder if len(repeats.runs) == 1 else folder / f"seed-{repeats.runs[0].seed}"
    typer.echo(f"report: {report}\nnext: {printable(index_command(run, data, part.depth))}")


def index_command(run: Path, data: Path, depth: int | None) -> str:
    """Return the command that indexes the images that a run was trained on, with the same classes.

    >>> index_command(Path("run"), Path("/data/fruit.csv"), None)
    'softwarp index run /data/fruit.csv -o fruit.index'
    """
    name = data.resolve().name.removesuffix(".csv")
    words = ["softwarp", "index", str(run), str(data), "-o", f"{name}.index"]
    return shlex.join([*words, *(["--depth", str(depth)] if depth else [])])


def table(repeats: "Repeats") -> "Table":
    """Return a row per metric: its value, its deviation over seeds, and the untrained model's value."""
    from softwarp.tables import Cell, Table, figure, metric_title

    first, before = repeats.runs[0], repeats.baseline
    heads = ("metric", f"{len(repeats.runs)} seeds" if repeats.deviation else "value", "before")
    rows = []
    for name, value in repeats.mean.items():
        if name == "precision@1" or (name == "queries_without_positives" and not value):
            continue  # the same as recall@1; nothing to report
        trained = figure(name, value, repeats.deviation.get(name) if name != "queries" else None)
        untrained = figure(name, before[name]) if name in before else ""
        rows.append((Cell(metric_title(name)), Cell(trained), Cell(untrained)))
    title = f"{first.title}: {first.classes.evaluated} unseen {first.split} classes"
    if first.closed:
        title = f"{first.title}, closed set: {first.images.evaluated} {first.split} images of known classes"
    width = 3 if before else 2
    return Table(heads[:width], tuple(row[:width] for row in rows), title=title)
