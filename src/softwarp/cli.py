"""Command words -> typed functions: parsing, printing, exit codes, nothing else.

Heavy imports stand inside the commands, so that `softwarp --help` answers at once.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softwarp.commands import data, training
from softwarp.commands.compare import compare
from softwarp.commands.losses import losses
from softwarp.memory import freed_memory_kept

if TYPE_CHECKING:
    from rich.table import Table

app = typer.Typer(
    name="softwarp",
    help="Deep metric learning with Realigned Softmax Warping.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line; what the user can mend is one line and exit code 2, never a traceback."""
    try:
        app()
    except (ValueError, OSError) as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        sys.exit(2)


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Show the version and stop.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"softwarp {installed('softwarp')}")
        raise typer.Exit


app.command()(training.train)
app.command()(training.recipes)
app.command()(training.show)
app.command()(compare)
app.add_typer(data.app, name="data")
app.command()(losses)


@app.command()
def demo(
    output: Annotated[
        Path, typer.Option(help="Folder for the three runs, result.json and report.html.")
    ] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(min=0, help="Decides initial weights, batches and clustering.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few classes and epochs: seconds, poor figures.")
    ] = False,
) -> None:
    """Train three losses on glyphs and compare them on characters that none of them saw.

    Warped softmax, Euclidean softmax and ProxyNCA++ get the same network, batches and budget. Needs no
    download and takes about three minutes on two cores. A demo that was stopped goes on when the same
    command is given again; a finished one starts anew.
    """
    from rich.console import Console

    from softwarp.studies.demo import run_demo

    with freed_memory_kept(), training.bars_until_stopped(output) as progress:
        result = run_demo(output, seed=seed, quick=quick, progress=progress)
    Console().print(_table(result))
    typer.echo(f"report: {output / 'report.html'}")


@app.command()
def evaluate(
    source: Annotated[Path, typer.Argument(help="A run folder, or embeddings: .npy, .npz or .safetensors.")],
    labels: Annotated[
        Path | None,
        typer.Option(
            help="One class a row: .npy, .txt or .csv (column `label`); else the file's array `labels`."
        ),
    ] = None,
    gallery: Annotated[Path | None, typer.Option(help="Search these embeddings instead of the rest.")] = None,
    gallery_labels: Annotated[Path | None, typer.Option(help="Their labels.")] = None,
    queries: Annotated[
        Path | None,
        typer.Option(help="Row numbers (.txt, .npy) that are queries; the other rows are the gallery."),
    ] = None,
    key: Annotated[str | None, typer.Option(help="Name of the array where a file holds several.")] = None,
    metrics: Annotated[str, typer.Option(help="Any of retrieval, clustering, geometry.")] = "retrieval",
    ks: Annotated[str, typer.Option(help="The K of recall@K.")] = "1,2,4,8",
    map_ks: Annotated[str, typer.Option(help="The K of map@K.")] = "",
    ndcg_ks: Annotated[str, typer.Option(help="The K of ndcg@K.")] = "",
    distance: Annotated[
        str | None, typer.Option(help="euclidean or cosine; else that of the run's loss, or euclidean.")
    ] = None,
    bootstrap: Annotated[
        int, typer.Option(min=0, help="Resamples of classes for the 95% intervals; 0 for none.")
    ] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Decides k-means and the resamples.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure a run, or embeddings made elsewhere, exactly and in bounded memory.

    Retrieval (each query searches all others, never itself; ties by index):

    \b
    recall@K      share of queries with a positive among their K nearest
    precision@1   the same as recall@1
    r_precision   share of positives among the R nearest, R being a query's number of positives
    map@r         mean over the R nearest of the precision at each positive
    map@K         the same over the K nearest, of min(R, K) possible ones
    ndcg@K        discounted gain of the positives among the K nearest, of the best possible

    Clustering (seeded k-means, as many clusters as classes):

    \b
    nmi           mutual information of clusters and classes over the arithmetic mean of entropies
    nmi_geometric the same over their geometric mean, as ProxyNCA++ and HIST report it
    ami           mutual information adjusted for chance

    Geometry:

    \b
    compactness         mean distance between two embeddings of a class, averaged over classes
    separability        mean distance from a class's mean to the nearest other class's mean
    separability_ratio  separability / compactness
    spectral_decay      KL of a flat spectrum from that of the embeddings: 0 when all directions are used
    effective_rank      number of directions in use, exp of the spectrum's entropy

    95% intervals come from a bootstrap over classes. docs/metrics.md gives every definition.
    """
    from softwarp.commands.progress import share_bar
    from softwarp.embedding_files import load_tables
    from softwarp.evaluate import measure

    sides, usual = load_tables(source, labels, gallery, gallery_labels, queries, key)
    with share_bar("measuring") as advance:
        result = measure(
            *sides[:2],
            gallery=sides[2],
            gallery_labels=sides[3],
            families=_words(metrics),
            ks=_numbers(ks, "--ks"),
            map_ks=_numbers(map_ks, "--map-ks"),
            ndcg_ks=_numbers(ndcg_ks, "--ndcg-ks"),
            distance=distance or usual,
            bootstrap=bootstrap,
            seed=seed,
            advance=advance,
        )
    if as_json:
        typer.echo(_json(result))
    else:
        from rich.console import Console

        Console().print(_measured(result, source))


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(text: str, option: str) -> list[int]:
    try:
        return [int(word) for word in _words(text)]
    except ValueError:
        raise ValueError(
            f"{option} takes whole numbers with commas between, like 1,2,4,8; got {text!r}"
        ) from None


def _json(result: dict[str, Any]) -> str:
    import json
    import math

    finite = {name: value if math.isfinite(value) else None for name, value in result["metrics"].items()}
    return json.dumps(result | {"metrics": finite}, indent=2, allow_nan=False)


def _measured(result: dict[str, Any], source: Path) -> "Table":
    from rich.table import Table

    rows, dimensions = result["embeddings"]
    title = f"{source.name}: {rows} x {dimensions}, {result['classes']} classes, {result['distance']}"
    table = Table(title=title)
    table.add_column("metric")
    table.add_column("value", justify="right")
    if result["intervals"]:
        table.add_column("95% interval", justify="right")
    for name, value in result["metrics"].items():
        low_high = result["intervals"].get(name)
        interval = f"{low_high[0]:.4f} to {low_high[1]:.4f}" if low_high else ""
        cells = [name, str(value) if isinstance(value, int) else f"{value:.4f}", interval]
        table.add_row(*cells[: len(table.columns)])
    return table


def _table(result: dict[str, Any]) -> "Table":
    from rich.table import Table

    table = Table(title=result["title"], caption=result["caption"])
    table.add_column("loss")
    for name in result["columns"].values():
        table.add_column(name, justify="right")
    for row in result["rows"]:
        table.add_row(row["loss"], *row["cells"])
    return table
