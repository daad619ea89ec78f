"""What a paper says, or what we read into it, held against what was measured: held, undecided or not held."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from softwarp.tables import Cell, Table, figure

ClaimVerdict = Literal["held", "undecided", "not held"]
WORST_FIRST: tuple[ClaimVerdict, ...] = ("not held", "undecided", "held")
OUR_READING = "our reading"  # marks a claim that the paper does not make in so many words
SURE = 0.05  # a correlation is decided if chance alone gives one as large less often


class Measured(NamedTuple):
    """Mean and deviation over seeds, which is NaN for a single one: it decides nothing."""

    mean: float
    deviation: float = 0.0


def measured(row: Mapping[str, Any], metric: str) -> Measured:
    """Return a metric of a row that has `mean` and `deviation`."""
    return Measured(row["mean"][metric], row["deviation"].get(metric, math.nan))


def above(first: Measured, second: Measured) -> ClaimVerdict:
    """Return whether the first is larger; undecided within the two deviations, or if there is none.

    >>> above(Measured(3.0, 0.5), Measured(1.0, 0.5)), above(Measured(3.0, 1.5), Measured(1.0, 0.5))
    ('held', 'undecided')
    """
    difference, noise = first.mean - second.mean, first.deviation + second.deviation
    return "held" if difference > noise else "not held" if difference < -noise else "undecided"


def all_of(verdicts: Iterable[ClaimVerdict]) -> ClaimVerdict:
    """Return the worst of some verdicts.

    >>> all_of(["held", "undecided"])
    'undecided'
    """
    found = list(verdicts)
    return next(verdict for verdict in WORST_FIRST if verdict in found)


def yes(holds: bool) -> ClaimVerdict:
    """Return the verdict on what has no deviation."""
    return "held" if holds else "not held"


def correlated(pairs: Iterable[tuple[float, float]]) -> tuple[ClaimVerdict, float]:
    """Return whether two quantities rise together, and Pearson's correlation; few pairs decide nothing.

    >>> correlated([(1.0, 2.1), (2.0, 3.9), (3.0, 6.0)])[0], correlated([(1.0, 1.0), (2.0, 2.0)])[0]
    ('held', 'undecided')
    """
    from scipy.stats import pearsonr

    found = list(pairs)
    if len(found) < 3 or any(len(set(side)) == 1 for side in zip(*found, strict=True)):
        return "undecided", math.nan
    result = pearsonr(*zip(*found, strict=True))
    sign = float(result.statistic)
    return ("undecided" if result.pvalue >= SURE else yes(sign > 0)), sign


def claim(text: str, verdict: ClaimVerdict, numbers: str, *, said: str = OUR_READING) -> dict[str, str]:
    """Return a claim as a summary holds it; `said` is the place in the paper, such as "section 4.4"."""
    return {"claim": text, "said": said, "verdict": verdict, "numbers": numbers}


def written(metric: str, value: Measured) -> str:
    """Return a value as tables show it.

    >>> written("recall@1", Measured(0.9, 0.01))
    '90.0 ± 1.0'
    """
    return figure(metric, value.mean, None if math.isnan(value.deviation) else value.deviation)


def rows_written(rows: Iterable[Mapping[str, Any]], metric: str) -> str:
    """Return a metric of some rows in words: the title of each, and its value.

    >>> rows_written([{"title": "alpha 5", "mean": {"avg_dtp": 4.9}, "deviation": {}}], "avg_dtp")
    'alpha 5: 4.90'
    """
    return ", ".join(f"{row['title']}: {written(metric, measured(row, metric))}" for row in rows)


def claims_table(claims: Iterable[Mapping[str, str]]) -> Table:
    """Return a row per claim, with the place where the paper makes it, or "our reading"."""
    rows = tuple(
        tuple(Cell(each.get(key, OUR_READING)) for key in ("claim", "said", "verdict", "numbers"))
        for each in claims
    )
    return Table(("claim", "said in", "here", "numbers"), rows, words=4)
