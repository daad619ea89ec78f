"""How accuracy depends on alpha, the radius where the forces turn round.

Fig. 6: alpha from 0 to four times the recipe's, all else fixed, beside the same loss without a warp. The
paper's section 4.4 says that accuracy increases, stabilises and then drops off; section 4.5, that alpha and
AvgDTP correlate.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from matplotlib.figure import Figure

from softwarp.events import OnEvent
from softwarp.figures import Drawing
from softwarp.report.claims import claim, correlated, yes
from softwarp.studies.sweeps import (
    ALWAYS,
    best_of,
    collect_sweep,
    compared,
    draw_sweep,
    flattest,
    level,
    listed,
    numbers,
    summarise_sweep,
    sweep_table,
)
from softwarp.studies.variants import (
    Outcome,
    Seeds,
    Words,
    about,
    loss_setting,
    numbers_of,
    seeds_of,
    settings_of_words,
)

PAPER = "Fig. 6"
GLYPHS = ("data.max_classes=300",)
FACTORS = (
    0.0,
    0.25,
    0.5,
    0.75,
    1.0,
    1.5,
    2.0,
    3.0,
    4.0,
)  # multiples of the recipe's alpha; the paper goes from 0 to 95
QUICK_FACTORS = (0.0, 1.0, 4.0)
STABLE = 3  # neighbouring values that are alike, for accuracy to count as stable
CLOSE = 0.05
SAID = "section 4.4"
table = sweep_table


def main(
    words: Words = None,
    values: Annotated[
        str, typer.Option(help="Values of alpha, like 0,5,10. Default: 0 to 4 x the recipe's alpha.")
    ] = "",
    seeds: Seeds = 3,
    *,
    output: Path,
    quick: bool = False,
    on_event: OnEvent | None = None,
) -> dict[str, Any]:
    """Vary alpha with all else fixed: Recall@1, MAP@R and AvgDTP on validation classes.

    \b
    softwarp study alpha --quick
    softwarp study alpha cub_lite data.root=CUB_200_2011 --values 0,10,20,40

    By default on 300 classes of glyphs with the demo's recipe.
    """
    base = settings_of_words(words or (), glyphs=GLYPHS, always=ALWAYS, quick=quick)
    own = loss_setting(base, "alpha")
    alphas = numbers_of(values) if values else [own * each for each in (QUICK_FACTORS if quick else FACTORS)]
    found = collect_sweep(base, "alpha", alphas, output, seeds=seeds_of(seeds, quick), on_event=on_event)
    return about(found, base) | summarise(found)


def summarise(found: Mapping[str, Sequence[Outcome]]) -> dict[str, Any]:
    """Return a point per alpha, and what became of the shape of Fig. 6."""
    summary = summarise_sweep(found, "alpha")
    return summary | {"claims": claims_of(summary)}


def claims_of(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the parts of the shape, judged by Recall@1, and the paper's note that AvgDTP follows alpha."""
    points = summary["points"]
    best, beyond = best_of(points), [point for point in points if point["value"]]
    near = all(abs(point["mean"]["avg_dtp"] / point["value"] - 1) <= CLOSE for point in beyond)
    follows, correlation = correlated((point["value"], point["mean"]["avg_dtp"]) for point in beyond)
    distances = listed(beyond, "alpha", "avg_dtp")
    return [
        compared("accuracy increases with alpha at first", best, points[0], "alpha", said=SAID),
        level(
            f"it stabilises for a period (measured: {STABLE} neighbouring values around the best are alike)",
            flattest(points, STABLE),
            "alpha",
            STABLE,
            said=SAID,
        ),
        compared("then it drops off", best, points[-1], "alpha", said=SAID),
        claim(
            "alpha and AvgDTP correlate", follows, f"r = {correlation:.3f}; {distances}", said="section 4.5"
        ),
        claim(f"AvgDTP is within {CLOSE:.0%} of alpha", yes(near) if beyond else "undecided", distances),
    ]


def draw(summary: Mapping[str, Any]) -> dict[str, Drawing]:
    """Return Fig. 6, with MAP@R and AvgDTP beside it."""
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    draw_sweep(left, summary, "recall@1")
    draw_sweep(middle, summary, "map@r")
    draw_sweep(right, summary, "avg_dtp")
    right.axline((0, 0), slope=1, color="grey", linewidth=0.8, label="alpha")
    right.legend(frameon=False, fontsize=8)
    return {"alpha": Drawing(figure, numbers(summary))}
