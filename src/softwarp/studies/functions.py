"""What each function of the distance does to the embedding space.

Table 3 and Fig. 9: Eq. 8 with eleven pairs of functions f1, f2, all else the same. As in the paper, nothing
is augmented, and the head starts differently, so that embeddings start closer to their proxies; the paper
does not say how, here it has smaller weights (`head_init: default`). Recall@1 and NMI are of test classes,
AvgDTP is of training images; NMI is arithmetic, and geometric as in the authors' code. Every function has
the recipe's network, rates and scale. Training that blows up counts with its last finite result. The claims
are those of the paper's section 4.5.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from softwarp.events import OnEvent
from softwarp.figures import COLOURS, Drawing, tidy
from softwarp.recipe.schema import Recipe, parse_recipe
from softwarp.report.claims import (
    ClaimVerdict,
    Measured,
    above,
    all_of,
    claim,
    correlated,
    measured,
    rows_written,
    yes,
)
from softwarp.studies import variants
from softwarp.studies.published import TABLE_3
from softwarp.studies.variants import Outcome, Seeds, Words
from softwarp.tables import Cell, Row, Table, metric_table

PAPER = "Table 3, Fig. 9"
SAID = "section 4.5"
METRICS = ("recall@1", "nmi", "nmi_geometric", "avg_dtp")
UNAUGMENTED = ("data.train_transform=none", "data.color_jitter=null", "data.erase=0")
JUDGED = ("evaluation.split=test", "evaluation.every=0", "evaluation.patience=null")
ALWAYS = (*UNAUGMENTED, *JUDGED, "evaluation.clustering=true", "model.head_init=default")
START = "start"  # the row without training
CLOSE = 0.05
ARITHMETIC = "NMI arithmetic"  # beside the geometric one it needs its name

RowsByName = Mapping[str, Mapping[str, Any]]  # by the name of the function
stated = partial(claim, said=SAID)


class Function(NamedTuple):
    """A pair f1, f2 as a loss, how the table calls it, and how its line looks."""

    title: str
    loss: str
    settings: dict[str, float]
    colour: str
    line: str = "-"


FUNCTIONS = {
    "identity": Function("t1 - t2", "euclidean_softmax", {}, "black"),
    "square": Function("t1^2 - t2^2", "power", {"exponent": 2.0}, COLOURS[3]),
    "root": Function("sqrt t1 - sqrt t2", "power", {"exponent": 0.5}, COLOURS[1]),
    "power_1.5": Function("t1^1.5 - t2^1.5", "power", {"exponent": 1.5}, COLOURS[3], "--"),
    "scaled_0.97": Function("0.97 t1 - t2", "scaled", {"factor": 0.97}, COLOURS[0], "--"),
    "scaled_0.5": Function("0.5 t1 - t2", "scaled", {"factor": 0.5}, COLOURS[0]),
    "scaled_1.1": Function("1.1 t1 - t2", "scaled", {"factor": 1.1}, COLOURS[2], "--"),
    "scaled_2": Function("2.0 t1 - t2", "scaled", {"factor": 2.0}, COLOURS[2]),
}
SETTINGS = ((0.5, 1.5, 50.0), (0.9, 1.1, 25.0), (0.25, 2.25, 7.75))  # k1, k2 and alpha of each warp
WARPS = {
    f"warp_{alpha:g}": Function(
        f"warp: {k1:g}, {k2:g}, alpha {alpha:g}",
        "warped_softmax",
        {"k1": k1, "k2": k2, "alpha": alpha},
        colour,
    )
    for (k1, k2, alpha), colour in zip(SETTINGS, COLOURS, strict=False)
}


def main(
    words: Words = None,
    seeds: Seeds = 3,
    *,
    output: Path,
    quick: bool = False,
    on_event: OnEvent | None = None,
) -> dict[str, Any]:
    """Compare powers, multiples and warps of the distance: Recall@1, NMI, AvgDTP over training.

    \b
    softwarp study functions --quick
    softwarp study functions cub_lite data.root=CUB_200_2011

    By default on 300 classes of glyphs with the demo's recipe.
    """
    base = variants.settings_of_words(words, always=ALWAYS, quick=quick)
    found = collect(base, output, seeds=variants.seeds_of(seeds, quick), on_event=on_event)
    return variants.about_trainings(found, base) | summarise(found)


def collect(
    base: Mapping[str, Any], folder: Path, *, seeds: int, on_event: OnEvent | None = None
) -> dict[str, list[Outcome]]:
    """Train every function with every seed."""
    recipes = {name: recipe_with(base, function) for name, function in (FUNCTIONS | WARPS).items()}
    untrained = [phase.model_copy(update={"epochs": 0}) for phase in recipes["identity"].phases]
    recipes = {START: recipes["identity"].model_copy(update={"phases": tuple(untrained)})} | recipes
    return variants.train_variants(recipes, folder, seeds=seeds, base=base, on_event=on_event)


def recipe_with(base: Mapping[str, Any], function: Function) -> Recipe:
    """Return the recipe with another function, and nothing else changed."""
    scale = variants.loss_setting(base, "scale")
    loss = {**base["loss"], "name": function.loss, "settings": {**function.settings, "scale": scale}}
    phases = [{**phase, "loss_settings": {}} for phase in base["phases"]]
    return parse_recipe({**base, "loss": loss, "phases": phases})


def summarise(found: Mapping[str, Sequence[Outcome]]) -> dict[str, Any]:
    """Return a row per function, and what became of the paper's claims."""
    rows = variants.summarise_variants(found, METRICS)
    start = rows[START]
    deviation = start["deviation"].get("avg_dtp", 0.0)
    first = {"epoch": 0, "mean": start["mean"]["avg_dtp"], "deviation": deviation}
    for name, row in rows.items():
        row["title"] = "untrained" if name == START else (FUNCTIONS | WARPS)[name].title
        row["avg_dtp_by_epoch"].insert(0, dict(first))
    return {"rows": rows, "claims": claims_of({"rows": rows})}


def claims_of(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return each claim of the paper's text, and our reading of some, with a verdict from the numbers."""
    rows = summary["rows"]
    parts = (claims_of_slopes, claims_of_powers, claims_of_warps, claims_of_accuracy)
    return [each for part in parts for each in part(rows)]


def claims_of_slopes(rows: RowsByName) -> list[dict[str, str]]:
    """Return what becomes of 0.97, 0.5, 1.1 and 2.0 times t1; factors of two are our reading."""
    below, beyond = ("scaled_0.97", "scaled_0.5"), ("scaled_1.1", "scaled_2")
    growing = all_of(yes(still_growing(rows[name])) for name in below)
    grown = ", ".join("{:.2f} -> {:.2f}".format(*last_quarter(rows[name])) for name in below)
    blown = [len(rows[name]["blew_up"]) for name in below]
    high, low = (functions_written(rows, ("identity", *names)) for names in (below, beyond))
    return [
        stated("slopes below 1 push outward everywhere: a high AvgDTP", beside_identity(rows, below), high),
        stated(
            "slopes below 1 fly off until numerical instability",
            yes(all(blown)),
            f"{sum(blown)} of these trainings blew up",
        ),
        claim(
            "slopes below 1 run away: AvgDTP is more than twice that of t1 - t2 and still grows at the end",
            all_of((beside_identity(rows, below, factor=2.0), growing)),
            f"{high}; in the last quarter {grown}",
        ),
        stated(
            "slopes above 1 do the opposite: a low AvgDTP", beside_identity(rows, beyond, larger=False), low
        ),
        claim(
            "slopes above 1 collapse: AvgDTP is less than half of that of t1 - t2",
            beside_identity(rows, beyond, factor=0.5, larger=False),
            low,
        ),
    ]


def claims_of_powers(rows: RowsByName) -> list[dict[str, str]]:
    """Return where the root, the convex powers and the distance itself leave the embeddings."""
    convex, start = ("square", "power_1.5"), rows[START]["mean"]["avg_dtp"]
    moved = {name: abs(rows[name]["mean"]["avg_dtp"] - start) for name in FUNCTIONS}
    return [
        stated(
            "the root favours compactness: a small AvgDTP",
            beside_identity(rows, ("root",), larger=False),
            functions_written(rows, ("identity", "root")),
        ),
        stated(
            "t^2 and t^1.5, convex, favour separability: a higher AvgDTP",
            beside_identity(rows, convex),
            functions_written(rows, ("identity", *convex)),
        ),
        stated(
            "AvgDTP of t1 - t2 is relatively steady (measured: of all functions without a warp it ends "
            "nearest to its start)",
            yes(min(moved, key=moved.__getitem__) == "identity"),
            f"start {start:.2f}; ends {functions_written(rows, FUNCTIONS)}",
        ),
    ]


def claims_of_warps(rows: RowsByName) -> list[dict[str, str]]:
    """Return whether the AvgDTP of warps correlates with alpha, as the paper notes, and how near it is."""
    ends = [(alpha_of(name), rows[name]["mean"]["avg_dtp"]) for name in WARPS]
    follows, correlation = correlated(ends)
    near = all(abs(end / alpha - 1) <= CLOSE for alpha, end in ends)
    distances = functions_written(rows, WARPS)
    return [
        stated("alpha and AvgDTP of warps correlate", follows, f"r = {correlation:.3f}; {distances}"),
        claim(f"a warp settles near alpha, within {CLOSE:.0%}", yes(near), distances),
    ]


def claims_of_accuracy(rows: RowsByName) -> list[dict[str, str]]:
    """Return how t1 - t2 compares in Recall@1 with the best of the others, and with the best warp."""
    recall = {name: measured(row, "recall@1") for name, row in rows.items()}
    rival = max((name for name in FUNCTIONS if name != "identity"), key=lambda name: recall[name].mean)
    warp = max(WARPS, key=lambda name: recall[name].mean)
    return [
        stated(
            "t1 - t2 is the best of the functions without a warp (in Recall@1)",
            above(recall["identity"], recall[rival]),
            functions_written(rows, ("identity", rival), "recall@1"),
        ),
        stated(
            "with proper settings, a warp is better than t1 - t2 (in Recall@1)",
            above(recall[warp], recall["identity"]),
            functions_written(rows, ("identity", warp), "recall@1"),
        ),
    ]


def beside_identity(
    rows: RowsByName, names: Sequence[str], *, factor: float = 1.0, larger: bool = True
) -> ClaimVerdict:
    """Return whether AvgDTP of all these is larger, or smaller, than `factor` times that of t1 - t2."""
    plain = measured(rows["identity"], "avg_dtp")
    bound = Measured(factor * plain.mean, factor * plain.deviation)
    values = [measured(rows[name], "avg_dtp") for name in names]
    return all_of(above(value, bound) if larger else above(bound, value) for value in values)


def functions_written(rows: RowsByName, names: Iterable[str], metric: str = "avg_dtp") -> str:
    """Return a metric of some functions in words."""
    return rows_written((rows[name] for name in names), metric)


def alpha_of(name: str) -> float:
    return WARPS[name].settings["alpha"]


def last_quarter(row: Mapping[str, Any]) -> tuple[float, float]:
    """Return AvgDTP after three quarters of training and at its end."""
    means = [epoch["mean"] for epoch in row["avg_dtp_by_epoch"]]
    return means[3 * (len(means) - 1) // 4], means[-1]


def still_growing(row: Mapping[str, Any]) -> bool:
    """Return whether AvgDTP grew in the last quarter of training; what blew up did."""
    before, end = last_quarter(row)
    return bool(row["blew_up"]) or end > before


def table(summary: Mapping[str, Any]) -> Table:
    """Return Table 3 beside the paper's own; functions that blew up are between asterisks, as there."""
    rows = []
    for name, row in summary["rows"].items():
        title = f"**{row['title']}**" if row["blew_up"] else row["title"]
        rows.append(Row((title,), row["mean"], row["deviation"], ranked=name != START))
    classes, seeds = summary["classes"]["evaluated"], summary["seeds"]
    judged = f"{classes} unseen classes, {seeds} seeds; the paper's are of CUB"
    ours = metric_table(rows, METRICS, ("f1(t1) - f2(t2)",), title=judged)
    theirs = [
        [Cell(f"{recall:.1f}"), Cell(f"{nmi:.1f}"), Cell(f"{distance:.2f}")]
        for recall, nmi, distance in (TABLE_3[name] for name in summary["rows"])
    ]
    heads = ("Recall@1", "NMI", "AvgDTP")
    return replace(
        ours,
        heads=(*(ARITHMETIC if head == "NMI" else head for head in ours.heads), *heads),
        rows=tuple((*row, *cells) for row, cells in zip(ours.rows, theirs, strict=True)),
        groups=(("", len(METRICS)), ("paper", len(heads))),
    )


def draw(summary: Mapping[str, Any]) -> dict[str, Drawing]:
    """Return Fig. 9: AvgDTP over training, of functions and of warps."""
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, function in FUNCTIONS.items():
        draw_line(left, function, summary["rows"][name])
    for name, function in WARPS.items():
        draw_line(right, function, summary["rows"][name])
        right.axhline(alpha_of(name), color=function.colour, linestyle=":", linewidth=1)
    draw_line(right, FUNCTIONS["identity"], summary["rows"]["identity"])
    left.set(title="functions", xlabel="epoch", ylabel="AvgDTP", yscale="log")
    left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    left.yaxis.set_major_formatter("{x:g}")
    left.yaxis.set_minor_formatter(NullFormatter())
    right.set(title="warps (dotted: alpha)", xlabel="epoch", ylim=(0, None))
    tidy(left, right)
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    rows = [
        {"function": row["title"], **epoch}
        for row in summary["rows"].values()
        for epoch in row["avg_dtp_by_epoch"]
    ]
    return {"functions": Drawing(figure, rows)}


def draw_line(axes: Axes, function: Function, row: Mapping[str, Any]) -> None:
    """Draw AvgDTP by epoch with its deviation; a cross marks where it blew up."""
    epochs, means, deviations = (
        [epoch[key] for epoch in row["avg_dtp_by_epoch"]] for key in ("epoch", "mean", "deviation")
    )
    low, high = ([m + sign * d for m, d in zip(means, deviations, strict=True)] for sign in (-1, 1))
    axes.plot(epochs, means, color=function.colour, linestyle=function.line, label=function.title)
    axes.fill_between(epochs, low, high, color=function.colour, alpha=0.15, linewidth=0)
    if row["blew_up"]:
        axes.plot(epochs[-1:], means[-1:], "x", color=function.colour, markersize=9, markeredgewidth=2)
