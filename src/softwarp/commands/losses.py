"""`softwarp losses`: lists the losses, or explains one."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table


def losses(
    name: Annotated[
        str | None, typer.Argument(help="A loss to explain, or FILE.py:CLASS; by default all are listed.")
    ] = None,
) -> None:
    """List the losses, or explain one: paper, equation, settings, what a batch needs, search space."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    console.print(_list() if name is None else _explanation(name))


def _list() -> "Table":
    from rich.table import Table

    from softwarp.losses import LOSSES, card_of

    table = Table(title=f"{len(LOSSES)} losses", caption="softwarp losses NAME explains one")
    for head in ("name", "paper", "year", "distance", "kind", "needs"):
        table.add_column(head, no_wrap=head in ("name", "year"))
    for name, loss in LOSSES.items():
        card = card_of(name)
        authors = card.citation.split(":")[0].split(", ")
        paper = f"{card.title} ({authors[0]}{' et al.' if len(authors) > 1 else ''})"
        table.add_row(name, paper, str(card.year), str(vars(loss)["distance"]), card.kind, card.needs())
    return table


def _explanation(name: str) -> "Table":
    from rich.table import Table

    from softwarp.losses import card_of, find_loss
    from softwarp.losses.contract import phase_settings_of, settings_of

    loss, card = find_loss(name), card_of(name)
    space = [f"{key}: {low:g} to {high:g} ({kind})" for key, (kind, low, high) in card.search_space.items()]
    rows = {
        "loss": card.title,
        "paper": card.citation,
        "equation": card.equation,
        "distance": str(loss.distance),  # type: ignore[attr-defined]
        "kind": card.kind,
        "networks": card.networks,
        "settings": "\n".join(f"{key} = {value}" for key, value in settings_of(loss).items()),
        "set by phases": ", ".join(phase_settings_of(loss)),
        "a batch needs": card.needs(),
        "trained with": str(card.training),
        "here": "the recipe's batches and optimizer are kept"
        + f"; the loss's own parameters have {card.proxy_rate_ratio:g} times the learning rate of the head"
        * (card.training.rate_ratio is not None),
        "search space": "\n".join(space),
        "notes": card.notes,
    }
    table = Table(title=name, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for head, text in rows.items():
        if text:
            table.add_row(head, text)
    return table
