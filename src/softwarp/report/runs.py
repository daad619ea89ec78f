"""Finished runs -> the parts of a report: tables, curves, answers, confusions, maps, geometry, recipes."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os.path import commonpath
from pathlib import Path
from typing import Any

import yaml

from softwarp.export.model_card import public_settings
from softwarp.metrics import geometry_metrics
from softwarp.recipe.overrides import deciding_settings, write_out
from softwarp.recipe.phases import EvaluationPart
from softwarp.report.figures import curves
from softwarp.report.page import Section
from softwarp.report.spaces import space_parts
from softwarp.runs.repeats import Repeats, deviation_of, read_repeats, summarise
from softwarp.runs.run import Run
from softwarp.tables import Cell, Row, Table, metric_table

WITHOUT_EMBEDDINGS = Section(
    title="Images", text="No run has kept its embeddings to show images by.", level=3
)
JudgedOn = tuple[str, str, int, str, tuple[object, ...]]
METRICS = (
    *("recall@1", "recall@2", "recall@4", "recall@8", "map@r", "r_precision"),
    *("whole_gallery_recall@1", "whole_gallery_map@r", "knn@5", "nmi", "avg_dtp"),
)


@dataclass(frozen=True)
class ReportedRun:
    """A run, or runs that differ only in their seeds."""

    title: str
    runs: tuple[Run, ...]
    repeats: Repeats

    @property
    def measured(self) -> Repeats:
        """The figures; those of a shipped model are of the one that had not seen all classes."""
        return summarise([each.measured for each in self.repeats.runs])

    def judged_on(self) -> JudgedOn:
        """Return what tells whether two may be compared: folds judge as many classes, but others."""
        first, run = self.repeats.runs[0], self.runs[0]
        # Of several seeds there may be nothing left but their table.
        plan = run.recipe().evaluation if run.started() else EvaluationPart()
        folds = plan.fold is not None and first.split == "validation"
        fold = (plan.fold, plan.folds, plan.fold_seed, plan.fold_of) if folds else ()
        return first.data_sha256, first.split, first.classes.evaluated, plan.test_classes, fold


def read_entries(folders: Iterable[Path]) -> list[ReportedRun]:
    """Return the finished runs in these folders; a folder with a run per seed is one entry."""
    places = list(dict.fromkeys(folders))
    entries = []
    for folder, title in zip(places, short_titles(places), strict=True):
        repeats = read_repeats(folder)
        several = (folder / "seeds.json").is_file()
        own = [folder / f"seed-{each.seed}" if several else folder for each in repeats.runs]
        entries.append(ReportedRun(title, tuple(map(Run, own)), repeats))
    return entries


def judged_entries(folders: Iterable[Path]) -> list[ReportedRun]:
    """Return the same; raise a ValueError if a run was judged on no classes."""
    entries = read_entries(folders)
    for entry in entries:
        if "map@r" not in entry.repeats.mean:
            raise ValueError(
                f"{entry.runs[0].folder} was judged on no classes (evaluation.test_classes=none); "
                "leave it out"
            )
    return entries


def short_titles(folders: Sequence[Path]) -> list[str]:
    """Return the folders' names without the path that they share."""
    try:
        shared = Path(commonpath([folder.absolute().parent for folder in folders]))
    except ValueError:  # none, or on several drives
        return [str(folder) for folder in folders]
    return [folder.absolute().relative_to(shared).as_posix() for folder in folders]


def table_of(entries: Sequence[ReportedRun], metrics: Sequence[str]) -> Table:
    """Return a row per entry, and a row per untrained model they are compared with."""
    some = [name for name in metrics if all(name in entry.measured.mean for entry in entries)]
    rows = []
    for entry in entries:
        words = (entry.title, entry.repeats.runs[0].title, str(len(entry.runs)))
        rows.append(Row(words, entry.measured.mean, entry.measured.deviation))
    baselines = [entry.measured.baseline for entry in entries if entry.measured.baseline]
    for place, baseline in enumerate(baselines):
        if baseline not in baselines[:place]:
            rows.append(Row(("before training", "", ""), baseline, ranked=False))
    return metric_table(rows, some, ("run", "loss", "seeds"))


def run_parts(entries: Sequence[ReportedRun]) -> list[Section]:
    """Return the parts of all entries, those that were judged on the same classes together."""
    groups: dict[JudgedOn, list[ReportedRun]] = {}
    for entry in entries:
        groups.setdefault(entry.judged_on(), []).append(entry)
    parts = []
    for number, group in enumerate(groups.values(), 1):
        parts += _group_parts(group, "" if len(groups) == 1 else f"{number}-")
    return parts


def _group_parts(entries: Sequence[ReportedRun], prefix: str) -> list[Section]:
    first = entries[0].repeats.runs[0]
    data = entries[0].runs[0].recipe().data
    name = Path(data.root or data.name).name if data.name in ("folder", "csv") else data.name
    judged = first.measured
    title = f"{name}: {judged.classes.evaluated:,} {judged.split} classes"
    which = "other classes"
    if judged.closed:
        title = f"{name}: {judged.images.evaluated:,} {judged.split} images of known classes"
        which = "these classes, looked up among the training images or a given gallery (closed set)"
    seeds = "one seed each, which cannot tell luck from merit. " * (len(entries) > 1)
    if any(len(entry.runs) > 1 for entry in entries):
        seeds = "mean and deviation over seeds. "
    untrained = ", ".join(entry.title for entry in entries if not entry.repeats.runs[0].epochs)
    frozen = f" Not trained, the features of the backbone as they are: {untrained}." if untrained else ""
    caveats = ((entry.title, entry.repeats.runs[0].caveat) for entry in entries)
    shipped = "".join(f" {title}: {caveat}." for title, caveat in caveats if caveat)
    results = Section(
        title=f"Results on {title}",
        text=f"Trained on {judged.images.train:,} images of {judged.classes.train:,} classes, judged on "
        f"{judged.images.evaluated:,} images of {judged.classes.evaluated:,} {which}.{frozen}{shipped}",
        tables=[table_of(entries, METRICS)],
        note=f"Percentages; {seeds}AvgDTP is the mean distance from training embeddings to their own proxy, "
        "on the unit sphere for losses that compare by cosine. The best of a column is bold.",
    )
    histories = {entry.title: [run.history() for run in entry.runs] for entry in entries}
    training = Section(
        title="Training",
        figures=curves(f"{prefix}curve-", histories),
        side_by_side=True,
        note="The warped softmax pushes embeddings outward inside the radius alpha and pulls them back "
        "beyond it, so their mean distance to the proxy settles near alpha. Losses differ in scale: their "
        "values cannot be compared.",
        level=3,
    )
    trained = any(row for seeds in histories.values() for row in seeds)
    parts = [results, *([training] if trained else [])]
    own = [entry for entry in entries if "map@r" in entry.repeats.mean]  # test_classes none judges nothing
    ranked = sorted(own, key=lambda entry: -entry.repeats.mean["map@r"])
    kept = {entry.title: entry.runs[0] for entry in ranked if entry.runs[0].has_embeddings()}
    return [
        *parts,
        *(space_parts(kept, prefix, len(entries)) if kept else [WITHOUT_EMBEDDINGS]),
        *_geometry([entry for entry in entries if entry.title in kept]),
        _recipes(entries),
    ]


def _geometry(entries: Sequence[ReportedRun]) -> list[Section]:
    rows = []
    for entry in entries:
        found = [geometry_of(run) for run in entry.runs]
        mean = {name: statistics.mean(each[name] for each in found) for name in found[0]}
        spread = {name: deviation_of([each[name] for each in found]) for name in mean if len(found) > 1}
        known = {name: value for name, value in mean.items() if not math.isnan(value)}
        spread = {name: value for name, value in spread.items() if not math.isnan(value)}
        rows.append(Row((entry.title,), known, spread, ranked=False))
    if not rows:
        return []
    names = list(dict.fromkeys(name for row in rows for name in row.mean))
    note = "docs/metrics.md defines these. Lengths in one space cannot be compared with those in another."
    return [Section(title="Geometry", tables=[metric_table(rows, names, ("run",))], note=note, level=3)]


def geometry_of(run: Run) -> dict[str, float]:
    """Return the geometry of the embeddings that a run has kept."""
    arrays = run.load_embeddings()
    return geometry_metrics(arrays["embeddings"], arrays["labels"], distance=run.result().distance)


def _recipes(entries: Sequence[ReportedRun]) -> Section:
    """The recipe of the first run, what differs in the others, and where they ran."""
    settings = {entry.title: deciding_settings(write_out(entry.runs[0].recipe())) for entry in entries}
    first = next(iter(settings.values()))
    rows = []
    for entry in entries:
        other = settings[entry.title]
        changed = [f"{key} {other[key]}" for key in other if first.get(key, "absent") != other[key]]
        changed += [f"without {key}" for key in first if key not in other]
        minutes = statistics.mean(result.seconds for result in entry.repeats.runs) / 60
        rows.append((Cell(entry.title), Cell(", ".join(changed) or "as below"), Cell(f"{minutes:.1f}")))
    recipe = yaml.safe_dump(public_settings(entries[0].runs[0].recipe()), sort_keys=False, allow_unicode=True)
    places = {machine(run.environment()): None for entry in entries for run in entry.runs}
    return Section(
        title="Recipes",
        tables=[Table(("run", "settings", "minutes"), tuple(rows), words=2)],
        folded={f"recipe of {entries[0].title}": recipe},
        note=f"Trained with {'; and with '.join(places)}. Images: sha256 {entries[0].judged_on()[0]}.",
        level=3,
    )


def machine(environment: Mapping[str, Any]) -> str:
    """Return an environment in words."""
    packages = ", ".join(f"{name} {number}" for name, number in environment["packages"].items() if number)
    code = environment.get("code", {})  # unknown before version 0.2
    changed = " with changes" if code.get("clean") is False else ""
    commit = f"commit {code['commit'][:12]}{changed}, " if code.get("commit") else ""
    return (
        f"{commit}Python {environment['python']}, {environment['system']}, {environment['device']}, "
        f"{environment['threads']} threads, {packages}"
    )
