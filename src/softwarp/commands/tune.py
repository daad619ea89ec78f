"""`softwarp tune`: searches hyper-parameters on validation classes."""

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softwarp.commands.numbers import finite
from softwarp.commands.plan_options import BudgetOption, DryRun
from softwarp.commands.recipes import Depth, Words, protocol_of, recipe_of_words
from softwarp.files import printable

if TYPE_CHECKING:
    from softwarp.fair.cost import Training
    from softwarp.recipe.schema import Recipe
    from softwarp.tuning.search import Study

TRIALS = 30  # without --trials and --hours


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
    hours: Annotated[
        float | None,
        typer.Option(callback=finite, help="In place of --trials: hours of training, over all workers."),
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
    budget: BudgetOption = None,
    dry_run: DryRun = False,
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
    name, recipe = recipe_of_words(words or [], data, None, depth)
    folder = output or Path("runs") / f"{name}-tune"
    if hours is not None and budget is not None:
        raise ValueError("--hours and --budget exclude each other: choose one")
    from softwarp.tuning.search import check_search, search, space_of

    ranges = space_of(recipe, changes) if strategy is None else {}
    check_search(
        recipe, ranges, TRIALS if hours is None and trials is None else trials, hours, sampler, objective
    )
    recipe, trials = _plan(recipe, folder, trials, hours, folds, prune, budget, dry_run)
    if dry_run:
        return
    options: dict[str, Any] = {
        "trials": trials,
        "hours": hours,
        "sampler": sampler,
        "objective": objective,
        "folds": folds,
        "storage": storage,
        "prune": prune,
    }
    from softwarp.commands.progress import bars_until_stopped

    with bars_until_stopped(folder) as on_event:
        if strategy == "paper":
            from softwarp.tuning.paper_strategy import search_like_the_paper

            studies, best = search_like_the_paper(
                recipe, folder, changes=changes, on_event=on_event, **options
            )
        else:
            study = search(recipe, folder, space=ranges, on_event=on_event, **options)
            studies, best = {"": study}, study.best_recipe()
    _report(studies, best, folder)


def _plan(
    recipe: "Recipe",
    folder: Path,
    trials: int | None,
    hours: float | None,
    folds: int | None,
    prune: bool,
    budget: str | None,
    dry_run: bool,
) -> "tuple[Recipe, int | None]":
    """The recipe with epochs, and the number of trials, that fit into the budget; says what will happen."""
    from functools import partial

    from softwarp.commands.progress import note
    from softwarp.fair.plan import batch_line, fit_study
    from softwarp.files import check_writable
    from softwarp.training.step_batches import fit_batches, room_of
    from softwarp.tuning.search import check_steps, fold_runs, judged_recipe

    judged = judged_recipe(recipe, objective="map@r", prune=prune)
    check_steps(judged, folder, folds)
    note(protocol_of(fold_runs(judged, folder, folds)[0][0]))
    if not dry_run:
        check_writable(folder)
    number = TRIALS if trials is None and hours is None else trials
    if budget is not None or (dry_run and hours is None):
        trainings = partial(_trainings, folder=folder, folds=folds, prune=prune)
        plan = fit_study(
            {"": recipe}, trainings, folder, trials=trials, usual=TRIALS, budget=budget, dry_run=dry_run
        )
        recipe, number = plan.recipes[""], plan.trials
        if not dry_run:
            plan.keep(folder)
        epochs = sum(phase.epochs for phase in recipe.phases)
        note(f"{number} trials of {epochs} epochs{f' x {folds} folds' if folds else ''}: {plan.cost}")
    own, _ = fold_runs(judged, folder, folds)[0]
    room = room_of(own)
    note(batch_line([("search", fit_batches(own, room), room)]))
    return recipe, number


def _trainings(
    recipes: "Mapping[str, Recipe]", trials: int, *, folder: Path, folds: int | None, prune: bool
) -> "list[Training]":
    """What a search trains, if no trial ends early."""
    from softwarp.fair.cost import Training
    from softwarp.tuning.search import fold_runs, judged_recipe

    judged = judged_recipe(recipes[""], objective="map@r", prune=prune)
    looks = sum(phase.epochs for phase in judged.phases) // (judged.evaluation.every or 1)
    own, _ = fold_runs(judged, folder, folds)[0]
    return [Training(own, trials * (folds or 1), looks=looks if prune else 0, kept=False)]


def _change(text: str) -> tuple[str, str]:
    key, equals, parameter = text.partition("=")
    if not (key and equals and parameter):
        raise ValueError(f"--space {text}: write KEY=RANGE, like loss.settings.alpha=log:1:40")
    return key, parameter


def _report(studies: "dict[str, Study]", best: "Recipe", folder: Path) -> None:
    from rich.console import Console

    from softwarp.commands.progress import note
    from softwarp.files import write_json, write_text
    from softwarp.recipe.overrides import dump_recipe
    from softwarp.report.tuning import bound_sentences, rising_sentences, short_table, states
    from softwarp.report.write import write_report

    for title, study in studies.items():
        if title:
            typer.echo(f"{title}: {states(study)}")
        Console().print(short_table(study).terminal())
        for sentence in (*bound_sentences(study), *rising_sentences(study)):
            note(sentence)
    write_text(folder / "best.yaml", dump_recipe(best))
    write_json(folder / "trials.json", {title or "search": _rows(study) for title, study in studies.items()})
    write_report(folder / "report.html", [folder], shlex.join(["softwarp", *sys.argv[1:]]))
    best_file = printable(shlex.join(["softwarp", "train", str(folder / "best.yaml")]))
    typer.echo(f"report: {printable(str(folder))}/report.html\nnext: {best_file}")


def _rows(study: "Study") -> list[dict[str, Any]]:
    return [asdict(trial) | {"folder": trial.folder.name} for trial in study.trials]
