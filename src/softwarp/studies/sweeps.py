"""One setting of the loss varied with all else fixed: trained, summarised, as table and curve."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from softwarp.events import OnEvent
from softwarp.figures import COLOURS, tidy
from softwarp.report.claims import Measured, above, claim, measured, shown, yes
from softwarp.studies.variants import Outcome, summarise_variants, train_variants, with_loss_settings
from softwarp.tables import Row, Table, factor_of, metric_table, metric_title

METRICS = ("recall@1", "map@r", "avg_dtp")
PLAIN = "no_warp"  # k1 = k2 = 1
# A sweep compares settings, so it is judged where settings may be chosen.
ALWAYS = ("evaluation.split=validation", "evaluation.clustering=false")


def collect_sweep(
    base: Mapping[str, Any],
    setting: str,
    values: Sequence[float],
    folder: Path,
    *,
    seeds: int,
    on_event: OnEvent | None = None,
) -> dict[str, list[Outcome]]:
    """Train every value of a setting of the warped softmax, and no warp, with every seed."""
    variants = {f"{value:g}": with_loss_settings(base, **{setting: value}) for value in values}
    variants[PLAIN] = with_loss_settings(base, k1=1.0, k2=1.0)
    return train_variants(
        variants, folder, seeds=seeds, base=base, extra={"setting": setting}, on_event=on_event
    )


def summarise_sweep(found: Mapping[str, Sequence[Outcome]], setting: str) -> dict[str, Any]:
    """Return a point per value, ascending, and the row without a warp."""
    rows = summarise_variants(found, METRICS)
    plain = rows.pop(PLAIN)
    points = sorted(
        ({"value": float(name), **row} for name, row in rows.items()), key=lambda row: row["value"]
    )
    return {"setting": setting, "points": points, PLAIN: plain}


def sweep_table(summary: Mapping[str, Any]) -> Table:
    """Return a row per value; those that blew up say so."""
    rows = [
        Row(
            (f"{point['value']:g}" + " (blew up)" * bool(point["blew_up"]),),
            point["mean"],
            point["deviation"],
        )
        for point in summary["points"]
    ]
    rows.append(Row(("no warp",), summary[PLAIN]["mean"], summary[PLAIN]["deviation"], ranked=False))
    title = f"{summary['classes']['evaluated']} {summary['split']} classes, {summary['seeds']} seeds"
    return metric_table(rows, METRICS, (summary["setting"],), title=title)


def best_of(points: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the point with the highest mean of Recall@1."""
    return max(points, key=lambda point: float(point["mean"]["recall@1"]))


def compared(
    text: str, higher: Mapping[str, Any], lower: Mapping[str, Any], setting: str, *, said: str
) -> dict[str, str]:
    """Return the claim that Recall@1 is higher at one value than at another, which cannot be the same."""
    if higher is lower:
        return claim(text, "not held", "best of all at " + listed((higher,), setting, "recall@1"), said=said)
    verdict = above(measured(higher, "recall@1"), measured(lower, "recall@1"))
    return claim(text, verdict, listed((lower, higher), setting, "recall@1"), said=said)


def level(
    text: str, points: Sequence[Mapping[str, Any]], setting: str, count: int, *, said: str
) -> dict[str, str]:
    """Return the claim that Recall@1 differs by no more than the deviations between any two of these.

    Fewer than `count` values, or a single seed, cannot tell.
    """
    values = [measured(point, "recall@1") for point in points]
    alike = all(above(a, b) == "undecided" for a in values for b in values)
    known = len(points) >= count and not any(math.isnan(value.deviation) for value in values)
    return claim(text, yes(alike) if known else "undecided", listed(points, setting, "recall@1"), said=said)


def flattest(points: Sequence[Mapping[str, Any]], count: int) -> Sequence[Mapping[str, Any]]:
    """Return so many neighbours, the best of all among them, whose Recall@1 differs least."""
    best = best_of(points)
    groups = [points[place : place + count] for place in range(max(1, len(points) - count + 1))]

    def spread(group: Sequence[Mapping[str, Any]]) -> float:
        means = [measured(point, "recall@1").mean for point in group]
        return max(means) - min(means)

    return min((group for group in groups if best in group), key=spread)


def listed(points: Sequence[Mapping[str, Any]], setting: str, metric: str) -> str:
    """Return points in words, like `alpha 5: 94.2 ± 0.3`."""
    return ", ".join(
        f"{setting} {point['value']:g}: {shown(metric, measured(point, metric))}" for point in points
    )


def draw_sweep(axes: Axes, summary: Mapping[str, Any], metric: str) -> None:
    """Draw a metric against the setting, with deviations; dotted without a warp, crosses at blow-ups."""
    points, factor = summary["points"], factor_of(metric)
    values = [Measured(*(factor * each for each in measured(point, metric))) for point in points]
    axes.errorbar(
        [point["value"] for point in points],
        [value.mean for value in values],
        [value.deviation for value in values],
        color=COLOURS[1],
        marker="o",
        markersize=4,
        capsize=2,
    )
    blown = [(p["value"], value.mean) for p, value in zip(points, values, strict=True) if p["blew_up"]]
    axes.plot([x for x, _ in blown], [y for _, y in blown], "x", color="black", markersize=9)
    axes.axhline(factor * summary[PLAIN]["mean"][metric], color=COLOURS[0], linestyle=":", label="no warp")
    axes.set(xlabel=summary["setting"], title=metric_title(metric) + " (%)" * (factor == 100.0))
    axes.legend(frameon=False, fontsize=8)
    tidy(axes)


def numbers(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what the figures of a sweep show, row by row."""
    points = [*summary["points"], {"value": "no warp", **summary[PLAIN]}]
    return [
        {
            summary["setting"]: point["value"],
            **{
                f"{metric} {part}": point[part].get(metric)
                for metric in METRICS
                for part in ("mean", "deviation")
            },
            "blew up": len(point["blew_up"]),
        }
        for point in points
    ]
