"""A benchmark or a reality check -> the parts of a report."""

from pathlib import Path
from typing import Any

from softwarp.fair.benchmark import METRIC, METRICS, Benchmark, Entry
from softwarp.fair.comparisons import Pair
from softwarp.fair.reality_table import METRICS as REALITY_METRICS
from softwarp.fair.reality_table import Entry as RealityEntry
from softwarp.fair.reality_table import Figures, RealityCheck, figures_of
from softwarp.fair.reality_table import table as figures_table
from softwarp.losses import card_of
from softwarp.report.figures import differences
from softwarp.report.page import Part
from softwarp.tables import Cell, Row, Table, metric_table

SHOWN = 3  # losses whose runs follow
LATE = 0.8  # of the trials: a best one that came later may not be the best there is
SEARCHED = (3, 10, 30)  # numbers of trials whose best is shown

MARKS = (
    "* : the choice of test classes does not explain the difference; ** : neither does the choice of seeds. "
    "Both at 5% after Holm's correction for all pairs."
)
ONE_SEED = "One seed cannot tell luck from merit: no difference is marked. Give --seeds 3 or more."


def benchmark_parts(outcome: Benchmark) -> list[Part]:
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
        Part(
            title=shown.title,
            text=f"Every loss was trained with the same network, batches and {epochs} epochs. "
            f"{outcome.trials} settings of each were compared on validation {held_out} by MAP@R; the best "
            f"was trained on {outcome.classes['train']} classes with {outcome.seeds} seed(s) and judged once "
            f"on {outcome.classes['evaluated']} {which} classes ({outcome.images['evaluated']} images).",
            tables=[shown],
            note="Behind the best: the paired difference of MAP@R, with its 95% interval over seeds "
            f"(Student's t) and over test classes (bootstrap). {marks_note(outcome)} {verdict(outcome)}",
        ),
        Part(
            title="How far behind",
            figures=[differences("differences", values, behind)],
            note="Left: MAP@R of each seed, and their mean as a bar. Right: the difference from the best, "
            "with its interval over classes (thick) and over seeds (thin, cut at the edge).",
            level=3,
        ),
        Part(
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


def marks_note(outcome: Benchmark) -> str:
    """Return what the stars of the table mean, or why there are none."""
    return MARKS if outcome.seeds > 1 else ONE_SEED


def verdict(outcome: Benchmark) -> str:
    """Return in a sentence whether the best loss beats the features that nobody trained."""
    best, frozen = outcome.entries[0], outcome.frozen
    pair = outcome.against_frozen(best.loss)
    if frozen is None or pair is None:
        return ""
    low, high = (_points(end) for end in pair.over_classes)
    sure = f"{_points(pair.difference)} MAP@R against the {frozen.title}, {low} to {high} over classes"
    if pair.difference <= 0:
        return f"No loss beats the {frozen.title}: {best.title}, the best, is at {sure}."
    what = {"": "choice of classes", "*": "choice of seeds"}.get(pair.marks, "")
    doubt = f", but the {what} may explain its lead" if what else ""
    if pair.too_few_classes:
        doubt = f", but {pair.classes} test classes are too few to be sure of it"
    if pair.p_seeds is None:
        doubt = ", but a single seed cannot tell luck from merit"
    return f"{best.title} is best{doubt}: {sure}."


def benchmark_table(outcome: Benchmark) -> Table:
    """Return a row per loss, best first: metrics, how far behind the best, and against the frozen features.

    Those are the last row. They take no part in the ranking.
    """
    rows = [
        Row((entry.title + " (blew up)" * bool(entry.blew_up),), entry.mean, entry.deviation)
        for entry in outcome.entries
    ]
    behind = [outcome.behind(entry.loss) for entry in outcome.entries]
    above = [_signed(outcome.against_frozen(entry.loss)) for entry in outcome.entries]
    heads: tuple[str, ...] = ("behind the best", "over seeds", "over classes")
    if frozen := outcome.frozen:
        rows.append(Row((frozen.title,), frozen.mean, frozen.deviation, ranked=False))
        behind.append(outcome.against_frozen(outcome.entries[0].loss))
        above.append("")
        heads = (*heads, f"against {frozen.title.split()[0]}")
    left = metric_table(rows, METRICS, ("loss",))
    cells = [
        (
            Cell("" if pair is None else f"{_points(-pair.difference)} {pair.marks}".strip()),
            Cell("" if pair is None or pair.over_seeds is None else _between(pair.over_seeds)),
            Cell("" if pair is None else _between(pair.over_classes)),
            Cell(text),
        )[: len(heads)]
        for pair, text in zip(behind, above, strict=True)
    ]
    judged = f"{outcome.classes['evaluated']} unseen test classes"
    if outcome.closed:
        judged = f"{outcome.images['evaluated']} test images of known classes"
    title = (
        f"{len(outcome.entries)} losses on {judged}: {outcome.trials} trial{'s' * (outcome.trials > 1)} and "
        f"{outcome.seeds} seed{'s' * (outcome.seeds > 1)} each"
    )
    return Table(
        (*left.heads, *heads),
        tuple((*row, *more) for row, more in zip(left.rows, cells, strict=True)),
        title=title,
    )


def search_lines(outcome: Benchmark | RealityCheck) -> list[str]:
    """Return a line per loss whose search may have ended too early: on a bound, or with a late trial."""
    lines = [
        f"{entry.title}: {', '.join(f'{key} is on the {end} bound' for key, end in entry.on_bounds.items())} "
        "of its range; the best may lie beyond it (softwarp tune --space widens a range)"
        for entry in outcome.entries
        if entry.on_bounds
    ]
    return lines + [
        f"{entry.title}: trial {_best_at(entry)} of {len(entry.course)} was the best; more may find better"
        for entry in outcome.entries
        if _best_at(entry) > LATE * len(entry.course) and len(entry.course) > 1
    ]


def search_table(outcome: Benchmark | RealityCheck) -> Table:
    """Return the best MAP@R that the search of each loss had found, by number of trials."""
    counts = sorted({1, *(count for count in SEARCHED if count < outcome.trials), outcome.trials})
    rows = [
        (
            Cell(entry.title),
            *(Cell(f"{100 * entry.course[count - 1]:.1f}") for count in counts),
            Cell(f"{_best_at(entry)}"),
        )
        for entry in outcome.entries
        if len(entry.course) >= outcome.trials
    ]
    heads = [f"after {count} trial{'s' * (count > 1)}" for count in counts]
    return Table(("loss", *heads, "best trial"), tuple(rows), title="Best MAP@R of the search, by trials")


def _search_parts(outcome: Benchmark | RealityCheck) -> list[Part]:
    found = search_table(outcome)
    return [Part(title=found.title, tables=[found], level=3)] if found.rows else []


def _best_at(entry: Entry | RealityEntry) -> int:
    """Which trial of the search was the best, counted from 1; 0 if that was not kept."""
    return entry.course.index(max(entry.course)) + 1 if entry.course else 0


def reality_parts(outcome: RealityCheck) -> list[Part]:
    """Return the measured figures, and the published ones if the recipe has them."""
    shown, published = reality_table(outcome), published_table(outcome.recipe.get("paper", {}))
    parts = [Part(title=shown.title, tables=[shown], note=f"Made by: {outcome.command}")]
    parts += _search_parts(outcome)
    if published:
        parts.append(Part(title=published.title, tables=[published], level=3))
    return parts


def reality_table(outcome: RealityCheck) -> Table:
    """Return a row per loss: figures with intervals in three categories."""
    title = (
        f"{outcome.classes.evaluated} test classes, mean and 95% interval of {outcome.reproductions} "
        f"reproductions, {outcome.trials} trials"
    )
    rows = {entry.title + " (blew up)" * bool(entry.blew_up): figures_of(entry) for entry in outcome.entries}
    return figures_table(rows, outcome.sizes, title=title)


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
    return figures_table(rows, sizes, title=f"published, {paper['table']}") if rows else None


def _points(value: float) -> str:
    return f"{100 * value:+.1f}".replace("-", "\N{MINUS SIGN}")


def _signed(pair: Pair | None) -> str:
    return "" if pair is None else f"{_points(pair.difference)} {pair.marks}".strip()


def _between(interval: tuple[float, float]) -> str:
    return " to ".join(_points(-end) for end in reversed(interval))


def _settings(entry: Entry) -> str:
    """The settings that the search found; a value on a bound of its range is followed by that bound."""
    shown = {
        key: f"{each:.3g}" if isinstance(each, float) else f"{each}" for key, each in entry.settings.items()
    }
    bounds = {key: f" ({entry.on_bounds[key]} bound)" if key in entry.on_bounds else "" for key in shown}
    return ", ".join(f"{key} {text}{bounds[key]}" for key, text in shown.items())
