"""How many samples of a class a batch should hold: a figure of your own in one file.

softwarp study examples/own_study.py --quick
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from softwarp.events import OnEvent
from softwarp.figures import COLOURS, Drawing, tidy
from softwarp.recipe.schema import parse_recipe
from softwarp.studies.variants import (
    Seeds,
    Words,
    seeds_of,
    settings_of_words,
    summarise_variants,
    train_variants,
)
from softwarp.tables import Row, Table, metric_table

PAPER = "not in the paper"
METRICS = ("recall@1", "map@r")


def main(
    words: Words = None, seeds: Seeds = 3, *, output: Path, quick: bool, on_event: OnEvent | None = None
) -> dict[str, Any]:
    """Train with 2, 4 and 8 samples per class in batches of 128."""
    base = settings_of_words(words or (), glyphs=("data.max_classes=200",), quick=quick)
    variants = {
        f"{128 // samples}x{samples}": parse_recipe(
            base | {"batches": {"classes": 128 // samples, "samples": samples}}
        )
        for samples in ((4, 8) if quick else (2, 4, 8))
    }
    found = train_variants(variants, output, seeds=seeds_of(seeds, quick), base=base, on_event=on_event)
    return {"rows": summarise_variants(found, METRICS)}


def table(summary: Mapping[str, Any]) -> Table:
    rows = [Row((name,), row["mean"], row["deviation"]) for name, row in summary["rows"].items()]
    return metric_table(rows, METRICS, ("classes x samples",))


def draw(summary: Mapping[str, Any]) -> dict[str, Drawing]:
    figure = Figure(figsize=(5, 3), layout="constrained")
    axes = figure.subplots()
    values = [row["mean"]["recall@1"] for row in summary["rows"].values()]
    axes.bar(list(summary["rows"]), values, color=COLOURS[1])
    axes.set(ylabel="Recall@1")
    tidy(axes)
    numbers = [{"batch": name, "recall@1": row["mean"]["recall@1"]} for name, row in summary["rows"].items()]
    return {"batches": Drawing(figure, numbers)}
