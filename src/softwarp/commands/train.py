"""`softwarp train`: a recipe, or a folder of images -> a finished run."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softwarp.commands.options import Depth
from softwarp.commands.progress import bars_until_stopped, note, say
from softwarp.commands.recipes import Words, recipe_of_words

if TYPE_CHECKING:
    from softwarp.runs.repeats import Repeats
    from softwarp.tables import Table
    from softwarp.training.entry import Trained


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
    ship: Annotated[
        bool,
        typer.Option(
            "--ship",
            help="With --data: make the measured model once more, in the same way, on all classes, test "
            "classes included; its folder is RUN/ship.",
        ),
    ] = False,
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
    backbone: Annotated[
        str | None,
        typer.Option(
            help="With --data: the network, any timm name, or auto: the best of those whose weights are "
            "here, by held-out training classes. Default: auto; efficientnet_lite0 if a model.KEY is given."
        ),
    ] = None,
    fast: Annotated[
        str | None,
        typer.Option(help="With --data: only networks that take at most this per image here, like 20ms."),
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
    if backbone is not None and data is None:
        raise ValueError("--backbone needs --data; for a recipe: model.backbone=NAME")
    if fast is not None and data is None:
        raise ValueError("--fast needs --data; a recipe names its network")
    with _stopped_early():
        from softwarp import processes
        from softwarp.recipe.overrides import dump_recipe
        from softwarp.training.entry import SHIPS_OWN, read_own, train_runs

        if ship and data is None:
            raise ValueError(SHIPS_OWN)
        words = [*(words or []), *([f"data.depth={depth}"] if depth is not None else [])]
        own = None
        if data is not None:
            own = read_own(data, words, budget=budget, backbone=backbone, fast=fast, protocol=protocol)
            words = list(own.changes)
        name, recipe = recipe_of_words(words, data, protocol, table=None if own is None else own.table)
        folder = output or Path("runs") / f"{name}-{recipe.evaluation.split}"
        if resume and not any(folder.glob("**/checkpoint*.pt")):
            raise ValueError(f"{folder} holds no run to resume; omit --resume, or set --output")
    with bars_until_stopped(folder) as on_event:
        trained = train_runs(recipe, folder, own=own, seeds=seeds, ship=ship, fresh=fresh, on_event=on_event)
    processes.leave()
    if not processes.is_main():
        return
    if verbose and own is not None:
        say(f"# {folder}/recipe.yaml\n{dump_recipe(trained.recipe)}")
    _report(trained, folder, data)


@contextmanager
def _stopped_early() -> Iterator[None]:
    """Handle Ctrl-C while libraries load; during training `bars_until_stopped` does."""
    try:
        yield
    except KeyboardInterrupt:
        note("stopped before training began")
        raise typer.Exit(130) from None


def _report(trained: "Trained", folder: Path, data: Path | None) -> None:
    """Print the metrics, with several seeds their mean and deviation, and what comes next.

    Args:
        data: one's own images, if there are any.
    """
    from rich.console import Console

    from softwarp.runs.networks import networks_table

    repeats, settled, part = trained.repeats(), trained.settled, trained.recipe.data
    if repeats.runs[0].images.evaluated:
        Console().print(repeats_table(repeats).terminal())
    else:
        note("all classes were trained and none judged: softwarp verify RUN --pairs FILE")
    if settled and repeats.baseline:
        typer.echo(f"before: the frozen features; all figures at a crop of {part.crop} px")
    if trained.choice is not None and trained.choice.networks:
        Console().print(networks_table(trained.choice.networks, trained.choice.network).terminal())
    if trained.choice is not None and trained.choice.rungs:
        Console().print(trained.choice.table().terminal())
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
    say(f"run: {folder}")
    report = f"softwarp report {shlex.quote(str(folder))}"
    if part.root is None or part.name not in ("folder", "csv"):
        say(f"next: {report}")
        return
    data = data or Path(part.root)
    if trained.shipped is not None:
        say(f"shipped: {trained.shipped.folder}, the model to search with: {trained.shipped.result().caveat}")
    say(f"report: {report}\nnext: {index_command(trained.used.folder, data, part.depth)}")


def index_command(run: Path, data: Path, depth: int | None) -> str:
    """Return the command that indexes the images that a run was trained on, with the same classes.

    >>> index_command(Path("run"), Path("/data/fruit.csv"), None)
    'softwarp index run /data/fruit.csv -o fruit.index'
    """
    name = data.resolve().name.removesuffix(".csv")
    words = ["softwarp", "index", str(run), str(data), "-o", f"{name}.index"]
    return shlex.join([*words, *(["--depth", str(depth)] if depth else [])])


def repeats_table(repeats: "Repeats") -> "Table":
    """Return a row per metric: its value, its deviation over seeds, and the untrained model's value."""
    from softwarp.tables import figures_table

    head = f"{len(repeats.runs)} seeds" if repeats.deviation else "value"
    title = repeats.runs[0].headline
    return figures_table(repeats.mean, repeats.deviation, repeats.baseline, head=head, title=title)
