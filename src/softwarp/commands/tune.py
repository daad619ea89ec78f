"""`softwarp tune`: searches hyper-parameters on validation classes."""

import os
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softwarp.commands.recipes import Words, choose, protocol_of
from softwarp.files import printable

if TYPE_CHECKING:
    from softwarp.recipe import Recipe
    from softwarp.tune import Study

TRIALS = 30  # without --trials and --hours


def tune(
    words: Words = None,
    data: Annotated[
        Path | None, typer.Option(help="Your images, FOLDER/CLASS/IMAGE or a CSV file; needs no recipe.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the search. Default: runs/RECIPE-tune.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Trials of all workers together. Default: 30.")
    ] = None,
    hours: Annotated[
        float | None, typer.Option(help="In place of --trials: hours of training, over all workers.")
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
    storage: Annotated[
        str | None, typer.Option(help="Database that machines share, like postgresql://USER@HOST/NAME.")
    ] = None,
    strategy: Annotated[
        str | None, typer.Option(help="paper: first without the warp, then the warp, then the second phase.")
    ] = None,
    prune: Annotated[bool, typer.Option(help="End trials early that are below the median.")] = True,
) -> None:
    """Search the hyper-parameters of a recipe, or for your own images, on validation classes.

    \b
    softwarp tune cub_lite data.root=CUB --trials 20
    softwarp tune --data my_images --hours 2
    softwarp tune loss.name=proxy_anchor --space loss.settings.margin=float:0:0.5

    Test classes are never loaded. The same command resumes a search. Start it several times, with the same
    --output on one machine or the same --storage on many: the workers share the trials. The best settings are
    written to best.yaml: softwarp train OUTPUT/best.yaml
    """
    if "WORLD_SIZE" in os.environ:
        raise ValueError("a search runs one process per trial; start several without torchrun instead")
    if strategy not in (None, "paper"):
        raise ValueError(f"--strategy is paper or omitted, got {strategy!r}")
    changes = dict(_change(each) for each in space or [])
    name, recipe = choose(words or [], data, None)
    folder = output or Path("runs") / f"{name}-tune"
    options: dict[str, Any] = {
        "trials": TRIALS if trials is None and hours is None else trials,
        "hours": hours,
        "sampler": sampler,
        "objective": objective,
        "folds": folds,
        "storage": storage,
        "prune": prune,
    }
    from softwarp.commands.progress import bars_until_stopped, note
    from softwarp.memory import freed_memory_kept
    from softwarp.tune import check_search, fold_runs, space_of

    if strategy is None:  # a mistake is said before anything else
        check_search(recipe, space_of(recipe, changes), options["trials"], hours, sampler, objective)
    judged = recipe.evaluation.model_copy(update={"split": "validation"})
    first, _ = fold_runs(recipe.model_copy(update={"evaluation": judged}), folder, folds)[0]
    note(protocol_of(first))
    with freed_memory_kept(), bars_until_stopped(folder) as progress:
        if strategy == "paper":
            from softwarp.paper_strategy import search_like_the_paper

            studies, best = search_like_the_paper(
                recipe, folder, changes=changes, progress=progress, **options
            )
        else:
            from softwarp.tune import search

            study = search(recipe, folder, space=space_of(recipe, changes), progress=progress, **options)
            studies, best = {"": study}, study.best_recipe()
    _report(studies, best, folder)


def _change(text: str) -> tuple[str, str]:
    key, equals, parameter = text.partition("=")
    if not (key and equals and parameter):
        raise ValueError(f"--space {text}: write KEY=RANGE, like loss.settings.alpha=log:1:40")
    return key, parameter


def _report(studies: "dict[str, Study]", best: "Recipe", folder: Path) -> None:
    from rich.console import Console

    from softwarp.commands.progress import note
    from softwarp.files import write_json, write_text
    from softwarp.overrides import dump_recipe
    from softwarp.report.tuning import bound_sentences, short_table, states
    from softwarp.report.write import write_report

    for title, study in studies.items():
        if title:
            typer.echo(f"{title}: {states(study)}")
        Console().print(short_table(study).terminal())
        for sentence in bound_sentences(study):
            note(sentence)
    write_text(folder / "best.yaml", dump_recipe(best))
    write_json(folder / "trials.json", {title or "search": _rows(study) for title, study in studies.items()})
    write_report(folder / "report.html", [folder], shlex.join(["softwarp", *sys.argv[1:]]))
    place = printable(str(folder))
    typer.echo(f"report: {place}/report.html\nnext: softwarp train {place}/best.yaml")


def _rows(study: "Study") -> list[dict[str, Any]]:
    return [asdict(trial) | {"folder": trial.folder.name} for trial in study.trials]
