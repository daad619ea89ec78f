"""Which classes are for training, validation and test. No other module decides that."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Split:
    """Class numbers, disjoint: hyper-parameters are chosen on `validation`, never on `test`."""

    train: Tensor
    validation: Tensor
    test: Tensor


def split_classes(num_classes: int, *, validation: float = 0.25, test: float = 0.25, seed: int = 0) -> Split:
    """Return the classes divided at random into three disjoint sorted groups.

    >>> split = split_classes(8, validation=0.25, test=0.25)
    >>> [len(group) for group in (split.train, split.validation, split.test)]
    [4, 2, 2]
    """
    sizes = [round(num_classes * share) for share in (validation, test)]
    if min(validation, test) < 0 or sum(sizes) >= num_classes:
        raise ValueError(
            f"{num_classes} classes cannot be split with validation={validation} and test={test}: "
            "shares must not be negative, and at least one class must be left for training"
        )
    order = torch.randperm(num_classes, generator=torch.Generator().manual_seed(seed))
    groups = order.split([sizes[0], sizes[1], num_classes - sum(sizes)])
    validation_classes, test_classes, train_classes = (group.sort().values for group in groups)
    return Split(train_classes, validation_classes, test_classes)


def items_of(labels: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positions of items that belong to `classes`, and their labels renumbered from 0.

    >>> items_of(torch.tensor([5, 7, 5, 9]), torch.tensor([5, 9]))
    (tensor([0, 2, 3]), tensor([0, 0, 1]))
    """
    classes = classes.sort().values
    positions = torch.isin(labels, classes).nonzero().flatten()
    return positions, torch.searchsorted(classes, labels[positions])
