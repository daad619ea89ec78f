"""Which classes and images are trained and which are judged. No other module decides that."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from softwarp.data.class_groups import (
    Positions,
    fold_classes,
    given_or_drawn,
    halves,
    held_out_images,
    too_few_classes,
)

Judged = Literal["validation", "test"]
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
        images: a fold of a closed set also holds out images of the classes that train: `Division.kept`.
    """

    split: Judged = "validation"
    fold: int | None = None
    folds: int = 4
    fold_seed: int | None = None
    fold_of: Judged = "test"
    test_classes: Literal["given", "second_half", "none"] = "given"
    images: bool = False


@dataclass(frozen=True)
class Division:
    """Positions of training items, queries and gallery items; no item is in both training and queries.

    If `gallery` is None, each query searches the other queries. In an open set no class is in both, either.
    In a closed set classes of the queries train, and the gallery is what trains, unless one is given.

    Args:
        kept: items of the classes that train, held out by a fold; they search the training items.
        note: what was left out, for the user.
    """

    train: Positions
    queries: Positions
    gallery: Positions | None
    closed: bool = False
    kept: Positions | None = None
    note: str = ""


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

    If more than half of the evaluated classes are training classes, the set is closed: test items are looked
    up among the training items, and those of classes without any are left out. Without a split "validation"
    a quarter of the items of each class is held out for it. A given gallery stays the gallery of the test.

    Args:
        seed: draws that quarter. It is not the training seed: all seeds must face the same test.
        names: of the classes, for messages.
        keep_validation: the split "validation" is for search alone: it never trains and is in no fold.
        max_classes: cut folds from this many of the training classes, the first ones.

    >>> labels, splits = np.array([0, 0, 1, 1, 2, 2, 3, 3]), ["train"] * 4 + ["test"] * 4
    >>> division = divide(labels, splits, SplitPlan("test"))
    >>> division.train, division.queries, division.gallery, division.closed
    (array([0, 1, 2, 3]), array([4, 5, 6, 7]), None, False)
    """
    if plan.test_classes == "none":
        return Division(np.arange(len(labels)), np.arange(0), None)
    if plan.test_classes == "second_half":
        splits = halves(labels)
    where = _roles(labels, splits, seed)
    trainable = [where["train"]] if keep_validation else [where["train"], where["validation"]]
    known = np.sort(np.concatenate(trainable))
    closed = _closed_split(labels, where, known, names)
    if not closed and len(np.unique(labels)) < 4:
        raise too_few_classes(labels)
    if closed and plan.fold is None:
        division = _closed_set(labels, where, known, plan.split, names)
    elif closed and plan.split == "test":
        raise ValueError(
            "evaluation.fold holds classes out, but here the test images are of classes that train; omit "
            "evaluation.fold, or set evaluation.split=validation to judge the fold itself"
        )
    elif plan.split == "validation" and plan.fold is None and len(where["validation"]):
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
        if closed and plan.images:
            division = _keep_images(labels, division, where["validation"])
    _check_division(labels, division)
    return division


def _roles(labels: Positions, splits: Sequence[str] | None, seed: int) -> dict[str, Positions]:
    """The positions of each role."""
    splits = given_or_drawn(labels, splits, seed)
    if len(splits) != len(labels):
        raise ValueError(f"{len(splits)} splits for {len(labels)} labels; give one split per label")
    roles = np.array(splits)
    return {role: np.flatnonzero(roles == role) for role in ("train", "validation", *EVALUATED)}


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
            "give both query and gallery, or test, or no splits at all; with validation items alone, "
            "evaluation.split=validation"
        )
    return where["query"], where["gallery"]


def _closed_split(
    labels: Positions, where: dict[str, Positions], known: Positions, names: Sequence[str] | None
) -> bool:
    """Whether the classes of the test are those that train; without a test, those of the validation."""
    if sum(len(where[role]) for role in EVALUATED):
        asked = np.concatenate([where["test"], where["query"]])
        return _same_classes(labels, known, asked, where["gallery"], names)
    return _same_classes(labels, where["train"], where["validation"], where["gallery"], names)


def _same_classes(
    labels: Positions, train: Positions, queries: Positions, gallery: Positions, names: Sequence[str] | None
) -> bool:
    """Whether most classes of the queries train; a ValueError if only a few do, perhaps by mistake."""
    asked = np.unique(labels[queries])
    if 2 * np.isin(asked, labels[train]).sum() > len(asked):
        return True
    _check_disjoint(labels, train, np.concatenate([queries, gallery]), names)
    return False


def _closed_set(
    labels: Positions,
    where: dict[str, Positions],
    known: Positions,
    split: Judged,
    names: Sequence[str] | None,
) -> Division:
    """The division of a closed set, without queries whose class the gallery lacks."""
    gallery: Positions | None = None
    if split == "test":
        train, (queries, gallery) = known, _evaluated(where)
    elif len(where["validation"]):
        train, queries = where["train"], where["validation"]
        if not _same_classes(labels, train, queries, queries[:0], names):
            raise ValueError(
                "no class of the validation split is in the split train, but those of the test are; give "
                "train, validation and test the same classes, or omit the validation split"
            )
    else:
        queries = held_out_images(labels, known)
        train = np.setdiff1d(known, queries)
    gallery = train if gallery is None else gallery
    found = np.isin(labels[queries], labels[gallery])
    note = _left_out(labels[queries[~found]], split, names) if not found.all() else ""
    return Division(train, queries[found], gallery, closed=True, note=note)


def _keep_images(labels: Positions, division: Division, validation: Positions) -> Division:
    """The division of a fold with some images of its training classes kept: given ones, or a quarter."""
    kept = np.intersect1d(division.train, validation)
    kept = kept[np.isin(labels[kept], labels[np.setdiff1d(division.train, kept)])]
    if not len(kept):
        kept = held_out_images(labels, division.train)
    return replace(division, train=np.setdiff1d(division.train, kept), kept=kept if len(kept) else None)


def _left_out(labels: Positions, split: Judged, names: Sequence[str] | None) -> str:
    classes = np.unique(labels)
    return (
        f"left out: {len(labels):,} {split} image{'s' * (len(labels) > 1)} of {len(classes):,} "
        f"class{'es' * (len(classes) > 1)} without an image to find: {_listed(classes, names)}"
    )


def _listed(classes: Positions, names: Sequence[str] | None) -> str:
    """The first few classes, by name."""
    some = ", ".join(_named(label, names) for label in classes[:5].tolist())
    return some + ", ..." * (len(classes) > 5)


def _named(label: int, names: Sequence[str] | None) -> str:
    return str(label) if names is None else repr(names[label])


def _check_disjoint(
    labels: Positions, train: Positions, evaluated: Positions, names: Sequence[str] | None
) -> None:
    common, all_evaluated = np.intersect1d(labels[train], labels[evaluated]), np.unique(labels[evaluated])
    if len(common):
        raise ValueError(
            f"class {_named(int(common[0]), names)} is in both training and evaluation ({len(common):,} of "
            f"{len(all_evaluated):,} evaluated classes: {_listed(common, names)}). To judge new classes, put "
            "all images of a class on the same side; to judge new images of the same classes, give most "
            "evaluated classes training images; or omit the splits (one folder per class, "
            "or a CSV file without the column split) to have classes divided for you"
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
    """Return the division limited to the first `max_classes` classes on either side.

    In a closed set these are the first ones that both train and are judged.
    """
    if max_classes is None:
        return division
    trained, evaluated = np.unique(labels[division.train]), np.unique(labels[division.queries])
    if division.closed:
        trained = evaluated = np.intersect1d(trained, evaluated)

    def first(items: Positions, classes: Positions) -> Positions:
        return items[np.isin(labels[items], classes[:max_classes])]

    return replace(
        division,
        train=first(division.train, trained),
        queries=first(division.queries, evaluated),
        gallery=None if division.gallery is None else first(division.gallery, evaluated),
        kept=None if division.kept is None else first(division.kept, trained),
    )


def protocol_line(division: Division, labels: Positions, split: Judged) -> str:
    """Return in one line whether new classes are judged or new images of those that train.

    >>> labels, splits = np.array([0, 0, 1, 1, 2, 2, 3, 3]), ["train", "test"] * 4
    >>> protocol_line(divide(labels, splits, SplitPlan("test")), labels, "test")
    'closed set: the same 4 classes train and are judged; 4 test images are looked up among 4 training images'
    """
    trained, judged = (np.unique(labels[items]) for items in (division.train, division.queries))
    asked, gallery = len(division.queries), division.gallery
    if not asked:
        return f"no classes are judged: all {len(trained):,} train"
    if gallery is None:
        where = f"each of {asked:,} {split} images is looked up among the others"
    else:
        role = "training" if np.array_equal(gallery, division.train) else "gallery"
        where = f"{asked:,} {split} images are looked up among {len(gallery):,} {role} images"
    if not division.closed:
        return f"open set: {len(trained):,} classes train, {len(judged):,} others are judged; {where}"
    if np.array_equal(trained, judged):
        return f"closed set: the same {len(trained):,} classes train and are judged; {where}"
    both = len(np.intersect1d(trained, judged))
    others = f" and {len(judged) - both:,} others" if len(judged) > both else ""
    return f"closed set: {both:,} of the {len(trained):,} classes that train{others} are judged; {where}"
