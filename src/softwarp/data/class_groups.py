"""Classes in groups: drawn at random, in halves, in folds; and images of every class that are held out.

Arrays, not tensors: checking a folder need not load torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """Class numbers, disjoint: hyper-parameters are chosen on `validation`, never on `test`."""

    train: "Tensor"
    validation: "Tensor"
    test: "Tensor"


def split_classes(num_classes: int, *, validation: float = 0.25, test: float = 0.25, seed: int = 0) -> Split:
    """Return the classes divided at random into three disjoint sorted groups.

    >>> split = split_classes(8, validation=0.25, test=0.25)
    >>> [len(group) for group in (split.train, split.validation, split.test)]
    [4, 2, 2]
    """
    from torch import from_numpy

    return Split(*map(from_numpy, _drawn(num_classes, validation, test, seed)))


def _drawn(num_classes: int, validation: float, test: float, seed: int) -> list[Positions]:
    """The classes for training, validation and test."""
    sizes = [round(num_classes * share) for share in (validation, test)]
    if min(validation, test) < 0 or sum(sizes) >= num_classes:
        raise ValueError(
            f"{num_classes} classes cannot be split with validation={validation} and test={test}: "
            "shares must not be negative, and at least one class must be left for training"
        )
    first, second = sizes[0], sum(sizes)
    order = _shuffled(num_classes, seed)
    return [np.sort(group) for group in (order[second:], order[:first], order[first:second])]


def _shuffled(count: int, seed: int) -> Positions:
    """The numbers below `count` as torch.randperm shuffles them.

    Written out, so that test classes stay the same in any version of torch, and so that checking a folder
    need not load it.
    """
    words = np.random.RandomState(seed).randint(1 << 32, size=count, dtype=np.uint32)
    order = np.arange(count)
    for place, word in enumerate(words.tolist()):
        other = place + word % (count - place)
        order[place], order[other] = order[other], order[place]
    return order


def items_of(labels: "Tensor", classes: "Tensor") -> "tuple[Tensor, Tensor]":
    """Return the positions of items that belong to `classes`, and their labels renumbered from 0.

    >>> from torch import tensor
    >>> items_of(tensor([5, 7, 5, 9]), tensor([5, 9]))
    (tensor([0, 2, 3]), tensor([0, 0, 1]))
    """
    import torch

    classes = classes.sort().values
    positions = torch.isin(labels, classes).nonzero().flatten()
    return positions, torch.searchsorted(classes, labels[positions])


def random_roles(labels: Positions, *, validation: float, test: float, seed: int = 0) -> list[str]:
    """Return train, validation or test for each label, by a random split of the classes.

    >>> random_roles(np.array([7, 7, 8, 9, 6]), validation=0.0, test=0.25)
    ['train', 'train', 'train', 'train', 'test']
    """
    classes, inverse = np.unique(labels, return_inverse=True)
    _, kept, judged = _drawn(len(classes), validation, test, seed)
    roles = np.full(len(classes), "train", dtype="<U10")
    roles[kept], roles[judged] = "validation", "test"
    named: list[str] = roles[inverse].tolist()
    return named


def given_or_drawn(labels: Positions, splits: Sequence[str] | None, seed: int = 0) -> Sequence[str]:
    """Return the split of each item; where none are given, a random quarter of the classes is for test."""
    if splits is not None:
        return splits
    if len(np.unique(labels)) < 3:  # two for test, and one to train on
        raise too_few_classes(labels)
    test = max(0.25, 2 / len(np.unique(labels)))  # with a single class every answer would be right
    return random_roles(labels, validation=0.0, test=test, seed=seed)


def halves(labels: Positions) -> list[str]:
    """Return train for the labels of the first half of the classes, test for the others.

    >>> halves(np.array([7, 9, 3, 5, 5]))
    ['test', 'test', 'train', 'train', 'train']
    """
    classes = np.unique(labels)
    last = classes[(len(classes) - 1) // 2]
    return ["train" if label <= last else "test" for label in labels.tolist()]


def fold_classes(classes: Positions, *, folds: int, seed: int | None = None) -> list[Positions]:
    """Return the classes cut into sorted folds, whose sizes differ by at most one.

    Without a seed each fold is a contiguous range of the sorted classes, as in Musgrave et al. (2020).

    >>> [fold.tolist() for fold in fold_classes(np.arange(9), folds=4)]
    [[0, 1, 2], [3, 4], [5, 6], [7, 8]]
    """
    if len(classes) < 2 * folds:
        raise ValueError(
            f"{len(classes)} training classes are too few for {folds} folds of at least two classes; "
            "lower evaluation.folds or add classes"
        )
    order = np.sort(classes)
    if seed is not None:
        order = np.random.default_rng(seed).permutation(order)
    return [np.sort(fold) for fold in np.array_split(order, folds)]


def too_few_classes(labels: Positions) -> ValueError:
    """Return the error that says how many classes there are, and how many are needed."""
    classes = len(np.unique(labels))
    return ValueError(
        f"{classes} class{'es' * (classes != 1)}: at least four are needed for training and test; add classes"
    )


def held_out_images(labels: Positions, items: Positions) -> Positions:
    """Return a quarter of the items of each class, at least one, but none of a class of one item.

    Which ones depends on the order of the items within their class alone.

    >>> labels = np.array([5, 5, 5, 5, 7, 9, 9])
    >>> np.unique(labels[held_out_images(labels, np.arange(7))], return_counts=True)
    (array([5, 9]), array([1, 1]))
    """
    order = items[np.argsort(labels[items], kind="stable")]
    counts = np.unique(labels[items], return_counts=True)[1]
    drawn = {count: _quarter(count) for count in set(counts.tolist())}
    groups = zip(counts.tolist(), (np.cumsum(counts) - counts).tolist(), strict=True)
    return np.sort(np.concatenate([order[:0], *(order[first + drawn[count]] for count, first in groups)]))


def _quarter(count: int) -> Positions:
    """The numbers below `count` that are held out: the same for all classes of this size."""
    size = max(1, count // 4) if count > 1 else 0
    return np.random.default_rng(count).permutation(count)[:size]
