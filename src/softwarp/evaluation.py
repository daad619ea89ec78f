"""From a model and images to embeddings, and from any embeddings to metrics."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from softwarp import processes
from softwarp.data.images import load_batches
from softwarp.data.sources import Images
from softwarp.metrics import (
    bootstrap_over_classes,
    clustering_metrics,
    geometry_metrics,
    knn_per_query,
    retrieval_metrics,
    retrieval_per_query,
)
from softwarp.metrics.checks import Array, Labels, numbered
from softwarp.tables import Table, figure, figures_table, metric_title

BATCH = 128  # images that a process embeds at a time
NOTHING = (torch.empty(0), torch.empty(0, dtype=torch.long))
FAMILIES = ("retrieval", "clustering", "geometry")
KNN = (5,)  # K of the votes that runs on closed sets report


@torch.no_grad()
def embed(model: nn.Module, images: Tensor, *, batch_size: int = 500) -> Tensor:
    """Return the embeddings of all images, [N, D], on the CPU, computed in evaluation mode.

    Each module is put back into the mode it was in: frozen batch norms stay frozen.

    >>> embed(nn.Flatten(), torch.zeros(3, 1, 2, 2)).shape
    torch.Size([3, 4])
    """
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        return torch.cat([model(batch.to(device)).float().cpu() for batch in images.split(batch_size)])
    finally:
        for module, training in modes:
            module.training = training


@torch.no_grad()
def embed_images(
    model: Callable[[Tensor], Tensor],
    images: Images,
    *,
    device: torch.device,
    items: Tensor | None = None,
    workers: int = 0,
) -> tuple[Tensor, Tensor]:
    """Return the embeddings [N, D] of a data set, on the CPU, and the items they belong to.

    Broken images are left out, so items may be missing. The processes of a run share the work, and each
    returns the whole result. The caller puts the model into evaluation mode.

    Training evaluates this way: its own loader processes make the batches, and each rank embeds a share.
    Everything else embeds by `EmbeddingModel.embed_ahead`, in threads of one process.
    """
    chosen = torch.arange(len(images)) if items is None else items
    batches = [[(item, 0) for item in part.tolist()] for part in chosen.split(BATCH)]
    own = batches[processes.rank() :: processes.count()] if processes.together() else batches
    loaded = load_batches(images, own, workers=workers)  # type: ignore[arg-type]
    share = [
        (model(batch.images.to(device)).float().cpu(), batch.items) for batch in loaded if len(batch.items)
    ]
    turns = zip_longest(*processes.gather_objects(share))
    found = [pair for turn in turns for pair in turn if pair is not None] or [NOTHING]
    embeddings, kept = zip(*found, strict=True)
    return torch.cat(embeddings), torch.cat(kept)


def evenly_spaced(count: int, most: int) -> Tensor:
    """Return places among so many items, all of them or as many as there may be at most, evenly spaced.

    >>> evenly_spaced(10, 4).tolist(), evenly_spaced(2, 4).tolist()
    ([0, 3, 6, 9], [0, 1])
    """
    return torch.linspace(0, count - 1, min(most, count)).long()


def ks_within(ks: Sequence[int], embeddings: Tensor, gallery: Tensor | None) -> list[int]:
    """Return those K for which there are as many items to search: a small test set lacks the largest.

    >>> ks_within((1, 2, 4, 8), torch.zeros(5, 2), None)
    [1, 2, 4]
    """
    searched = len(embeddings) - 1 if gallery is None else len(gallery)
    return [k for k in ks if k <= searched]


def map_at_r_per_class(
    arrays: Mapping[str, Tensor], names: Sequence[str] | Mapping[int, str], *, distance: str
) -> dict[str, float]:
    """Return the MAP@R of each class, the mean over its queries; a class with nothing to find has none.

    Args:
        arrays: `embeddings` and `labels`; with `gallery` and `gallery_labels`, these are searched.
        names: the name of each label.

    >>> arrays = {"embeddings": torch.tensor([[0.0], [1.0], [5.0]]), "labels": torch.tensor([1, 1, 0])}
    >>> map_at_r_per_class(arrays, ["owl", "wren"], distance="euclidean")
    {'wren': 1.0}
    """
    labels = arrays["labels"]
    values = retrieval_per_query(
        arrays["embeddings"],
        labels,
        gallery=arrays.get("gallery"),
        gallery_labels=arrays.get("gallery_labels"),
        ks=(1,),
        distance=distance,
    )["map@r"].cpu()
    asked = labels[~values.isnan()].unique().tolist()
    return {names[label]: float(values[labels == label].nanmean()) for label in asked}


def whole_gallery_metrics(
    arrays: Mapping[str, Tensor], distractors: Tensor, *, distance: str
) -> dict[str, float]:
    """Return Recall@1 and MAP@R of queries that search embeddings of other classes besides their own gallery.

    Args:
        arrays: `embeddings` and `labels`, whose queries do not find themselves; perhaps `gallery` and
            `gallery_labels`.

    >>> arrays = {"embeddings": torch.tensor([[0.0], [2.0]]), "labels": torch.tensor([0, 0])}
    >>> whole_gallery_metrics(arrays, torch.tensor([[1.5]]), distance="euclidean")
    {'whole_gallery_recall@1': 0.0, 'whole_gallery_map@r': 0.0}
    """
    queries, labels = arrays["embeddings"], arrays["labels"]
    searched = torch.cat([arrays.get("gallery", queries), distractors])
    nobody = labels.new_full((len(distractors),), -1)
    found = retrieval_metrics(
        queries,
        labels,
        gallery=searched,
        gallery_labels=torch.cat([arrays.get("gallery_labels", labels), nobody]),
        query_rows=None if "gallery" in arrays else torch.arange(len(queries)),
        ks=(1,),
        distance=distance,
    )
    return {f"whole_gallery_{name}": found[name] for name in ("recall@1", "map@r")}


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` found; shows itself as a table."""

    metrics: dict[str, float]
    intervals: dict[str, tuple[float, float]]  # 95%, over classes
    distance: str
    embeddings: tuple[int, int]
    gallery: tuple[int, int] | None
    classes: int

    def table(self) -> Table:
        """Return a row per metric."""
        size = f"{self.embeddings[0]:,} embeddings of {self.classes} classes, {self.distance} distance"
        return figures_table(self.metrics, {}, {}, title=size)

    def __repr__(self) -> str:
        figures = (f"{metric_title(name)} {figure(name, value)}" for name, value in self.metrics.items())
        return f"Evaluation({self.table().title}: {', '.join(figures)})"

    def _repr_html_(self) -> str:
        return self.table().html()


def evaluate(
    embeddings: Array | Sequence[Sequence[float]],
    labels: Labels,
    *,
    gallery: Array | Sequence[Sequence[float]] | None = None,
    gallery_labels: Labels | None = None,
    distance: str = "euclidean",
    metrics: Sequence[str] = ("retrieval",),
    ks: Sequence[int] | None = None,
    bootstrap: int = 0,
    seed: int = 0,
) -> Evaluation:
    """Return how well embeddings retrieve their own class: Recall@K, R-precision, MAP@R and more.

    Args:
        embeddings: [N, D], a tensor, an array or lists; without a gallery each searches among the others.
        labels: numbers or text, one per embedding.
        distance: "euclidean" or "cosine"; a model's own is `model.distance`.
        metrics: any of retrieval, clustering (NMI, AMI) and geometry.
        bootstrap: resamples of the classes for 95% intervals; 0 for none.

    >>> found = evaluate([[0.0], [1.0], [5.0], [6.0]], ["owl", "owl", "wren", "wren"])
    >>> found.metrics["recall@1"], found.classes
    (1.0, 2)
    """
    found = measure(
        _array(embeddings),
        labels,
        gallery=None if gallery is None else _array(gallery),
        gallery_labels=gallery_labels,
        families=metrics,
        ks=ks,
        distance=distance,
        bootstrap=bootstrap,
        seed=seed,
    )
    sizes = {key: found[key] and tuple(found[key]) for key in ("embeddings", "gallery")}
    return Evaluation(found["metrics"], found["intervals"], distance, classes=found["classes"], **sizes)


def _array(values: Array | Sequence[Sequence[float]]) -> Array:
    return values if isinstance(values, Tensor | np.ndarray) else np.asarray(values, np.float32)


def measure(
    embeddings: Array,
    labels: Labels,
    *,
    gallery: Array | None = None,
    gallery_labels: Labels | None = None,
    families: Sequence[str] = ("retrieval",),
    ks: Sequence[int] | None = None,
    map_ks: Sequence[int] = (),
    ndcg_ks: Sequence[int] = (),
    knn_ks: Sequence[int] = (),
    distance: str = "euclidean",
    bootstrap: int = 0,
    seed: int = 0,
    advance: Callable[[float], None] | None = None,
) -> dict[str, Any]:
    """Return `metrics`, 95% `intervals` of the retrieval ones (classes resampled), and what was measured.

    Args:
        labels: of the embeddings, numbers or text; `gallery_labels` of the gallery, and the same label means
            the same class.
        knn_ks: K of `knn@K`, the accuracy of a vote of the K nearest.
        families: any of retrieval, clustering, geometry; the last two use only `embeddings`.
        bootstrap: number of resamples; 0 for no intervals.
        advance: called with the share of the work just done.

    >>> measure(torch.tensor([[0.0], [1.0], [5.0], [6.0]]), torch.tensor([0, 0, 1, 1]))["metrics"]["recall@1"]
    1.0
    """
    unknown = set(families) - set(FAMILIES)
    if unknown or not families:
        raise ValueError(f"unknown metrics {', '.join(sorted(unknown))!r}; choose from {', '.join(FAMILIES)}")
    if gallery_labels is None:
        (labels,) = numbered(labels)
    else:
        labels, gallery_labels = numbered(labels, gallery_labels)

    def step(share: float) -> None:
        if advance:
            advance(share / len(set(families)))

    metrics: dict[str, float] = {}
    intervals: dict[str, tuple[float, float]] = {}
    if "retrieval" in families:
        values = retrieval_per_query(
            embeddings,
            labels,
            gallery=gallery,
            gallery_labels=gallery_labels,
            ks=ks,
            map_ks=map_ks,
            ndcg_ks=ndcg_ks,
            distance=distance,
            advance=step,
        )
        if knn_ks:
            sides: dict[str, Any] = {"gallery": gallery, "gallery_labels": gallery_labels}
            values |= knn_per_query(embeddings, labels, ks=knn_ks, distance=distance, **sides)
        without = int(values["map@r"].isnan().sum())
        if without == len(embeddings):
            raise ValueError("no query has another embedding of its class to find; check the labels")
        metrics |= {name: float(value.nanmean()) for name, value in values.items()}
        metrics |= {"queries": len(embeddings) - without, "queries_without_positives": without}
        if bootstrap:
            intervals = {
                name: bootstrap_over_classes(value, labels, samples=bootstrap, seed=seed)
                for name, value in values.items()
            }
    if "clustering" in families:
        metrics |= clustering_metrics(embeddings, labels, seed=seed, distance=distance, advance=step)
    if "geometry" in families:
        metrics |= geometry_metrics(embeddings, labels, distance=distance)
        step(1.0)
    return {
        "distance": distance,
        "embeddings": list(embeddings.shape),
        "gallery": None if gallery is None else list(gallery.shape),
        "classes": len(torch.unique(torch.as_tensor(labels))),
        "seed": seed,
        "bootstrap": bootstrap,
        "metrics": metrics,
        "intervals": intervals,
    }
