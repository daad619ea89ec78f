"""`softwarp evaluate`: metrics of a run, or of embeddings made elsewhere."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from softwarp.commands.progress import share_bar
from softwarp.files import printable

if TYPE_CHECKING:
    from rich.table import Table
    from torch import Tensor

    from softwarp.data.embedding_files import Tables

ARRAYS = ("embeddings", "labels", "gallery", "gallery_labels")


def evaluate(
    source: Annotated[Path, typer.Argument(help="A run folder, or embeddings: .npy, .npz or .safetensors.")],
    labels: Annotated[
        Path | None,
        typer.Option(
            help="One class per row: .npy, .txt or .csv (column `label`). Default: the file's `labels` array."
        ),
    ] = None,
    gallery: Annotated[
        Path | None, typer.Option(help="Search these embeddings instead of the other rows.")
    ] = None,
    gallery_labels: Annotated[Path | None, typer.Option(help="Labels of the gallery.")] = None,
    queries: Annotated[
        Path | None,
        typer.Option(help="Numbers of the rows that are queries (.txt, .npy); the others are the gallery."),
    ] = None,
    key: Annotated[str | None, typer.Option(help="Name of the array, if a file holds several.")] = None,
    metrics: Annotated[
        str | None,
        typer.Option(help="Any of retrieval, clustering, geometry. Default: those of the run, or retrieval."),
    ] = None,
    ks: Annotated[
        str | None,
        typer.Option(help="K of recall@K. Default: those of the run, or 1,2,4,8 up to the number of items."),
    ] = None,
    map_ks: Annotated[str, typer.Option(help="K of map@K.")] = "",
    ndcg_ks: Annotated[str, typer.Option(help="K of ndcg@K.")] = "",
    knn_ks: Annotated[
        str | None, typer.Option(help="K of knn@K. Default: those of the run, or none.")
    ] = None,
    distance: Annotated[
        str | None, typer.Option(help="euclidean or cosine. Default: that of the run's loss, or euclidean.")
    ] = None,
    bootstrap: Annotated[
        int, typer.Option(min=0, help="Class resamples for the 95% intervals; 0 for none.")
    ] = 1000,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, max=2**31 - 1, help="Seed of k-means and resampling. Default: that of the run, or 0."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure a run, or embeddings made elsewhere, exactly and in bounded memory.

    A run is measured with its own settings: the figures match its result.json.

    Retrieval (each query searches all others, never itself; ties by index):

    \b
    recall@K      share of queries with a positive among their K nearest
    precision@1   the same as recall@1
    r_precision   share of positives among the R nearest, where R is the number of positives
    map@r         mean over the R nearest of the precision at each positive
    map@K         the same over the K nearest, divided by min(R, K)
    ndcg@K        discounted gain of the positives among the K nearest, over the best possible
    knn@K         share of queries whose class gets most votes of the K nearest; the nearest breaks ties

    Clustering (seeded k-means, as many clusters as classes):

    \b
    nmi           mutual information of clusters and classes over their entropies' arithmetic mean
    nmi_geometric the same over their geometric mean, as ProxyNCA++ and HIST report it
    ami           mutual information adjusted for chance

    Geometry:

    \b
    compactness         mean distance between two embeddings of a class, averaged over classes
    separability        mean distance from a class's mean to the nearest other class's mean
    separability_ratio  separability / compactness
    spectral_decay      KL from the flat spectrum to the embeddings' own: 0 if all directions are used
    effective_rank      number of directions in use, exp of the spectrum's entropy
    between_share       share of the squared distances to the mean that lies between class means
    norm                mean length of the embeddings
    norm_deviation      standard deviation of these lengths
    hubness             skewness of how often an embedding is among the ten nearest of others

    95% intervals come from a bootstrap over classes. docs/metrics.md gives every definition.
    """
    from softwarp.data.embedding_files import load_tables
    from softwarp.evaluation import measure

    _refuse_images(source)
    usual: dict[str, Any] = {}
    if source.is_dir():
        arrays, usual = _as_the_run_did(source)
        source /= "embeddings.safetensors"
    chosen = labels or gallery or gallery_labels or queries or key
    if usual and chosen and "gallery" in arrays:
        raise ValueError(f"{source.parent} has its own queries and gallery; omit {chosen}")
    if usual and not chosen:
        sides: Tables = tuple(arrays.get(name) for name in ARRAYS)  # type: ignore[assignment]
    else:
        sides = load_tables(source, labels, gallery, gallery_labels, queries, key)
    with share_bar("measuring") as advance:
        result = measure(
            *sides[:2],
            gallery=sides[2],
            gallery_labels=sides[3],
            families=_words(metrics) if metrics is not None else usual.get("families", ["retrieval"]),
            ks=_numbers(ks, "--ks") if ks is not None else usual.get("ks"),
            map_ks=_numbers(map_ks, "--map-ks"),
            ndcg_ks=_numbers(ndcg_ks, "--ndcg-ks"),
            knn_ks=_numbers(knn_ks, "--knn-ks") if knn_ks is not None else usual.get("knn_ks", []),
            distance=distance or usual.get("distance", "euclidean"),
            bootstrap=bootstrap,
            seed=seed if seed is not None else usual.get("seed", 0),
            advance=advance,
        )
    if metrics is None:
        result["metrics"] |= usual.get("from training", {})
    if as_json:
        typer.echo(_json(result))
    else:
        from rich.console import Console

        Console().print(_measured(result, source))


def _refuse_images(source: Path) -> None:
    """Say what to do with images, in a folder or a CSV file: they have to be embedded first."""
    from softwarp.data.trees import find_images, is_list

    no_run = source.is_dir() and not (source / "recipe.yaml").exists()
    if is_list(source) or (no_run and find_images([source]).paths):
        raise ValueError(
            f"{source} holds images, not embeddings; embed them first: "
            f"softwarp embed RUN {source} -o vectors.safetensors, then evaluate that file"
        )


def _as_the_run_did(folder: Path) -> "tuple[dict[str, Tensor], dict[str, Any]]":
    """Return the embeddings of a run and the settings with which it measured them when it ended."""
    from softwarp.evaluation import ks_within
    from softwarp.runs.run import Run

    run = Run(folder)
    arrays, settings, result = run.load_embeddings(), run.recipe(), run.result()
    if not result.images.evaluated:
        raise ValueError(f"{folder} was judged on no images; measure embeddings of images it has not seen")
    return arrays, {
        "families": ["retrieval", *(["clustering"] if settings.evaluation.clustering else [])],
        "ks": ks_within(settings.evaluation.ks, arrays["embeddings"], arrays.get("gallery")),
        "knn_ks": [int(name.removeprefix("knn@")) for name in result.metrics if name.startswith("knn@")],
        "distance": result.distance,
        "seed": settings.seed,
        "from training": {  # which training images or proxies are needed for
            name: value
            for name, value in result.metrics.items()
            if name == "avg_dtp" or name.startswith("whole_gallery_")
        },
    }


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(text: str, option: str) -> list[int]:
    try:
        return [int(word) for word in _words(text)]
    except ValueError:
        raise ValueError(
            f"{option} takes whole numbers separated by commas, like 1,2,4,8; got {text!r}"
        ) from None


def _json(result: dict[str, Any]) -> str:
    import json
    import math

    finite = {name: value if math.isfinite(value) else None for name, value in result["metrics"].items()}
    return json.dumps(result | {"metrics": finite}, indent=2, allow_nan=False)


def _measured(result: dict[str, Any], source: Path) -> "Table":
    from rich.markup import escape
    from rich.table import Table

    from softwarp.tables import figure, metric_title

    rows, dimensions = result["embeddings"]
    name = printable(source.name)
    title = f"{name}: {rows} x {dimensions}, {result['classes']} classes, {result['distance']}"
    table = Table(title=escape(title))
    table.add_column("metric")
    table.add_column("value", justify="right")
    if result["intervals"]:
        table.add_column("95% interval", justify="right")
    for name, value in result["metrics"].items():
        low_high = result["intervals"].get(name)
        interval = f"{figure(name, low_high[0])} to {figure(name, low_high[1])}" if low_high else ""
        cells = [metric_title(name), figure(name, value), interval]
        table.add_row(*cells[: len(table.columns)])
    return table
