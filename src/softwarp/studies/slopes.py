"""How accuracy depends on k1 and k2, the slopes inside and beyond alpha.

Fig. 7: every pair of some k1 and k2, all else fixed. With k1 = 1 the warp does not push outward, with k2 = 1
it does not pull inward. The paper's section 4.4 says that accuracy is higher when neither is 1, and
that the values matter somewhat less there.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from softwarp.events import OnEvent
from softwarp.figures import Drawing
from softwarp.report.claims import Measured, above, claim, measured, written, yes
from softwarp.studies import variants
from softwarp.studies.sweeps import ALWAYS, METRICS, SAID
from softwarp.studies.variants import Outcome, Seeds, Words
from softwarp.tables import Cell, Table, factor_of, metric_title

PAPER = "Fig. 7"
GLYPHS = ("data.max_classes=200",)
K1, K2 = "0.25,0.5,0.75,0.9,1", "1,1.1,1.25,1.5,2"
QUICK = "0.5,1", "1,1.5"


def main(
    words: Words = None,
    k1: Annotated[str, typer.Option(help=f"Slopes inside alpha. Default: {K1}.")] = "",
    k2: Annotated[str, typer.Option(help=f"Slopes beyond alpha. Default: {K2}.")] = "",
    seeds: Seeds = 3,
    *,
    output: Path,
    quick: bool = False,
    on_event: OnEvent | None = None,
) -> dict[str, Any]:
    """Vary k1 and k2 with all else fixed: Recall@1 and AvgDTP on validation classes.

    \b
    softwarp study slopes --quick
    softwarp study slopes cub_lite data.root=CUB_200_2011 --k1 0.5,1 --k2 1,1.2,1.5

    By default on 200 classes of glyphs with the demo's recipe.
    """
    base = variants.settings_of_words(words, glyphs=GLYPHS, always=ALWAYS, quick=quick)
    default = QUICK if quick else (K1, K2)
    inside, beyond = variants.numbers_of(k1 or default[0]), variants.numbers_of(k2 or default[1])
    found = collect(base, inside, beyond, output, seeds=variants.seeds_of(seeds, quick), on_event=on_event)
    return variants.about_trainings(found, base) | summarise(found)


def collect(
    base: Mapping[str, Any],
    inside: Sequence[float],
    beyond: Sequence[float],
    folder: Path,
    *,
    seeds: int,
    on_event: OnEvent | None = None,
) -> dict[str, list[Outcome]]:
    """Train every pair with every seed."""
    recipes = {
        f"{k1:g}_{k2:g}": variants.with_loss_settings(base, k1=k1, k2=k2) for k1 in inside for k2 in beyond
    }
    return variants.train_variants(recipes, folder, seeds=seeds, base=base, on_event=on_event)


def summarise(found: Mapping[str, Sequence[Outcome]]) -> dict[str, Any]:
    """Return a cell per pair, and what became of the paper's claims."""
    cells = []
    for name, row in variants.summarise_variants(found, METRICS).items():
        k1, k2 = map(float, name.split("_"))
        cells.append({"k1": k1, "k2": k2, **row})
    return {"cells": cells, "claims": claims_of({"cells": cells})}


def claims_of(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return both claims, judged by Recall@1; empty unless there are pairs with and without a 1."""
    cells = summary["cells"]
    off = [cell for cell in cells if 1.0 in (cell["k1"], cell["k2"])]
    on = [cell for cell in cells if cell not in off]
    if not off or not on:
        return []
    with_both, without = mean_over_seeds(on), mean_over_seeds(off)
    higher = above(with_both, without)
    spread, gap = statistics.pstdev(cell["mean"]["recall@1"] for cell in on), with_both.mean - without.mean
    return [
        claim(
            "accuracy is higher when neither k1 nor k2 is 1",
            higher,
            f"mean over the pairs: neither {written('recall@1', with_both)}, one or both "
            + written("recall@1", without),
            said=SAID,
        ),
        claim(
            "there the values matter somewhat less (measured: these pairs deviate by less than they are "
            "above the others)",
            "undecided" if len(on) < 2 or higher == "undecided" else yes(spread < gap),
            f"deviation over these pairs {100 * spread:.2f} points, difference {100 * gap:.2f}",
            said=SAID,
        ),
    ]


def mean_over_seeds(cells: Sequence[Mapping[str, Any]]) -> Measured:
    """Return Recall@1 as the mean over some pairs, and how it deviates from seed to seed."""
    means = [
        statistics.mean(values) for values in zip(*(cell["seeds"]["recall@1"] for cell in cells), strict=True)
    ]
    return Measured(statistics.mean(means), statistics.stdev(means) if len(means) > 1 else math.nan)


def by_slopes(cells: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[float], dict[Any, Any]]:
    """Return the values of k1 and k2, and the cells by both."""
    found = {(cell["k1"], cell["k2"]): cell for cell in cells}
    return sorted({k1 for k1, _ in found}), sorted({k2 for _, k2 in found}), found


def table(summary: Mapping[str, Any]) -> Table:
    """Return Recall@1 with a row per k1 and a column per k2."""
    inside, beyond, cells = by_slopes(summary["cells"])
    best = max(cell["mean"]["recall@1"] for cell in cells.values())

    def entry(cell: Mapping[str, Any]) -> Cell:
        text = written("recall@1", measured(cell, "recall@1"))
        return Cell(variants.marked(text, cell), best=cell["mean"]["recall@1"] == best)

    rows = tuple((Cell(f"k1 {k1:g}"), *(entry(cells[k1, k2]) for k2 in beyond)) for k1 in inside)
    heads = ("", *(f"k2 {k2:g}" for k2 in beyond))
    return Table(heads, rows, title=f"Recall@1, {variants.judged_on(summary)}")


def draw(summary: Mapping[str, Any]) -> dict[str, Drawing]:
    """Return Fig. 7 as a heat map, and one of AvgDTP."""
    figure = Figure(figsize=(10, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    heat_map(left, summary["cells"], "recall@1")
    heat_map(right, summary["cells"], "avg_dtp")
    rows = [
        {"k1": cell["k1"], "k2": cell["k2"]} | variants.columns_of(cell, METRICS) for cell in summary["cells"]
    ]
    return {"slopes": Drawing(figure, rows)}


def heat_map(axes: Axes, cells: Sequence[Mapping[str, Any]], metric: str) -> None:
    """Draw the means, each with its number; a cross marks pairs at which training blew up."""
    inside, beyond, by_pair = by_slopes(cells)
    factor = factor_of(metric)
    values = [[factor * by_pair[k1, k2]["mean"][metric] for k2 in beyond] for k1 in inside]
    axes.imshow(values, cmap="viridis", origin="lower", aspect="auto")
    lowest, highest = min(map(min, values)), max(map(max, values))
    for row, k1 in enumerate(inside):
        for column, k2 in enumerate(beyond):
            dark = values[row][column] < lowest + 0.6 * (highest - lowest)
            text = f"{values[row][column]:.1f}" + " ×" * bool(by_pair[k1, k2]["blew_up"])
            axes.text(column, row, text, ha="center", va="center", color="white" if dark else "black")
    axes.set_xticks(range(len(beyond)), [f"{k2:g}" for k2 in beyond])
    axes.set_yticks(range(len(inside)), [f"{k1:g}" for k1 in inside])
    title = metric_title(metric) + " (%)" * (factor != 1.0)
    axes.set(xlabel="k2, beyond alpha", ylabel="k1, inside alpha", title=title)
