"""`softwarp tune`: searches hyper-parameters on validation classes."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softwarp.commands.options import Budget, Depth, DryRun, Storage
from softwarp.commands.progress import bars_until_stopped, note, say, this_command
from softwarp.commands.recipes import Words, recipe_of_words

if TYPE_CHECKING:
    from softwarp.tuning.search import Study


def tune(
    words: Words = None,
    data: Annotated[
        Path | None, typer.Option(help="Your images, FOLDER/CLASS/IMAGE or a CSV file; needs no recipe.")
    ] = None,
    depth: Depth = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the search. Default: runs/RECIPE-tune.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Trials of all workers together. Default: 30.")
    ] = None,
    space: Annotated[
        list[str] | None,
        typer.Option(
            help="Range of a recipe key, like loss.settings.alpha=log:1:40, float:0:1, int:1:8, auto:0.1:10 "
            "(a factor of the automatic value), choice:a,b, or KEY=fixed. May be repeated."
        ),
    ] = None,
    sampler: Annotated[str, typer.Option(help="tpe, gp (Bayesian), random or grid.")] = "tpe",
    objective: Annotated[str, typer.Option(help="Metric on the validation classes.")] = "map@r",
    folds: Annotated[
        int | None, typer.Option(min=2, help="Judge by the mean over folds of the training classes.")
    ] = None,
    storage: Storage = None,
    strategy: Annotated[
        str | None, typer.Option(help="paper: first without the warp, then the warp, then the second phase.")
    ] = None,
    prune: Annotated[bool, typer.Option(help="End trials early that are below the median.")] = True,
    budget: Budget = None,
    dry_run: DryRun = False,
) -> None:
    """Search the hyper-parameters of a recipe, or for your own images, on validation classes.

    \b
    softwarp tune cub_lite data.root=CUB --trials 20
    softwarp tune --data my_images --budget 2h
    softwarp tune loss.name=proxy_anchor --space loss.settings.margin=float:0:0.5

    Test classes are never loaded. The same command resumes a search. Start it several times, with the same
    --output on one machine or the same --storage on many: the workers share the trials. The best settings are
    written to best.yaml: softwarp train OUTPUT/best.yaml
    """
    from softwarp.tuning.entry import tune

    ranges = dict(_range(each) for each in space or [])
    name, recipe = recipe_of_words(words or [], data, None, depth)
    folder = output or Path("runs") / f"{name}-tune"
    with bars_until_stopped(folder) as on_event:
        tuned = tune(
            recipe,
            space=ranges,
            trials=trials,
            sampler=sampler,
            objective=objective,
            folds=folds,
            storage=storage,
            strategy=strategy,
            prune=prune,
            budget=budget,
            dry_run=dry_run,
            output=folder,
            on_event=on_event,
        )
    if not dry_run:
        _report(tuned.searches, folder)


def _range(text: str) -> tuple[str, str]:
    key, equals, parameter = text.partition("=")
    if not (key and equals and parameter):
        raise ValueError(f"--space {text}: write KEY=RANGE, like loss.settings.alpha=log:1:40")
    return key, parameter


def _report(searches: "dict[str, Study]", folder: Path) -> None:
    from rich.console import Console

    from softwarp.report.tuning import bound_sentences, rising_sentences, short_table, states
    from softwarp.report.write import write_report

    for stage, study in searches.items():
        if len(searches) > 1:
            typer.echo(f"{stage}: {states(study)}")
        Console().print(short_table(study).terminal())
        for sentence in (*bound_sentences(study), *rising_sentences(study)):
            note(sentence)
    write_report(folder / "report.html", [folder], this_command())
    say(f"report: {folder}/report.html")
    say(f"next: {shlex.join(['softwarp', 'train', str(folder / 'best.yaml')])}")
