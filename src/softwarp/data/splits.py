"""Which classes are trained and which are judged. No other module decides that.

Arrays, not tensors: checking a folder need not load torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Judged = Literal["validation", "test"]
Positions = NDArray[np.int64]
EVALUATED = ("test", "query", "gallery")


@dataclass(frozen=True)
class SplitPlan:
    """What a recipe's evaluation part says about classes.

    Args:
        split: which classes are judged.
        fold: train on every fold of the training classes except this one, counted from 0. Then
            `validation` judges the held-out fold, and `test` the test classes.
        folds: how many there are.
        fold_seed: shuffles the classes before they are cut into folds; None cuts them in sorted order.
        fold_of: what is cut into folds: the classes that a plan without a fold trains on to judge `test`,
            which are all training classes, or to judge `validation`. With the latter something can be chosen
            by folds before it is judged on validation classes.
        test_classes: which are for test: those that the data set says, or the second half of all classes in
            their order, whatever it says; or none: all classes train, and nothing is judged.
    """

    split: Judged = "validation"
    fold: int | None = None
    folds: int = 4
    fold_seed: int | None = None
    fold_of: Judged = "test"
    test_classes: Literal["given", "second_half", "none"] = "given"


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
        raise _too_few_classes(labels)
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


@dataclass(frozen=True)
class Division:
    """Positions of training items, queries and gallery items; no class is in both training and queries.

    If `gallery` is None, each query searches the other queries.
    """

    train: Positions
    queries: Positions
    gallery: Positions | None


def divide(
    labels: Positions,
    splits: Sequence[str] | None,
    plan: SplitPlan,
    *,
    seed: int = 0,
    names: Sequence[str] | None = None,
    keep_validation: bool = False,
    max_classes: int | None = None,
) -> Division:
    """Return which items train and which are judged.

    The training classes are those of the splits "train" and "validation". Judging on "test" trains on all of
    them. Judging on "validation" leaves test items alone: it trains on the split "train" and judges the
    split "validation" or, if there is none, the second half of the training classes, as ProxyNCA++ does.
    A plan with a fold trains on the other folds of the training classes in either case, and "validation"
    judges the fold itself; `fold_of` says which these training classes are. Without splits a random quarter
    of the classes is for test.

    Args:
        seed: draws that quarter. It is not the training seed: all seeds must face the same test.
        names: of the classes, for messages.
        keep_validation: the split "validation" is for search alone: it never trains and is in no fold.
        max_classes: cut folds from this many of the training classes, the first ones.

    >>> labels, splits = np.array([0, 0, 1, 1, 2, 2, 3, 3]), ["train"] * 4 + ["test"] * 4
    >>> divide(labels, splits, SplitPlan("test"))
    Division(train=array([0, 1, 2, 3]), queries=array([4, 5, 6, 7]), gallery=None)
    """
    if plan.test_classes == "none":
        return Division(np.arange(len(labels)), np.arange(0), None)
    if plan.test_classes == "second_half":
        splits = halves(labels)
    where = _roles(labels, splits, seed)
    trainable = [where["train"]] if keep_validation else [where["train"], where["validation"]]
    known = np.sort(np.concatenate(trainable))
    _check_disjoint(labels, known, np.concatenate([where[role] for role in EVALUATED]), names)
    if plan.split == "validation" and plan.fold is None and len(where["validation"]):
        division = Division(where["train"], where["validation"], None)
        _check_disjoint(labels, division.train, division.queries, names)
    else:
        if plan.fold is not None and plan.fold_of == "validation":
            whole = SplitPlan("validation", test_classes=plan.test_classes)
            known = divide(
                labels, splits, whole, seed=seed, names=names, keep_validation=keep_validation
            ).train
        if plan.fold is not None:
            known = known[np.isin(labels[known], np.unique(labels[known])[:max_classes])]
        held_out = np.isin(labels[known], _held_out(labels[known], plan))
        judged = (known[held_out], None) if plan.split == "validation" else _evaluated(where)
        division = Division(known[~held_out], *judged)
    _check_division(labels, division)
    return division


def _roles(labels: Positions, splits: Sequence[str] | None, seed: int) -> dict[str, Positions]:
    """The positions of each role."""
    if len(np.unique(labels)) < 4:
        raise _too_few_classes(labels)
    splits = given_or_drawn(labels, splits, seed)
    if len(splits) != len(labels):
        raise ValueError(f"{len(splits)} splits for {len(labels)} labels; give one split per label")
    roles = np.array(splits)
    return {role: np.flatnonzero(roles == role) for role in ("train", "validation", *EVALUATED)}


def _too_few_classes(labels: Positions) -> ValueError:
    classes = len(np.unique(labels))
    return ValueError(
        f"{classes} class{'es' * (classes != 1)}: at least four are needed for training and test; add classes"
    )


def _held_out(labels: Positions, plan: SplitPlan) -> Positions:
    """The training classes that do not train."""
    classes = np.unique(labels)
    if plan.fold is not None:
        return fold_classes(classes, folds=plan.folds, seed=plan.fold_seed)[plan.fold]
    return classes[(len(classes) + 1) // 2 :] if plan.split == "validation" else classes[:0]


def _evaluated(where: dict[str, Positions]) -> tuple[Positions, Positions | None]:
    """The queries and the gallery of the test."""
    test, query, gallery = (len(where[role]) for role in EVALUATED)
    if test and (query or gallery):
        raise ValueError("the source has both test items and query or gallery items; use one or the other")
    if test:
        return where["test"], None
    if not query or not gallery:
        raise ValueError(
            f"nothing to test on: {query} query items, {gallery} gallery items and no test items; "
            "give both query and gallery, or test, or no splits at all"
        )
    return where["query"], where["gallery"]


def _check_disjoint(
    labels: Positions, train: Positions, evaluated: Positions, names: Sequence[str] | None
) -> None:
    common = np.intersect1d(labels[train], labels[evaluated])
    if len(common):
        name = f"class {common[0]}" if names is None else f"class {names[common[0]]!r}"
        raise ValueError(
            f"{name} is in both training and evaluation ({len(common)} such classes); put all images of a "
            "class on the same side, or omit the splits (one folder per class, or a CSV file without the "
            "column split) to have classes divided for you"
        )


def _check_division(labels: Positions, division: Division) -> None:
    if len(division.train) == 0:
        raise ValueError("no items to train on; give some the split train")
    asked = labels[division.queries]
    searched = asked if division.gallery is None else labels[division.gallery]
    if len(np.unique(searched)) < 2:
        raise ValueError("fewer than two classes to evaluate, so any model would be right; add classes")
    if division.gallery is None:
        answered = bool((np.unique(asked, return_counts=True)[1] > 1).any())
    else:
        answered = bool(np.isin(asked, searched).any())
    if not answered:
        raise ValueError(
            "no query has another image of its class to find; evaluate classes of at least two images"
        )


def limit(division: Division, labels: Positions, max_classes: int | None) -> Division:
    """Return the division limited to the first `max_classes` classes on either side."""
    if max_classes is None:
        return division

    def first(items: Positions, classes: Positions) -> Positions:
        return items[np.isin(labels[items], classes[:max_classes])]

    evaluated = np.unique(labels[division.queries])
    return Division(
        train=first(division.train, np.unique(labels[division.train])),
        queries=first(division.queries, evaluated),
        gallery=None if division.gallery is None else first(division.gallery, evaluated),
    )
