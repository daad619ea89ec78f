"""How accuracy depends on alpha, the radius where the forces turn round.

Fig. 6: alpha from 0 to four times the recipe's, all else fixed, beside the same loss without a warp. The
paper's section 4.4 says that accuracy increases, stabilises and then drops off; section 4.5, that alpha and
AvgDTP correlate.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from matplotlib.figure import Figure

from softwarp.events import OnEvent
from softwarp.figures import Drawing
from softwarp.report.claims import claim, correlated, yes
from softwarp.studies import sweeps, variants
from softwarp.studies.variants import Seeds, Words

PAPER = "Fig. 6"
# Multiples of the recipe's alpha. The paper's alphas go from 0 to 95.
FACTORS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
QUICK_FACTORS = (0.0, 1.0, 4.0)
STABLE = 3  # neighbouring values that are alike, for accuracy to count as stable
CLOSE = 0.05
table = sweeps.sweep_table


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
    base = variants.settings_of_words(words, always=sweeps.ALWAYS, quick=quick)
    own, factors = variants.loss_setting(base, "alpha"), QUICK_FACTORS if quick else FACTORS
    alphas = variants.numbers_of(values) if values else [own * factor for factor in factors]
    summary = sweeps.run_sweep(base, "alpha", alphas, output, variants.seeds_of(seeds, quick), on_event)
    return summary | {"claims": claims_of(summary)}


def claims_of(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the parts of the shape, judged by Recall@1, and the paper's note that AvgDTP follows alpha."""
    points = summary["points"]
    best, beyond = sweeps.best_of(points), [point for point in points if point["value"]]
    near = all(abs(point["mean"]["avg_dtp"] / point["value"] - 1) <= CLOSE for point in beyond)
    follows, correlation = correlated((point["value"], point["mean"]["avg_dtp"]) for point in beyond)
    distances = sweeps.points_written(beyond, "alpha", "avg_dtp")
    return [
        sweeps.higher_at("accuracy increases with alpha at first", best, points[0], "alpha"),
        sweeps.level(
            f"it stabilises for a period (measured: {STABLE} neighbouring values around the best are alike)",
            sweeps.flattest(points, STABLE),
            "alpha",
            STABLE,
        ),
        sweeps.higher_at("then it drops off", best, points[-1], "alpha"),
        claim(
            "alpha and AvgDTP correlate", follows, f"r = {correlation:.3f}; {distances}", said="section 4.5"
        ),
        claim(f"AvgDTP is within {CLOSE:.0%} of alpha", yes(near) if beyond else "undecided", distances),
    ]


def draw(summary: Mapping[str, Any]) -> dict[str, Drawing]:
    """Return Fig. 6, with MAP@R and AvgDTP beside it."""
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    sweeps.draw_sweep(left, summary, "recall@1")
    sweeps.draw_sweep(middle, summary, "map@r")
    sweeps.draw_sweep(right, summary, "avg_dtp")
    right.axline((0, 0), slope=1, color="grey", linewidth=0.8, label="alpha")
    right.legend(frameon=False, fontsize=8)
    return {"alpha": Drawing(figure, sweeps.drawn_rows(summary))}
