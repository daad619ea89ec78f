"""A benchmark or a reality check -> the parts of a report."""

from pathlib import Path
from typing import Any

from softwarp.fair.benchmark_result import (
    METRIC,
    Benchmark,
    BenchmarkEntry,
    benchmark_table,
    marks_note,
    search_lines,
    search_table,
    verdict,
)
from softwarp.fair.reality_table import METRICS as REALITY_METRICS
from softwarp.fair.reality_table import Figures, RealityCheck, category_table, reality_table
from softwarp.losses import card_of
from softwarp.report.figures import differences
from softwarp.report.page import Section
from softwarp.tables import Cell, Table

SHOWN = 3  # losses whose runs follow


def benchmark_parts(outcome: Benchmark) -> list[Section]:
    """Return what was compared, how far each loss is behind the best, and how it was made."""
    ranked = [entry for entry in outcome.entries if entry.mean]
    found = {entry.title: outcome.behind(entry.loss) for entry in ranked}
    behind = {title: pair for title, pair in found.items() if pair is not None}
    values, frozen = {entry.title: entry.seeds[METRIC] for entry in ranked}, outcome.frozen
    if frozen is not None and (pair := outcome.against_frozen(ranked[0].loss)) is not None:
        values, behind = values | {frozen.title: frozen.seeds[METRIC]}, behind | {frozen.title: pair}
    epochs = sum(phase["epochs"] for phase in outcome.recipe["phases"])
    shown = benchmark_table(outcome)
    held_out, which = ("images", "of these") if outcome.closed else ("classes", "other")
    return [
        Section(
            title=shown.title,
            text=f"Every loss was trained with the same network, batches and {epochs} epochs. "
            f"{outcome.trials} settings of each were compared on validation {held_out} by MAP@R; the best "
            f"was trained on {outcome.classes['train']} classes with {outcome.seeds} seed(s) and judged once "
            f"on {outcome.classes['evaluated']} {which} classes ({outcome.images['evaluated']} images).",
            tables=[shown],
            note="Behind the best: the paired difference of MAP@R, with its 95% interval over seeds "
            f"(Student's t) and over test classes (bootstrap). {marks_note(outcome)} {verdict(outcome)}",
        ),
        Section(
            title="How far behind",
            figures=[differences("differences", values, behind)],
            note="Left: MAP@R of each seed, and their mean as a bar. Right: the difference from the best, "
            "with its interval over classes (thick) and over seeds (thin, cut at the edge).",
            level=3,
        ),
        Section(
            title="Settings found",
            tables=[
                Table(
                    ("loss", "settings"),
                    tuple((Cell(entry.title), Cell(_settings(entry))) for entry in ranked),
                    words=2,
                )
            ],
            note=" ".join([*(f"{line}." for line in search_lines(outcome)), f"Made by: {outcome.command}"]),
            level=3,
        ),
        *_search_parts(outcome),
    ]


def best_runs(folder: Path, outcome: Benchmark) -> list[Path]:
    """Return the folders of the best losses, each with a run per seed."""
    return [folder / entry.loss for entry in outcome.entries[:SHOWN] if entry.mean]


def _search_parts(outcome: Benchmark | RealityCheck) -> list[Section]:
    found = search_table(outcome)
    return [Section(title=found.title, tables=[found], level=3)] if found.rows else []


def reality_parts(outcome: RealityCheck) -> list[Section]:
    """Return the measured figures, and the published ones if the recipe has them."""
    shown, published = reality_table(outcome), published_table(outcome.recipe.get("paper", {}))
    parts = [Section(title=shown.title, tables=[shown], note=f"Made by: {outcome.command}")]
    parts += _search_parts(outcome)
    if published:
        parts.append(Section(title=published.title, tables=[published], level=3))
    return parts


def published_table(paper: dict[str, Any]) -> Table | None:
    """Return the published figures of a recipe, None if it has none."""
    rows: dict[str, Figures] = {
        card_of(loss).title: {
            kind: {
                metric: (mean, half) for metric, (mean, half) in zip(REALITY_METRICS, figures, strict=True)
            }
            for kind, figures in categories.items()
        }
        for loss, categories in paper.get("published", {}).items()
    }
    sizes = {"complete": 512, "ensemble": 512, "aggregate": 128}
    return category_table(rows, sizes, title=f"published, {paper['table']}") if rows else None


def _settings(entry: BenchmarkEntry) -> str:
    """The settings that the search found; a value on a bound of its range is followed by that bound."""
    shown = {
        key: f"{each:.3g}" if isinstance(each, float) else f"{each}" for key, each in entry.settings.items()
    }
    bounds = {key: f" ({entry.on_bounds[key]} bound)" if key in entry.on_bounds else "" for key in shown}
    return ", ".join(f"{key} {text}{bounds[key]}" for key, text in shown.items())
