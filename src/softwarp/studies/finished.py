"""Finished runs that a study measures again: those named on the command line, or those of the demo."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from softwarp.data.sources import Source, load_source
from softwarp.events import OnEvent
from softwarp.fair.tasks import Task, open_study, work
from softwarp.report.runs import ReportedRun, judged_entries
from softwarp.runs.run import Run
from softwarp.studies.demo import collect as train_demo

# What the command of such a study takes.
Runs = Annotated[
    list[Path] | None,
    typer.Argument(help="Finished runs, also of --seeds. Default: those of the demo, which are trained."),
]


def reported_runs(
    runs: Sequence[Path] | None, output: Path, *, quick: bool, on_event: OnEvent | None
) -> list[ReportedRun]:
    """Return the runs that are named; if none are, those of the demo, trained in the folder of the study."""
    demo = {} if runs else train_demo(output / "runs", seed=0, quick=quick, on_event=on_event)
    return judged_entries(runs or [run.folder for run in demo.values()])


def measure_entries(
    entries: Sequence[ReportedRun],
    output: Path,
    about: Mapping[str, Any],
    parts: Mapping[str, Callable[..., None]],
    *,
    on_event: OnEvent | None,
) -> list[list[dict[str, Any]]]:
    """Return for each entry, run by run, the content of result.json of each part; a study resumes.

    Args:
        about: what a folder must have been started with, besides the same runs.
        parts: by folder, what measures a part of `run` and writes result.json.
    """
    judged = [[each.metrics["map@r"] for each in entry.repeats.runs] for entry in entries]
    open_study(output, {**about, "runs": judged})

    def key(place: int, number: int, part: str) -> str:
        return f"{place}/{number}/{part}".removesuffix("/")

    tasks = [
        Task(key(place, number, part), partial(measure, run=run))
        for place, entry in enumerate(entries)
        for number, run in enumerate(entry.runs)
        for part, measure in parts.items()
    ]
    work(tasks, output, on_event=on_event)
    return [
        [
            {part: read_result(output / key(place, number, part)) for part in parts}
            for number in range(len(entry.runs))
        ]
        for place, entry in enumerate(entries)
    ]


def read_result(folder: Path) -> dict[str, Any]:
    """Return what a task wrote into its folder."""
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def source_of(run: Run) -> Source:
    """Return the images that a run was trained and judged on; raise a ValueError if they have changed."""
    recipe = run.recipe()
    source = load_source(recipe.data, recipe.evaluation.plan())
    run.check_data(run.result().data_sha256, source.sha256)
    return source
