"""Writes docs/losses.md from the cards of the losses: make docs"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from freshness import note

from softwarp.files import write_text
from softwarp.losses import LOSSES, card_of
from softwarp.losses.contract import settings_of

DOCS = Path("docs/losses.md")
RESULT = Path("results/losses_on_glyphs.json")
BENCHMARK = Path("results/benchmark_losses.json")

HEAD = """# Losses

```
softwarp losses                                   # the list
softwarp losses proxy_anchor                      # citation, equation, settings, search space
softwarp train loss.name=proxy_anchor             # train it on the built-in glyphs; works with any recipe
```

```python
import softwarp

loss = softwarp.build_loss("proxy_anchor", num_classes=100, embedding_size=512, margin=0.1)
value = loss(embeddings, labels)
```

`make docs` writes this page from the cards of the losses. Every loss is tested against a float64 loop written
from its equation (`tests/losses/test_conformance.py`). To add one, see
[examples/own_loss.py](../examples/own_loss.py).

| name | loss | year | distance | kind | a batch needs | Recall@1 | MAP@R | settings |
|---|---|---|---|---|---|---:|---:|---|
"""
NOTE = """
Recall@1 and MAP@R, in percent, on {evaluated} unseen glyph classes, after the same short training on
{train} others. Each loss is trained with its defaults and with {trials} settings from its search space. The
setting that is best on validation classes is trained again and judged on test classes, with one seed. The
figures show that each loss learns, not which is best. The untrained network has {recall:.1f} and {map:.1f}.
Losses that end below it: {below}; with their defaults, on validation classes: {below_by_default}.
By `{command}` ([results/losses_on_glyphs.json](../results/losses_on_glyphs.json)).
"""


COST = """
## Time and memory

Forward and backward on {threads} CPU threads: milliseconds (as a multiple of the three matrix products that
compute all similarities and their gradients), and peak memory beyond parameters, embeddings and their
gradients. Batches of 4,000 are for losses that rank; `pml_smooth_ap` is pytorch-metric-learning's Smooth-AP.
By `{command}` ([results/benchmark_losses.json](../results/benchmark_losses.json)).

"""


def main() -> None:
    """Write docs/losses.md."""
    write_text(DOCS, page())


def page(result: Path = RESULT, benchmark: Path = BENCHMARK) -> str:
    """Return the whole page: what was measured, and a row and a paragraph per loss."""
    measured = json.loads(result.read_text())
    rows = {name: measured["losses"][name] for name in LOSSES if name in measured["losses"]}
    recall, precision = (100 * value for value in rows["warped_softmax"]["untrained"].values())
    said = NOTE.format(
        **rows["warped_softmax"]["classes"],
        trials=measured["trials"],
        command=measured["command"],
        recall=recall,
        map=precision,
        below=_names(name for name, row in rows.items() if not learned(row)),
        below_by_default=_names(name for name, row in rows.items() if not learned(row["defaults"])),
    )
    table = "".join(_row(name, rows.get(name)) for name in LOSSES)
    said += note("losses_on_glyphs", measured)
    return HEAD + table + said + _cost(json.loads(benchmark.read_text())) + "".join(map(_paragraph, LOSSES))


def learned(row: dict[str, Any]) -> bool:
    """Return whether a loss ended above the untrained network in every metric."""
    return all(row[metric] > before for metric, before in row["untrained"].items())


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def _row(name: str, measured: dict[str, Any] | None) -> str:
    card, loss = card_of(name), LOSSES[name]
    settings = ", ".join(f"{key} {value}" for key, value in settings_of(loss).items())
    cells = (
        f"`{name}`",
        card.title,
        str(card.year),
        str(vars(loss)["distance"]),
        card.kind,
        card.needs(),
        *(f"{100 * measured[metric]:.1f}" if measured else "" for metric in ("recall@1", "map@r")),
        settings,
    )
    return f"| {' | '.join(cells)} |\n"


def _cost(measured: dict[str, Any]) -> str:
    sizes = measured["sizes"]
    heads = [f"N={size['samples']:,} C={size['classes']:,}" for size in sizes]
    lines = [["loss", *heads], ["---", *["---:"] * len(sizes)]]
    columns = [{row["name"]: _cost_cell(row) for row in size["losses"]} for size in sizes]
    names = dict.fromkeys(name for column in columns for name in column)
    lines += [[f"`{name}`", *(column.get(name, "") for column in columns)] for name in names]
    head = COST.format(threads=measured["environment"]["threads"], command=measured["command"])
    return head + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cost_cell(row: dict[str, Any]) -> str:
    if "median_seconds" not in row:
        return str(row["status"])
    time = f"{1000 * row['median_seconds']:,.1f} ms ({row['multiple_of_products']:,.0f}x)"
    return f"{time}, {row['peak_megabytes']:,.0f} MB"


def _paragraph(name: str) -> str:
    card = card_of(name)
    space = ", ".join(
        f"{key} {low:g} to {high:g} ({kind})" for key, (kind, low, high) in card.search_space.items()
    )
    parts = [f"{card.citation}.", f"```\n{card.equation}\n```"]
    parts += [card.notes] if card.notes else []
    parts += [f"It also trains: {card.networks}."] if card.networks else []
    parts += [
        f"Trained with {card.training}. "
        + f"Here its own parameters have {card.proxy_rate_ratio:g} times the rate of the model's head. "
        * (card.training.rate_ratio is not None)
        + f"Search space: {space}."
    ]
    return f"\n## {name}\n\n" + "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
