"""docs/losses.md, made from the cards of the losses: python -m softwarp.studies.losses_docs"""

import json
from pathlib import Path
from typing import Any

from softwarp.files import write_text
from softwarp.losses import LOSSES, card_of
from softwarp.losses.card import settings_of

DOCS = Path("docs/losses.md")
RESULT = Path("results/losses_on_glyphs.json")

HEAD = """# Losses

Each is made by `build_loss(name, num_classes, embedding_size, **settings)` and called
`loss(embeddings, labels)`. `softwarp losses` lists them, `softwarp losses NAME` explains one. This page is
made from the same cards by `python -m softwarp.studies.losses_docs`; every loss is held to a loop in float64
written from its equation (`tests/test_loss_conformance.py`). To add one, see
[examples/own_loss.py](../examples/own_loss.py).

| name | loss | year | distance | kind | a batch needs | Recall@1 | MAP@R | settings |
|---|---|---|---|---|---|---:|---:|---|
"""
NOTE = """
Recall@1 and MAP@R, in percent, on {evaluated} glyph classes never trained on, after the same short budget on
{train} others, every loss with its defaults, one seed, no search: they say that each loss learns, not which
is best. Before training the network has {recall:.1f} and {map:.1f}; {below} end below that. By `{command}`
([results/losses_on_glyphs.json](../results/losses_on_glyphs.json)).
"""


def main() -> None:
    """Write docs/losses.md."""
    write_text(DOCS, page())


def page(result: Path = RESULT) -> str:
    """Return the whole page: a row and a paragraph for each loss."""
    measured = json.loads(result.read_text())
    rows = "".join(_row(name, measured["losses"][name]) for name in LOSSES)
    recall, precision = (100 * measured["untrained"][metric] for metric in ("recall@1", "map@r"))
    below = ", ".join(f"`{name}`" for name in LOSSES if not learned(measured, name)) or "none"
    words = {"command": measured["command"], "below": below, "recall": recall, "map": precision}
    note = NOTE.format(**measured["classes"], **words)
    return HEAD + rows + note + "".join(map(_paragraph, LOSSES))


def learned(measured: dict[str, Any], name: str) -> bool:
    """Return whether the loss ended above the untrained network in every metric."""
    return all(measured["losses"][name][metric] > before for metric, before in measured["untrained"].items())


def _row(name: str, measured: dict[str, float]) -> str:
    card, loss = card_of(name), LOSSES[name]
    settings = ", ".join(f"{key} {value}" for key, value in settings_of(loss).items())
    cells = (
        f"`{name}`",
        card.title,
        str(card.year),
        str(vars(loss)["distance"]),
        card.kind,
        card.needs(),
        f"{100 * measured['recall@1']:.1f}",
        f"{100 * measured['map@r']:.1f}",
        settings,
    )
    return f"| {' | '.join(cells)} |\n"


def _paragraph(name: str) -> str:
    card = card_of(name)
    space = ", ".join(
        f"{key} {low:g} to {high:g} ({kind})" for key, (kind, low, high) in card.search_space.items()
    )
    parts = [f"{card.citation}.", f"```\n{card.equation}\n```"]
    parts += [card.notes] if card.notes else []
    parts += [f"It trains besides: {card.networks}."] if card.networks else []
    parts += [
        f"By default: {card.classes} classes x {card.samples} samples in a batch, {card.optimizer}, "
        f"rate ratio {card.proxy_rate_ratio:g}. Search space: {space}."
    ]
    return f"\n## {name}\n\n" + "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
