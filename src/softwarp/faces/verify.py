"""A model on pairs of faces (1:1), and on templates of many images (1:1 and 1:N)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from softwarp.data.stores import causes
from softwarp.faces.pairs import PairSet, read_pairs
from softwarp.faces.templates import Templates
from softwarp.inference import EmbeddingModel, load
from softwarp.metrics import identification_metrics, pair_distances, verification_metrics

FOLDS = 10
FARS = (1e-1, 1e-2, 1e-3)
PAIRS_AT_ONCE = 1 << 16  # the two sides of IJB's 15 million pairs would take 30 GB each
RARE_FARS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)  # IJB has millions of pairs
Advance = Callable[[int], None]


@dataclass(frozen=True)
class Verified:
    """How a model did on a set of pairs: metrics, and each pair's distance."""

    pairs: PairSet  # those whose images can be read
    distance: str
    distances: NDArray[np.float64]
    metrics: dict[str, float]
    left_out: tuple[str, ...]  # images that cannot be read
    listed: int  # pairs, with those that were left out


def verify(
    model: EmbeddingModel | Path | str,
    pairs: PairSet | Path | str,
    *,
    images: Path | str | None = None,
    fars: Sequence[float] = FARS,
    workers: int = 0,
    advance: Advance | None = None,
) -> Verified:
    """Return how well a model tells pairs of the same person from others; `verified.metrics["accuracy"]`.

    An embedding is the mean of those of an image and its mirror image; they are compared by the distance of
    the loss. Pairs with an image that cannot be read are left out.

    Args:
        model: a loaded model, a run's folder, or a backbone's name.
        pairs: a `.bin`, `pairs.txt`, `.tsv` or `.csv` file, or the pairs of one.
        images: the folder that its paths start from; by default `images` beside the file, or its own folder.
        fars: false accept rates at which true accept rates are measured.
        advance: called with the number of images just embedded.
    """
    if not isinstance(model, EmbeddingModel):
        model = load(model)
    if not isinstance(pairs, PairSet):
        root = None if images is None else Path(images)
        pairs = read_pairs(Path(pairs), root, shorter_side=model.resize)
    embeddings, broken = model.embed_store(pairs.images, mirrored=True, workers=workers, advance=advance)
    kept = ~(np.isin(pairs.first, broken) | np.isin(pairs.second, broken))
    if not kept.any():
        raise ValueError(f"{pairs.name}: no pair can be read ({causes(pairs.images, broken[:3])})")
    folds = successive_folds(len(kept)) if pairs.folds is None else pairs.folds
    whole = PairSet(
        pairs.name, pairs.images, pairs.first[kept], pairs.second[kept], pairs.same[kept], folds[kept]
    )
    distances = _distances(embeddings, whole.first, whole.second, model.distance)
    metrics = verification_metrics(distances, whole.same, folds=folds[kept], fars=fars)
    left_out = tuple(pairs.images.name(item) for item in broken)
    return Verified(whole, model.distance, distances.numpy(), metrics, left_out, len(pairs.same))


def _distances(
    embeddings: Tensor, first: NDArray[np.int64], second: NDArray[np.int64], distance: str
) -> Tensor:
    """The distances of pairs of rows, [P]."""
    starts = range(0, len(first), PAIRS_AT_ONCE)
    parts = [
        (first[start : start + PAIRS_AT_ONCE], second[start : start + PAIRS_AT_ONCE]) for start in starts
    ]
    found = [pair_distances(embeddings[left], embeddings[right], distance=distance) for left, right in parts]
    return torch.cat(found)


def successive_folds(pairs: int) -> NDArray[np.int64]:
    """Return the fold of each pair: ten runs of successive pairs, as in LFW's protocol.

    >>> successive_folds(12).tolist()
    [0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    parts = np.array_split(np.arange(pairs), FOLDS)
    return np.repeat(np.arange(FOLDS), [len(part) for part in parts])


def pool_templates(embeddings: Tensor, templates: Templates) -> Tensor:
    """Return one embedding per template: the mean over its media of the mean over the images of a medium.

    Images that could not be read are rows of NaN, and left out.
    """
    there = ~embeddings.isnan().any(dim=1)
    empty = set(range(len(templates.names))) - set(templates.template[there.numpy()].tolist())
    if empty:
        name = templates.names[min(empty)]
        raise ValueError(f"no image of template {name} can be read ({len(empty)} such templates)")
    media, owner = torch.from_numpy(templates.media)[there], torch.from_numpy(templates.template)[there]
    within = _means(embeddings[there].double(), media)
    known, first = np.unique(media.numpy(), return_index=True)
    return _means(within[torch.from_numpy(known)], owner[torch.from_numpy(first)]).float()


def _means(rows: Tensor, groups: Tensor) -> Tensor:
    """The mean of the rows of each group; zeros for a number that no row has."""
    count = int(groups.max()) + 1
    sums = torch.zeros(count, rows.shape[1], dtype=rows.dtype).index_add_(0, groups, rows)
    return sums / groups.bincount(minlength=count).clamp(min=1)[:, None]


def verify_templates(
    model: EmbeddingModel,
    templates: Templates,
    pairs: tuple[NDArray[np.int64], NDArray[np.bool_]] | None = None,
    *,
    workers: int = 0,
    advance: Advance | None = None,
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return the metrics of template pairs (1:1), if given, and of probes in a gallery (1:N), if any.

    Also the images that cannot be read: their templates do without them.
    """
    embeddings, broken = model.embed_store(templates.images, mirrored=True, workers=workers, advance=advance)
    pooled = pool_templates(embeddings, templates)
    metrics: dict[str, float] = {}
    if pairs is not None:
        (first, second), same = pairs[0].T, pairs[1]
        distances = _distances(pooled, first, second, model.distance)
        fars = [far for far in RARE_FARS if far * np.sum(~same) >= 1]  # fewer pairs cannot show this rate
        # What depends on the folds is not shown.
        found = verification_metrics(distances, same, folds=2, fars=fars)
        metrics |= {name: value for name, value in found.items() if name.startswith("tar@") or name == "auc"}
    if len(templates.gallery) and len(templates.probes):
        if not templates.people:
            raise ValueError("1:N needs the person of every template; add the column person to the list")
        people = np.unique(templates.people, return_inverse=True)[1]
        metrics |= identification_metrics(
            pooled[templates.probes],
            people[templates.probes],
            pooled[templates.gallery],
            people[templates.gallery],
            distance=model.distance,
        )
    if not metrics:
        raise ValueError("nothing to verify: give pairs of templates, or a list with galleries and probes")
    return metrics, tuple(templates.images.name(item) for item in broken)


def worst(verified: Verified, count: int) -> tuple[list[int], list[int]]:
    """Return the same pairs that are farthest apart, and the different ones that are nearest, worst first.

    Only mistakes at the threshold that is best for all pairs are returned.
    """
    threshold, same = verified.metrics["best_threshold"], verified.pairs.same
    order = np.argsort(verified.distances, kind="stable")
    missed = [int(pair) for pair in order[::-1] if same[pair] and verified.distances[pair] >= threshold]
    taken = [int(pair) for pair in order if not same[pair] and verified.distances[pair] < threshold]
    return missed[:count], taken[:count]
