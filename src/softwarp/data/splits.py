"""Which classes are for training, validation and test. No other module decides that."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Protocol = Literal["validation", "test"]


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


@dataclass(frozen=True)
class Division:
    """Positions of the items that train, that ask and that are searched; no class trains and asks.

    Where `gallery` is None each query searches the other queries.
    """

    train: Tensor
    queries: Tensor
    gallery: Tensor | None


def divide(
    labels: Tensor,
    splits: Sequence[str] | None,
    *,
    protocol: Protocol,
    seed: int = 0,
    names: Sequence[str] | None = None,
) -> Division:
    """Return which items train and which are evaluated.

    Protocol "test" trains on all training classes, those of the splits "train" and "validation". Protocol
    "validation" leaves test items alone: it evaluates on the split "validation" or, where there is none, on
    the second half of the training classes, as ProxyNCA++ does. Without splits a random quarter of the
    classes is for test.

    Args:
        seed: draws that quarter. It is not the seed of training: all seeds must face the same test.
        names: of the classes, for messages.

    >>> labels, splits = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]), ["train"] * 4 + ["test"] * 4
    >>> divide(labels, splits, protocol="test")
    Division(train=tensor([0, 1, 2, 3]), queries=tensor([4, 5, 6, 7]), gallery=None)
    """
    if len(labels.unique()) < 4:
        raise ValueError(
            f"{len(labels.unique())} classes cannot be divided into training and test; add classes"
        )
    roles = _random_roles(labels, seed) if splits is None else list(splits)
    if len(roles) != len(labels):
        raise ValueError(f"{len(roles)} splits for {len(labels)} labels; there must be one each")
    where = {role: _positions(roles, role) for role in ("train", "validation", "test", "query", "gallery")}
    known = torch.cat([where["train"], where["validation"]]).sort().values
    _check_disjoint(labels, known, torch.cat([where["test"], where["query"], where["gallery"]]), names)
    if protocol == "test":
        division = Division(known, *_evaluated(where))
    elif len(where["validation"]):
        division = Division(where["train"], where["validation"], None)
        _check_disjoint(labels, division.train, division.queries, names)
    else:
        classes = labels[known].unique()
        trained = torch.isin(labels[known], classes[: (len(classes) + 1) // 2])
        division = Division(known[trained], known[~trained], None)
    _check_division(labels, division)
    return division


def _random_roles(labels: Tensor, seed: int) -> list[str]:
    classes = labels.unique()
    # one class alone would make every answer right
    share = max(0.25, 2 / len(classes))
    test = classes[split_classes(len(classes), validation=0.0, test=share, seed=seed).test]
    return ["test" if tested else "train" for tested in torch.isin(labels, test).tolist()]


def _positions(roles: Sequence[str], role: str) -> Tensor:
    return torch.tensor(
        [position for position, other in enumerate(roles) if other == role], dtype=torch.int64
    )


def _evaluated(where: dict[str, Tensor]) -> tuple[Tensor, Tensor | None]:
    """The queries and the gallery of the test protocol."""
    test, query, gallery = (len(where[role]) for role in ("test", "query", "gallery"))
    if test and (query or gallery):
        raise ValueError("the source has test as well as query and gallery items; use one or the other")
    if test:
        return where["test"], None
    if not query or not gallery:
        raise ValueError(
            f"nothing to test on: {query} query and {gallery} gallery items and none of the split test; "
            "name both query and gallery, or test, or leave the splits out altogether"
        )
    return where["query"], where["gallery"]


def _check_disjoint(labels: Tensor, train: Tensor, evaluated: Tensor, names: Sequence[str] | None) -> None:
    common = sorted(set(labels[train].tolist()) & set(labels[evaluated].tolist()))
    if common:
        name = f"class {common[0]}" if names is None else f"class {names[common[0]]!r}"
        raise ValueError(
            f"{name} is in training and in evaluation ({len(common)} such classes); give all images of a "
            "class the same side, or leave the splits out and classes are divided for you"
        )


def _check_division(labels: Tensor, division: Division) -> None:
    if len(division.train) == 0:
        raise ValueError("no items to train on; name some of the split train")
    asked = labels[division.queries]
    searched = asked if division.gallery is None else labels[division.gallery]
    if len(searched.unique()) < 2:
        raise ValueError("fewer than two classes to evaluate, which any model gets right; add classes")
    if division.gallery is None:
        answered = bool((asked.unique(return_counts=True)[1] > 1).any())
    else:
        answered = bool(torch.isin(asked, searched).any())
    if not answered:
        raise ValueError("no query has another image of its class to find; evaluate classes of two or more")
