"""What a reality check found: figures with intervals for each loss, and a table like the paper's."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from softwarp.fair.each_loss import read_outcome
from softwarp.losses import card_of
from softwarp.recipe.overrides import write_out
from softwarp.recipe.schema import Recipe
from softwarp.runs.provenance import environment
from softwarp.runs.repeats import t_interval
from softwarp.runs.result import Counts
from softwarp.runs.run import Run
from softwarp.tables import Cell, Table

CATEGORIES = ("complete", "ensemble", "aggregate")  # in the order of the paper's tables
METRICS = {"map@r": "MAP@R", "r_precision": "RP", "precision@1": "P@1"}

Figures = dict[str, dict[str, tuple[float, float]]]  # by category and metric: mean, half of the interval


class RealityEntry(BaseModel):
    """What one loss reached; without figures if a training blew up."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    loss: str
    title: str
    settings: dict[str, float | int | str | bool]  # found by the search
    on_bounds: dict[str, str]  # those of them that are at the lower or upper end of their range
    validation: float | None  # mean over folds of what it found
    course: tuple[float, ...] = ()  # the best value after each trial of the search
    epochs: tuple[int, ...] = ()  # those of the complete model, by phase
    values: dict[str, dict[str, tuple[float, ...]]] = {}  # each reproduction's, by category and metric
    mean: dict[str, dict[str, float]] = {}
    interval: dict[str, dict[str, tuple[float, float]]] = {}  # 95%, Student's t over reproductions
    blew_up: str = ""


class RealityCheck(BaseModel):
    """All losses in the order given: reality_check.json."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
    version: Literal[1] = Field(1, alias="schema")
    command: str
    trials: int
    reproductions: int
    folds: int
    sizes: dict[str, int]  # dimensions of the embeddings, by category
    classes: Counts  # those of the complete models
    images: Counts
    entries: tuple[RealityEntry, ...]
    recipe: dict[str, Any]  # the first loss's, before the search
    data_sha256: str
    environment: dict[str, Any]

    def _repr_html_(self) -> str:
        return reality_table(self).html()


def read_reality_check(
    folder: Path, recipes: Mapping[str, Recipe], *, trials: int, reproductions: int, size: int, command: str
) -> RealityCheck:
    """Return the outcome of a finished study."""
    first = next(iter(recipes.values()))
    folds = first.evaluation.folds
    entries = [_entry(folder / name, recipe, reproductions, folds) for name, recipe in recipes.items()]
    whole = next((entry for entry in entries if entry.mean), None)
    if whole is None:
        raise ValueError(f"no loss could be trained; the last blew up: {entries[-1].blew_up}")
    result = Run(folder / whole.loss / "0" / "complete").result()
    return RealityCheck(
        command=command,
        trials=trials,
        reproductions=reproductions,
        folds=folds,
        sizes={
            "complete": size,
            "ensemble": folds * first.model.embedding_size,
            "aggregate": first.model.embedding_size,
        },
        classes=result.classes,
        images=result.images,
        entries=tuple(entries),
        recipe=write_out(first),
        data_sha256=result.data_sha256,
        environment=environment(),
    )


def _entry(folder: Path, recipe: Recipe, reproductions: int, folds: int) -> RealityEntry:
    found = read_outcome(folder / "search")
    places = [folder / str(number) for number in range(reproductions)]
    parts = {
        f"fold-{fold}": [read_outcome(place / f"fold-{fold}") for place in places] for fold in range(folds)
    }
    parts |= {kind: [read_outcome(place / kind) for place in places] for kind in ("ensemble", "complete")}
    entry = RealityEntry(
        loss=folder.name,
        title=card_of(recipe.loss.name).title,
        settings=found["settings"],
        on_bounds=found["on_bounds"],
        validation=found["value"],
        course=found.get("course", ()),
    )
    blew_up = next((each["blew_up"] for some in parts.values() for each in some if each["blew_up"]), "")
    if blew_up:
        return entry.model_copy(update={"blew_up": blew_up})
    values = {kind: _values(parts[kind]) for kind in ("complete", "ensemble")}
    models = [_values(parts[f"fold-{fold}"]) for fold in range(folds)]
    values["aggregate"] = {
        metric: tuple(
            statistics.mean(each) for each in zip(*(model[metric] for model in models), strict=True)
        )
        for metric in METRICS
    }
    return entry.model_copy(
        update={
            "epochs": tuple(parts["complete"][0]["epochs"]),
            "values": values,
            "mean": {kind: {m: statistics.mean(v) for m, v in each.items()} for kind, each in values.items()},
            "interval": {kind: {m: t_interval(v) for m, v in each.items()} for kind, each in values.items()},
        }
    )


def _values(outcomes: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float, ...]]:
    return {metric: tuple(each["metrics"][metric] for each in outcomes) for metric in METRICS}


def figures_of(entry: RealityEntry) -> Figures:
    """Return mean and half of the interval, in percent; nothing if a training blew up."""
    return {
        kind: {
            m: (100 * each[m], 50 * (entry.interval[kind][m][1] - entry.interval[kind][m][0]))
            for m in METRICS
        }
        for kind, each in entry.mean.items()
    }


def reality_table(outcome: RealityCheck) -> Table:
    """Return a row per loss: figures with intervals in three categories."""
    title = (
        f"{outcome.classes.evaluated} test classes, mean and 95% interval of {outcome.reproductions} "
        f"reproductions, {outcome.trials} trials"
    )
    rows = {entry.title + " (blew up)" * bool(entry.blew_up): figures_of(entry) for entry in outcome.entries}
    return category_table(rows, outcome.sizes, title=title)


def category_table(rows: Mapping[str, Figures], sizes: Mapping[str, int], *, title: str = "") -> Table:
    """Return a row per loss and a column per category and metric, as Tables 6 to 8 of the paper.

    The best of a column is bold and the second best underlined.

    Args:
        rows: mean and half of the interval by loss, category and metric, in percent.
    """
    columns = [(kind, metric) for kind in CATEGORIES for metric in METRICS]
    ranks = {
        (kind, metric): sorted({row[kind][metric][0] for row in rows.values() if row}, reverse=True)
        for kind, metric in columns
    }

    def cell(row: Figures, kind: str, metric: str) -> Cell:
        if not row:
            return Cell("")
        (mean, half), order = row[kind][metric], ranks[kind, metric]
        text = f"{mean:.2f} ± {half:.2f}"
        return Cell(text, best=mean == order[0], second=len(order) > 1 and mean == order[1])

    return Table(
        ("Method", *(METRICS[metric] for _, metric in columns)),
        tuple((Cell(name), *(cell(row, *column) for column in columns)) for name, row in rows.items()),
        title=title,
        groups=tuple((f"{kind.capitalize()} ({sizes[kind]}-dim)", len(METRICS)) for kind in CATEGORIES),
    )
