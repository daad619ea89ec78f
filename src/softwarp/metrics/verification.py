"""Pair verification as face people do it: is it the same person, given the distance of two embeddings?

Thresholds come from the data, midway between distances that occur, so embeddings of any length will do.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from softwarp.metrics.checks import Array, check_embeddings, check_sides
from softwarp.metrics.scaling import row_lengths

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Places = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Bools = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


def combine_flipped(embeddings: Array, flipped: Array) -> Tensor:
    """The mean of an image's embedding and that of its mirror image, not normalised.

    Normalising the sum, as insightface does, gives the same order under the distance "cosine".

    >>> combine_flipped(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])).tolist()
    [[0.5, 0.5]]
    """
    left, right = check_embeddings(embeddings), check_embeddings(flipped, "flipped")
    if left.shape != right.shape:
        raise ValueError(
            f"embeddings are {list(left.shape)} and flipped {list(right.shape)}; they must agree"
        )
    return (left + right.to(left.device)) / 2


def pair_distances(left: Array, right: Array, *, distance: str = "euclidean") -> Tensor:
    """Distances (float64) [P] of pairs given row by row; that of "cosine" is 1 - cos.

    >>> pair_distances(torch.tensor([[0.0, 3.0]]), torch.tensor([[4.0, 0.0]])).tolist()
    [5.0]
    """
    first, second = check_sides(left, right, distance)
    if second is None or len(first) != len(second):
        raise ValueError(f"pairs need as many left as right embeddings; got {len(left)} and {len(right)}")
    distances = row_lengths(first.double() - second.double())
    return distances.square() / 2 if distance == "cosine" else distances


def verification_metrics(
    distances: Array,
    same: Array,
    *,
    folds: int | Array = 10,
    fars: Sequence[float] = (1e-1, 1e-2, 1e-3, 1e-4),
) -> dict[str, float]:
    """`accuracy`, `accuracy_std`, TAR at each FAR F, `auc`, `best_threshold` and `best_accuracy`.

    A pair is called the same where its distance is below the threshold.

    - accuracy: each fold by the threshold that is best on the others; folds are runs of successive pairs,
      as in LFW's pairs.txt and scikit-learn's KFold, or given by a number for each pair; of equally good
      thresholds the smallest;
    - tar@far=F: share of the same pairs accepted when a share F of the others is, between the points of the
      ROC by a straight line; below 1 / (number of other pairs) there is nothing but that line;
    - fold_tar@far=F and its fold_tar_std@far=F: mean and deviation over folds, as insightface's VAL@FAR; the
      threshold of a fold is the largest that accepts at most a share F of the different pairs of the others.

    >>> distances, same = torch.tensor([0.1, 0.9, 0.2, 0.8]), torch.tensor([True, False, True, False])
    >>> verification_metrics(distances, same, folds=2)["accuracy"]
    1.0
    """
    from sklearn.metrics import roc_auc_score  # takes seconds to import

    values, truth = _check_pairs(distances, same)
    parts = _parts(folds, len(values))
    accuracies = []
    for part in parts:
        of_the_others = _best_threshold(np.delete(values, part), np.delete(truth, part))
        accuracies.append(np.mean((values[part] < of_the_others) == truth[part]))
    by_fold = _accepted_by_fold(values, truth, parts, fars)
    threshold = _best_threshold(values, truth)
    return {
        "accuracy": float(np.mean(accuracies)),
        "accuracy_std": float(np.std(accuracies)),
        **{
            f"tar@far={far:g}": value for far, value in zip(fars, _accepted(values, truth, fars), strict=True)
        },
        **{f"fold_tar@far={far:g}": float(np.mean(column)) for far, column in by_fold.items()},
        **{f"fold_tar_std@far={far:g}": float(np.std(column)) for far, column in by_fold.items()},
        "auc": float(roc_auc_score(truth, -values)),
        "best_threshold": threshold,
        "best_accuracy": float(np.mean((values < threshold) == truth)),
    }


def roc_points(distances: Array, same: Array) -> tuple[Floats, Floats, Floats]:
    """The ROC: share of different pairs accepted, share of same pairs, and the distance up to which they are.

    Most points on a straight line between their neighbours are left out.

    >>> far, tar, upto = roc_points(torch.tensor([0.1, 0.9, 0.2]), torch.tensor([True, False, True]))
    >>> far.tolist(), tar.tolist()
    ([0.0, 0.0, 0.0, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    from sklearn.metrics import roc_curve

    values, truth = _check_pairs(distances, same)
    false_rate, true_rate, scores = roc_curve(truth, -values)
    return false_rate, true_rate, -scores


def _parts(folds: int | Array, count: int) -> list[Places]:
    """The positions of the pairs of each fold."""
    if isinstance(folds, int):
        if not 2 <= folds <= count:
            raise ValueError(f"folds must be between 2 and the number of pairs {count}; got {folds}")
        return np.array_split(np.arange(count), folds)
    numbers = torch.as_tensor(folds).cpu().numpy()
    known = np.unique(numbers)
    if numbers.shape != (count,) or len(known) < 2:
        raise ValueError(f"give one fold number for each of {count} pairs, and two folds at least")
    return [np.flatnonzero(numbers == number) for number in known]


def _check_pairs(distances: Array, same: Array) -> tuple[Floats, Bools]:
    values = torch.as_tensor(distances).detach().cpu().double().numpy()
    flags = torch.as_tensor(same).detach().cpu().numpy()
    if values.ndim != 1 or values.shape != flags.shape or not np.isin(flags, (0, 1)).all():
        raise ValueError(
            f"give one distance and one same/different flag per pair; got {values.shape}, {flags.shape}"
        )
    if not np.isfinite(values).all():
        raise ValueError(f"distance {int(np.flatnonzero(~np.isfinite(values))[0])} is not a finite number")
    truth = flags.astype(bool)
    if truth.all() or not truth.any():
        raise ValueError("all pairs are of one kind: verification needs same and different ones")
    return values, truth


def _best_threshold(distances: Floats, same: Bools) -> float:
    """The smallest of the most accurate thresholds below, between and above the distances that occur."""
    levels, place = np.unique(distances, return_inverse=True)
    gains = np.bincount(place, weights=np.where(same, 1.0, -1.0))
    right = np.concatenate([[0.0], np.cumsum(gains)])  # by how much accepting so many levels beats none
    best = int(np.argmax(right))
    if best == 0:
        return float(levels[0])
    above = levels[best] if best < len(levels) else levels[-1]
    return float(max((levels[best - 1] + above) / 2, np.nextafter(levels[best - 1], np.inf)))


def _accepted(distances: Floats, same: Bools, fars: Sequence[float]) -> list[float]:
    from sklearn.metrics import roc_curve

    false_rate, true_rate, _ = roc_curve(same, -distances, drop_intermediate=False)
    levels = np.unique(false_rate)
    best = true_rate[np.searchsorted(false_rate, levels, side="right") - 1]
    return [float(value) for value in np.interp(fars, levels, best)]


def _accepted_by_fold(
    distances: Floats, same: Bools, parts: Sequence[Places], fars: Sequence[float]
) -> dict[float, list[float]]:
    """For each FAR, the share of the same pairs of each fold that the threshold of the others accepts.

    With n different pairs it is the distance of the nearest but floor(F n), no longer accepted itself. A fold
    without same pairs, or without different pairs in the others, is left out.
    """
    found: dict[float, list[float]] = {far: [] for far in fars}
    for part in parts:
        strangers = np.sort(np.delete(distances, part)[~np.delete(same, part)])
        own = distances[part][same[part]]
        if not len(strangers) or not len(own):
            continue
        for far in fars:
            place = int(far * len(strangers) + 1e-9)  # 0.29 x 100 is below 29
            found[far].append(float(np.mean(own < strangers[place])) if place < len(strangers) else 1.0)
    return found
