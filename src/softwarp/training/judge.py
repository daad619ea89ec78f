"""What a run says of its model: metrics on what the recipe judges, shares of the way, AvgDTP."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from softwarp import processes
from softwarp.data.sources import Images, Items
from softwarp.evaluation import (
    KNN,
    embed_images,
    evenly_spaced,
    ks_within,
    map_at_r_per_class,
    measure,
    whole_gallery_metrics,
)
from softwarp.losses import contract
from softwarp.metrics import average_distance_to_proxy
from softwarp.models.adapters import merged
from softwarp.models.embedder import Embedder
from softwarp.runs.run import EvaluatedImage
from softwarp.training.features import in_parts, items_to_calibrate, pooled_of
from softwarp.training.job import Job

SIDES = (
    ("embeddings", "labels"),
    ("gallery", "gallery_labels"),
)  # names of the arrays: the queries, and what they search


@dataclass(frozen=True)
class Judgement:
    """The outcome of an evaluation: metrics, and the embeddings with their images."""

    metrics: dict[str, float]
    arrays: dict[str, Tensor]
    items: list[EvaluatedImage]


@dataclass(frozen=True)
class Untrained:
    """A network that is as it was before training; its pooled features may be known already.

    `after` makes embeddings of them.
    """

    network: Embedder
    after: Callable[[Tensor], Tensor]

    def __call__(self, images: Tensor) -> Tensor:
        return self.after(self.network.pooled(images))


def untrained(job: Job) -> Embedder:
    """Return the job's network before its first step, without adapters."""
    if job.start is not None:
        return job.start.eval()
    return (merged(job.judged) if job.recipe.model.adapter else job.judged).eval()


def evaluate_job(
    job: Job,
    model: Callable[[Tensor], Tensor],
    *,
    distance: str,
    clustering: bool = False,
    whole_gallery: bool = False,
) -> Judgement:
    """Return how well a model retrieves what the recipe evaluates; in a closed set also how well it votes.

    Args:
        whole_gallery: in an open set, also how well it does so among the training images.
    """
    source = job.source
    if not len(source.query_labels):
        return Judgement({}, {"embeddings": torch.empty(0, 0), "labels": source.query_labels}, [])
    sides, items = [(source.queries, source.query_labels)], [source.query_items]
    if source.gallery is not None and source.gallery_labels is not None and source.gallery_items is not None:
        sides.append((source.gallery, source.gallery_labels))
        items.append(source.gallery_items)
    job.judged.eval()
    arrays, kept = _embed_sides(job, model, sides)
    metrics: dict[str, float] = processes.from_main(
        lambda: measure(
            arrays["embeddings"],
            arrays["labels"],
            gallery=arrays.get("gallery"),
            gallery_labels=arrays.get("gallery_labels"),
            families=("retrieval", "clustering") if clustering else ("retrieval",),
            ks=ks_within(job.recipe.evaluation.ks, arrays["embeddings"], arrays.get("gallery")),
            knn_ks=ks_within(KNN, arrays["embeddings"], arrays.get("gallery")) if source.closed else (),
            distance=distance,
            seed=job.recipe.seed,
        )["metrics"]
    )
    if whole_gallery and not source.closed:
        metrics |= _among_training_images(job, model, arrays, distance)
    listed = [image for what, rows in zip(items, kept, strict=True) for image in _listed(what, rows)]
    return Judgement(metrics, arrays, listed)


def _among_training_images(
    job: Job, model: Callable[[Tensor], Tensor], arrays: dict[str, Tensor], distance: str
) -> dict[str, float]:
    """The figures of queries that search the training images, too; of very many a sample."""
    others = embed_for(
        job, model, job.source.plain, items_to_calibrate(job.source.labels, seed=job.recipe.seed)
    )[0]
    found: dict[str, float] = processes.from_main(
        lambda: whole_gallery_metrics(arrays, others, distance=distance)
    )
    return found


def _embed_sides(
    job: Job, model: Callable[[Tensor], Tensor], sides: Sequence[tuple[Images, Tensor]]
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Return embeddings and labels of each side, and the items that they are of."""
    arrays, kept = dict[str, Tensor](), list[Tensor]()
    for (name, labels_name), (images, labels) in zip(SIDES, sides, strict=False):
        found, items = embed_for(job, model, images)
        arrays |= {name: found, labels_name: labels[items]}
        kept.append(items)
    return arrays, kept


def embed_for(
    job: Job, model: Callable[[Tensor], Tensor], images: Images, items: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the embeddings of images, computed where the job trains, and the items that they are of."""
    device, workers = job.accelerator.device, job.workers()
    if not isinstance(model, Untrained):
        return embed_images(model, images, device=device, items=items, workers=workers)
    pooled, whole = pooled_of(model.network, images, job.recipe, device=device, items=items, workers=workers)
    return in_parts(model.after, pooled, device), whole


def _listed(what: Items, kept: Tensor) -> list[EvaluatedImage]:
    """Return the images of one side in the order of its embeddings, then those left out."""
    rows: dict[int, int | None] = {item: row for row, item in enumerate(kept.tolist())}
    order = [*rows, *(item for item in range(len(what.files)) if item not in rows)]
    return [EvaluatedImage(what.files[item], what.classes[item], what.role, rows.get(item)) for item in order]


def interpolations(
    job: Job, model: Embedder, trained: Judgement, *, first: bool
) -> dict[str, dict[str, dict[str, float]]]:
    """Return MAP@R by share of the way from the start and by class; the start itself is judged once.

    `interpolations` is of the classes that are judged; `held_out_images`, if the source keeps some, of those
    that train.
    """
    distance, source = str(job.loss.distance), job.source
    classes, images = dict[str, dict[str, float]](), dict[str, dict[str, float]]()
    for share in (1.0, *job.recipe.evaluation.interpolations):
        if str(share) in classes or not (share or first):
            continue
        each = model if share == 1 else _part_way(job, share)
        arrays = trained.arrays if share == 1 else evaluate_job(job, each, distance=distance).arrays
        classes[str(share)] = map_at_r_per_class(arrays, source.evaluated_names, distance=distance)
        if source.kept is not None and source.kept_labels is not None:  # they search the training images
            sides = [(source.kept, source.kept_labels), (source.plain, source.labels)]
            kept = _embed_sides(job, each, sides)[0]
            images[str(share)] = map_at_r_per_class(kept, source.names, distance=distance)
    return {"interpolations": classes} | ({"held_out_images": images} if images else {})


def _part_way(job: Job, share: float) -> Callable[[Tensor], Tensor]:
    if share:
        return job.interpolated(share)
    start = untrained(job)
    return Untrained(start, start.from_pooled)


def distance_to_proxy(job: Job) -> float | None:
    """Return AvgDTP in the loss's own space, or None for a loss without one proxy per class."""
    items = evenly_spaced(len(job.source.labels), job.recipe.evaluation.avg_dtp_images)
    if contract.proxies_of(job.loss) is None or not len(items):
        return None
    job.judged.eval()
    model = job.judged if job.state.step else Untrained(job.judged, job.judged.from_pooled)
    embeddings, seen = embed_for(job, model, job.source.plain, items)
    classes, labels = job.source.labels[seen].unique(return_inverse=True)
    proxies = contract.vectors_at(job.loss, classes).float().cpu()
    if job.loss.distance == "cosine":
        embeddings, proxies = nn.functional.normalize(embeddings), nn.functional.normalize(proxies)
    return average_distance_to_proxy(embeddings, labels, proxies)
