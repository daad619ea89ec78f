"""One setting of the loss varied with all else fixed: trained, summarised, as table and curve."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from softwarp.events import OnEvent
from softwarp.figures import COLOURS, tidy
from softwarp.report.claims import Measured, above, claim, measured, rows_written, yes
from softwarp.studies import variants
from softwarp.tables import Row, Table, factor_of, metric_table, metric_title

METRICS = ("recall@1", "map@r", "avg_dtp")
PLAIN = "no_warp"  # k1 = k2 = 1
# A sweep compares settings, so it is judged where settings may be chosen.
ALWAYS = ("evaluation.split=validation", "evaluation.clustering=false")
SAID = "section 4.4"  # the place where the paper says what its sweeps show


def collect_sweep(
    base: Mapping[str, Any],
    setting: str,
    values: Sequence[float],
    folder: Path,
    *,
    seeds: int,
    on_event: OnEvent | None = None,
) -> dict[str, list[variants.Outcome]]:
    """Train every value of a setting of the warped softmax, and no warp, with every seed."""
    recipes = {f"{value:g}": variants.with_loss_settings(base, **{setting: value}) for value in values}
    recipes[PLAIN] = variants.with_loss_settings(base, k1=1.0, k2=1.0)
    return variants.train_variants(
        recipes, folder, seeds=seeds, base=base, extra={"setting": setting}, on_event=on_event
    )


def run_sweep(
    base: Mapping[str, Any],
    setting: str,
    values: Sequence[float],
    folder: Path,
    seeds: int,
    on_event: OnEvent | None,
) -> dict[str, Any]:
    """Return the summary of a sweep that is trained in a folder, or resumed there."""
    found = collect_sweep(base, setting, values, folder, seeds=seeds, on_event=on_event)
    return variants.about_trainings(found, base) | summarise_sweep(found, setting)


def summarise_sweep(found: Mapping[str, Sequence[variants.Outcome]], setting: str) -> dict[str, Any]:
    """Return a point per value, ascending, and the row without a warp."""
    rows = variants.summarise_variants(found, METRICS)
    plain = rows.pop(PLAIN)
    points = [{"value": float(name), **row} for name, row in rows.items()]
    return {"setting": setting, "points": sorted(points, key=lambda row: row["value"]), PLAIN: plain}


def sweep_table(summary: Mapping[str, Any]) -> Table:
    """Return a row per value; those that blew up say so."""
    rows = [
        Row((variants.marked(f"{point['value']:g}", point),), point["mean"], point["deviation"])
        for point in summary["points"]
    ]
    rows.append(Row(("no warp",), summary[PLAIN]["mean"], summary[PLAIN]["deviation"], ranked=False))
    return metric_table(rows, METRICS, (summary["setting"],), title=variants.judged_on(summary))


def best_of(points: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the point with the highest mean of Recall@1."""
    return max(points, key=lambda point: float(point["mean"]["recall@1"]))


def higher_at(text: str, higher: Mapping[str, Any], lower: Mapping[str, Any], setting: str) -> dict[str, str]:
    """Return the claim that Recall@1 is higher at one value than at another, which cannot be the same."""
    if higher is lower:
        return claim(
            text, "not held", "best of all at " + points_written([higher], setting, "recall@1"), said=SAID
        )
    verdict = above(measured(higher, "recall@1"), measured(lower, "recall@1"))
    return claim(text, verdict, points_written([lower, higher], setting, "recall@1"), said=SAID)


def level(text: str, points: Sequence[Mapping[str, Any]], setting: str, count: int) -> dict[str, str]:
    """Return the claim that Recall@1 differs by no more than the deviations between any two of these.

    Fewer than `count` values, or a single seed, cannot tell.
    """
    values = [measured(point, "recall@1") for point in points]
    alike = all(above(a, b) == "undecided" for a in values for b in values)
    known = len(points) >= count and not any(math.isnan(value.deviation) for value in values)
    return claim(
        text, yes(alike) if known else "undecided", points_written(points, setting, "recall@1"), said=SAID
    )


def flattest(points: Sequence[Mapping[str, Any]], count: int) -> Sequence[Mapping[str, Any]]:
    """Return so many neighbours, the best of all among them, whose Recall@1 differs least."""
    best = best_of(points)
    groups = [points[place : place + count] for place in range(max(1, len(points) - count + 1))]

    def spread(group: Sequence[Mapping[str, Any]]) -> float:
        means = [measured(point, "recall@1").mean for point in group]
        return max(means) - min(means)

    return min((group for group in groups if best in group), key=spread)


def points_written(points: Sequence[Mapping[str, Any]], setting: str, metric: str) -> str:
    """Return points in words, like `alpha 5: 94.2 ± 0.3`."""
    return rows_written([{"title": f"{setting} {point['value']:g}", **point} for point in points], metric)


def draw_sweep(axes: Axes, summary: Mapping[str, Any], metric: str) -> None:
    """Draw a metric against the setting, with deviations; dotted without a warp, crosses at blow-ups."""
    points, factor = summary["points"], factor_of(metric)
    places = [point["value"] for point in points]
    values = [Measured(*(factor * each for each in measured(point, metric))) for point in points]
    means, deviations = zip(*values, strict=True)
    axes.errorbar(places, means, deviations, color=COLOURS[1], marker="o", markersize=4, capsize=2)
    blown = [place for place, point in enumerate(points) if point["blew_up"]]
    axes.plot([places[i] for i in blown], [means[i] for i in blown], "x", color="black", markersize=9)
    axes.axhline(factor * summary[PLAIN]["mean"][metric], color=COLOURS[0], linestyle=":", label="no warp")
    axes.set(xlabel=summary["setting"], title=metric_title(metric) + " (%)" * (factor == 100.0))
    axes.legend(frameon=False, fontsize=8)
    tidy(axes)


def drawn_rows(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what the figures of a sweep show, row by row."""
    points = [*summary["points"], {"value": "no warp", **summary[PLAIN]}]
    return [{summary["setting"]: point["value"]} | variants.columns_of(point, METRICS) for point in points]
