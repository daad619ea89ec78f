"""benchmark.json: what each loss reached, all pairs, the frozen features; its table and its verdict."""

from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from softwarp.fair.comparisons import Pair
from softwarp.tables import Cell, Row, Table, counted, metric_table

if TYPE_CHECKING:
    from softwarp.fair.reality_table import RealityCheck, RealityEntry

METRIC = "map@r"  # searched and compared by
METRICS = (METRIC, "recall@1", "r_precision")
LATE = 0.8  # share of the trials: if the best one came later, more trials may find a better one
SEARCHED = (3, 10, 30)  # numbers of trials whose best is shown

MARKS = (
    "* : the choice of test classes does not explain the difference; ** : neither does the choice of seeds. "
    "Both at 5% after Holm's correction for all pairs."
)
ONE_SEED = "One seed cannot tell luck from merit: no difference is marked. Give 3 seeds or more."


class BenchmarkEntry(BaseModel):
    """What one loss reached on the test classes, by metric; without figures if a training blew up."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    loss: str
    title: str
    settings: dict[str, float | int | str | bool]  # found by the search
    on_bounds: dict[str, str]  # those of them that are at the lower or upper end of their range
    validation: float | None  # what it found
    course: tuple[float, ...] = ()  # the best value after each trial of the search
    mean: dict[str, float]
    deviation: dict[str, float]
    seeds: dict[str, tuple[float, ...]]  # the value of each seed
    seconds: float  # what one training took
    blew_up: str = ""  # the message


class Frozen(BaseModel):
    """What the backbone's features reach as they are, by metric: a loss can be worse than doing nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    title: str  # frozen features, or untrained ones of a network without weights
    backbone: str
    mean: dict[str, float]
    deviation: dict[str, float]  # over seeds, which only an untrained network depends on
    seeds: dict[str, tuple[float, ...]]  # beside the same seed of every loss
    against: tuple[Pair, ...]  # each loss, first, and the features


class Benchmark(BaseModel):
    """All losses, best first, and all pairs: benchmark.json."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
    version: Literal[1] = Field(1, alias="schema")
    command: str
    trials: int
    seeds: int
    classes: dict[str, int]
    images: dict[str, int]
    closed: bool = False  # whether the evaluated classes train, too, with other images
    entries: tuple[BenchmarkEntry, ...]
    pairs: tuple[Pair, ...]
    frozen: Frozen | None = None  # earlier versions had none
    recipe: dict[str, Any]  # the first loss's, before the search
    data_sha256: str
    environment: dict[str, Any]

    def __repr__(self) -> str:
        return f"Benchmark({len(self.entries)} losses; {verdict(self)})"

    def __str__(self) -> str:
        return repr(self)

    def _repr_html_(self) -> str:
        return benchmark_table(self).html()

    def behind(self, loss: str) -> Pair | None:
        """Return the pair of the best loss and this one."""
        best = self.entries[0].loss
        return next((pair for pair in self.pairs if (pair.first, pair.second) == (best, loss)), None)

    def against_frozen(self, loss: str) -> Pair | None:
        """Return the pair of this loss and the frozen features."""
        pairs = () if self.frozen is None else self.frozen.against
        return next((pair for pair in pairs if pair.first == loss), None)


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
        f"{len(outcome.entries)} losses on {judged}: {counted(outcome.trials, 'trial')} and "
        f"{counted(outcome.seeds, 'seed')} each"
    )
    return Table(
        (*left.heads, *heads),
        tuple((*row, *more) for row, more in zip(left.rows, cells, strict=True)),
        title=title,
    )


def search_lines(outcome: "Benchmark | RealityCheck") -> list[str]:
    """Return a line per loss whose search may have ended too early: on a bound, or with a late trial."""
    lines = [
        f"{entry.title}: {', '.join(f'{key} is on the {end} bound' for key, end in entry.on_bounds.items())} "
        "of its range; the best may lie beyond it (softwarp tune widens a range: --space, space=)"
        for entry in outcome.entries
        if entry.on_bounds
    ]
    return lines + [
        f"{entry.title}: trial {_best_at(entry)} of {len(entry.course)} was the best; more may find better"
        for entry in outcome.entries
        if _best_at(entry) > LATE * len(entry.course) and len(entry.course) > 1
    ]


def search_table(outcome: "Benchmark | RealityCheck") -> Table:
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
    heads = [f"after {counted(count, 'trial')}" for count in counts]
    return Table(("loss", *heads, "best trial"), tuple(rows), title="Best MAP@R of the search, by trials")


def _best_at(entry: "BenchmarkEntry | RealityEntry") -> int:
    """Which trial of the search was the best, counted from 1; 0 if that was not kept."""
    return entry.course.index(max(entry.course)) + 1 if entry.course else 0


def _points(value: float) -> str:
    return f"{100 * value:+.1f}".replace("-", "\N{MINUS SIGN}")


def _signed(pair: Pair | None) -> str:
    return "" if pair is None else f"{_points(pair.difference)} {pair.marks}".strip()


def _between(interval: tuple[float, float]) -> str:
    return " to ".join(_points(-end) for end in reversed(interval))
