"""`softwarp weights`: which networks have pretrained weights here, and adds and removes files of weights."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from softwarp.models.known_weights import WeightsHere

MB = 1e6
SHORT = 12  # digits of a hash that are shown

app = typer.Typer(
    help="List the pretrained weights on this machine, describe networks, or add a file where no hub can be "
    "reached. Nothing is fetched.",
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def weights(
    context: typer.Context,
    names: Annotated[
        str | None,
        typer.Option(
            help="Networks to describe, separated by commas: where weights come from, licence, input, size."
        ),
    ] = None,
) -> None:
    if context.invoked_subcommand is not None:
        return
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    if names is not None:
        wanted = names.replace(",", " ").split()
        if not wanted:
            raise ValueError("--names needs a network, like --names vit_small_patch14_dinov2")
        for name in wanted:
            console.print(_described(name))
        return
    from softwarp.models.known_weights import only_from_files, weights_here
    from softwarp.models.weights_folder import weights_folder

    console.print(_listed(weights_here()))
    typer.echo("any other network of timm: from its hub (softwarp weights --names NAME), or from a file")
    typer.echo(f"from a file alone: {', '.join(only_from_files())}")
    typer.echo(f"a file: softwarp weights add FILE --as NAME, into {weights_folder()}")


@app.command()
def add(
    file: Annotated[Path, typer.Argument(help="The weights: .safetensors, .pth or .pt.")],
    name: Annotated[str, typer.Option("--as", help="The network, as model.backbone calls it.")],
    licence: Annotated[
        str | None, typer.Option(help="Licence of the weights. Default: what timm notes for them.")
    ] = None,
    source: Annotated[str, typer.Option(help="Where the file came from, for the record.")] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="Put it in the place of another file of that name.")
    ] = False,
) -> None:
    """Keep a copy of a file of weights for a network; from then on model.pretrained=true takes it.

    The file is loaded into the network first, so that one of another network is refused.
    """
    from softwarp.models.adding_weights import add_weights

    added = add_weights(file, name, licence=licence, source=source, replace=replace)
    size = added.path.stat().st_size / MB
    by_default = "" if licence else " (--licence names another)"
    typer.echo(
        f"{name}: {size:,.1f} MB of {added.original}, licence {added.licence}{by_default}, SHA-256 "
        f"{added.sha256[:SHORT]}, in {added.path}"
    )


@app.command()
def remove(name: Annotated[str, typer.Argument(help="The network that it was added for.")]) -> None:
    """Remove weights that were added."""
    from softwarp.models.weights_folder import remove_weights

    removed = remove_weights(name)
    typer.echo(f"{name}: removed the weights of {removed.original} (SHA-256 {removed.sha256[:SHORT]})")


def _listed(rows: "list[WeightsHere]") -> "Table":
    from rich.table import Table

    table = Table(title=f"weights on this machine: {len(rows)}")
    for head in ("name", "where", "MB", "licence", "sha256"):
        justify: Literal["left", "right"] = "right" if head == "MB" else "left"
        table.add_column(head, overflow="fold", justify=justify, no_wrap=head == "name")
    for row in rows:
        origin = row.origin
        table.add_row(
            origin.name, origin.where, f"{row.size / MB:,.1f}", origin.licence, origin.sha256[:SHORT]
        )
    return table


def _described(name: str) -> "Table":
    from rich.table import Table

    from softwarp.models.known_weights import describe_network

    network = describe_network(name)
    side = f"{network.side} x {network.side} pixels, " if network.side else ""
    nowhere = f"not here; softwarp weights add FILE --as {name}"
    table = Table(title=name, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for head, text in {
        "architecture": network.architecture,
        "input": f"{side}{network.channels} channel{'s' * (network.channels > 1)}",
        "MB": f"{network.size / MB:,.1f} in float32",
        "hub": f"{network.address}, licence {network.licence}" if network.address else "none",
        "this machine": str(network.here) if network.here else nowhere,
    }.items():
        table.add_row(head, text)
    return table
