"""How accuracy depends on Delta, the margin that makes up for k1.

Fig. 8: Delta times 1 to 5.5, all else fixed, beside the same loss without a warp. The paper's section
4.4 says that a larger Delta helps at first; then accuracy drops and reaches a plateau.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from matplotlib.figure import Figure

from softwarp.events import OnEvent
from softwarp.figures import Drawing
from softwarp.studies import sweeps, variants
from softwarp.studies.variants import Seeds, Words

PAPER = "Fig. 8"
VALUES = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.5)
QUICK_VALUES = (1.0, 2.0, 5.5)
PLATEAU = 3  # values at the end that are alike
table = sweeps.sweep_table


def main(
    words: Words = None,
    values: Annotated[str, typer.Option(help="Factors on Delta. Default: 1 to 5.5.")] = "",
    seeds: Seeds = 3,
    *,
    output: Path,
    quick: bool = False,
    on_event: OnEvent | None = None,
) -> dict[str, Any]:
    """Vary Delta with all else fixed: Recall@1 and MAP@R on validation classes.

    \b
    softwarp study delta --quick
    softwarp study delta cub_lite data.root=CUB_200_2011 --values 1,1.5,2

    By default on 300 classes of glyphs with the demo's recipe.
    """
    base = variants.settings_of_words(words, always=sweeps.ALWAYS, quick=quick)
    factors = variants.numbers_of(values) if values else QUICK_VALUES if quick else VALUES
    summary = sweeps.run_sweep(base, "delta", factors, output, variants.seeds_of(seeds, quick), on_event)
    return summary | {"claims": claims_of(summary)}


def claims_of(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the parts of the shape, judged by Recall@1."""
    points = summary["points"]
    best = sweeps.best_of(points)
    plateau = f"then it is on a plateau (measured: the last {PLATEAU} values are alike)"
    return [
        sweeps.higher_at("a larger Delta improves accuracy at first", best, points[0], "delta"),
        sweeps.higher_at("past a certain point accuracy drops", best, points[-1], "delta"),
        sweeps.level(plateau, points[-PLATEAU:], "delta", PLATEAU),
    ]


def draw(summary: Mapping[str, Any]) -> dict[str, Drawing]:
    """Return Fig. 8, with MAP@R beside it."""
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    sweeps.draw_sweep(left, summary, "recall@1")
    sweeps.draw_sweep(right, summary, "map@r")
    return {"delta": Drawing(figure, sweeps.drawn_rows(summary))}
