"""Names the class of an image by its neighbours in an index, or says that it is none of them.

The k nearest images with a class vote. An answer is the surer, the larger the share of the votes for its
class is, divided by the Euclidean distance of the nearest image that voted so. `calibrate` asks about the
index's own images twice, with the others of their class there and with their whole class left out. That tells
how often an answer as sure as this one is right, its confidence, and how sure an accepted answer has to be.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from softwarp.index.faiss_index import SPARE, nearest, scan
from softwarp.index.insights import numbered_classes, vote
from softwarp.index.results import Answer, Answers
from softwarp.index.rows import Distances, Mask, Rows, Vectors
from softwarp.index.searching import as_stored, as_told

if TYPE_CHECKING:
    from softwarp.index.index import Index

JUDGED = 5000  # images that a threshold is chosen by, at most
CLASSES = 4  # a threshold by unknown classes needs two classes to choose it by and two to judge it by
BLOCK = 512  # images that are asked about at a time


@dataclass(frozen=True)
class Calibration:
    """When an answer is accepted and how often it is right; errors are on images that did not choose that."""

    threshold: float  # an answer that is no surer is none of the classes
    false_rejection: float  # the share of images that were given no class though theirs was there
    false_acceptance: float  # the share of images that were given a class though theirs was left out
    wrong: float  # the share with another class among images that were given one and had theirs there
    images: int  # how many were asked about, with and without their class; if none, errors are NaN
    sureness: tuple[float, ...] = ()  # how sure answers were, ascending
    right: tuple[float, ...] = ()  # the share of right answers among those as sure

    def confidence(self, sureness: float) -> float:
        """Return how often an answer as sure as that is right, if half of the images are of unknown classes.

        NaN if no class has two images: then nothing is known of it.
        """
        if not self.sureness:
            return np.nan
        least = 1 / (2 * self.images + 2)  # nothing that was seen so few times is certain
        return float(np.clip(np.interp(sureness, self.sureness, self.right), least, 1 - least))


def calibrate(
    index: "Index", k: int = 10, *, false_rejection: float = 0.05, false_acceptance: float | None = None
) -> Calibration:
    """Return how sure an answer of `classify` has to be, learnt from the index's own images.

    Errors are those of half of the images under the threshold of the other half, and vice versa.

    Args:
        false_rejection: the share of images of known classes that may be given none.
        false_acceptance: instead, the share of images of unknown classes that may be given one; the halves
            are then halves of the classes, of which it needs four.
    """
    if not 0 <= false_rejection < 1:
        raise ValueError(f"false_rejection is {false_rejection}; choose a share from 0 to below 1")
    if false_acceptance is not None and not 0 < false_acceptance < 1:
        raise ValueError(f"false_acceptance is {false_acceptance}; choose a share between 0 and 1")
    names, labels = _classes(index)
    rows = _judged(labels)
    classes, number = np.unique(labels[rows], return_inverse=True)
    if false_acceptance is not None and len(classes) < CLASSES:
        raise ValueError(
            f"{index.folder} has {len(classes)} classes of two and more images; a threshold by "
            f"false acceptance needs {CLASSES}"
        )
    if not len(rows):
        return Calibration(0.0, np.nan, np.nan, np.nan, images=0)
    known, right = _judge(index, labels, rows, k, with_own=True)
    unknown, _ = _judge(index, labels, rows, k, with_own=False)
    if false_acceptance is not None:
        choose, judged, share = _accepting, unknown, false_acceptance
        half = number % 2 == 0
    else:
        choose, judged, share = _keeping, known, false_rejection
        half = np.random.default_rng(0).permutation(len(rows)) % 2 == 0
    by_other = np.where(half, choose(judged[~half], share), choose(judged[half], share))
    accepted = known > by_other
    sureness, shares = _right_shares(np.concatenate([known, unknown]), np.append(right, np.zeros(len(rows))))
    return Calibration(
        threshold=choose(judged, share),
        false_rejection=float(1 - accepted.mean()),
        false_acceptance=float((unknown > by_other).mean()) if len(names) > 1 else np.nan,
        wrong=float(1 - right[accepted].mean()) if accepted.any() else 0.0,
        images=len(rows),
        sureness=sureness,
        right=shares,
    )


def classify(
    index: "Index",
    queries: Vectors,
    k: int = 10,
    *,
    calibration: Calibration | None = None,
    names: Sequence[str] | None = None,
    digests: Sequence[str | None] | None = None,
) -> Answers:
    """Return an answer for each of the queries' embeddings [Q, D].

    Args:
        calibration: of `calibrate` with the same k; without one, every best guess is accepted.
        names: of the queries; their numbers by default.
        digests: of the queries' files; images of the same content do not vote.
    """
    classes, labels = _classes(index)
    ids, distances = _nearest_with_class(index, labels, queries, k + 1)
    digest_of = {item.id: item.digest for item in index.store.items(ids.ravel().tolist())}
    answers = []
    for place, (found, away) in enumerate(zip(ids, distances, strict=True)):
        own = None if digests is None else digests[place]
        others = [at for at, number in enumerate(found.tolist()) if digest_of[number] != own][:k]
        found, away = found[others], away[others]
        voters = labels[np.searchsorted(index.ids, found)]
        euclidean = np.sqrt(2 * away) if index.distance == "cosine" else away
        best, share, sureness = _answer(voters, euclidean, len(classes))
        accepted = sureness > (0.0 if calibration is None else calibration.threshold)
        answers.append(
            Answer(
                query=str(place) if names is None else names[place],
                label=classes[best] if accepted else None,
                guess=classes[best],
                confidence=np.nan if calibration is None else calibration.confidence(sureness),
                share=share,
                distance=float(away[voters == best].min(initial=np.inf)),
                sureness=sureness,
                ids=found.tolist(),
                distances=away.tolist(),
            )
        )
    return Answers(tuple(answers))


def _classes(index: "Index") -> tuple[list[str], Rows]:
    names, labels = numbered_classes(index)
    if not names:
        raise ValueError(f"{index.folder} has no classes; put its images into a folder per class")
    return names, labels


def _nearest_with_class(index: "Index", labels: Rows, queries: Vectors, k: int) -> tuple[Rows, Distances]:
    """Ids and distances of the nearest images that have a class."""
    if (labels >= 0).all():
        return index.nearest(queries, k)
    vectors, queries = np.ascontiguousarray(index.vectors), as_stored(index.store, np.atleast_2d(queries))
    k = min(k, int((labels >= 0).sum()))
    distances, rows = nearest(queries, vectors, scan(queries, vectors, k + SPARE, labels >= 0), k)
    return index.ids[rows], as_told(distances, index.distance)


def _keeping(sureness: Distances, share: float) -> float:
    """The threshold that a new image of a known class misses with at most that probability.

    If m of n + 1 images are as likely as any other m to be the least sure, one more image is among the m
    least sure with probability m / (n + 1).
    """
    count = int(share * (len(sureness) + 1))
    return float(np.nextafter(np.sort(sureness)[count - 1], 0)) if count else 0.0


def _accepting(sureness: Distances, share: float) -> float:
    """The threshold that this share of the images of unknown classes exceeds."""
    return float(np.quantile(sureness, 1 - share))


def _right_shares(sureness: Distances, right: Distances) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Points of the curve that rises with sureness and fits best what was right."""
    from sklearn.isotonic import IsotonicRegression

    curve = IsotonicRegression(y_min=0.0, y_max=1.0).fit(sureness, right)
    return tuple(curve.X_thresholds_.tolist()), tuple(curve.y_thresholds_.tolist())


def _answer(voters: Rows, distances: Distances, classes: int) -> tuple[int, float, float]:
    """The class with the most votes, its share, and how sure that is; 0 if no neighbour has a class."""
    shares = vote(voters, distances, classes)
    best = int(shares.argmax())
    away = distances[voters == best].min(initial=np.inf)
    return best, float(shares[best]), float(shares[best] / max(away, 1e-12))


def _judged(labels: Rows) -> Rows:
    """Rows of classes with at least two images: all, or a sample."""
    sizes = np.bincount(labels[labels >= 0])
    rows = np.flatnonzero((labels >= 0) & (sizes[labels] > 1))
    if len(rows) > JUDGED:
        rows = np.sort(np.random.default_rng(0).choice(rows, JUDGED, replace=False))
    return rows


def _judge(index: "Index", labels: Rows, rows: Rows, k: int, *, with_own: bool) -> tuple[Distances, Mask]:
    """How sure the answer for each row is, with the others of its class or without, and if it is right."""
    vectors, classes = np.ascontiguousarray(index.vectors), int(labels.max()) + 1
    sureness, right = np.zeros(len(rows)), np.zeros(len(rows), bool)
    for places in _groups(labels[rows], together=with_own):
        queries, owns = vectors[rows[places]], labels[rows[places]]
        allowed = labels >= 0 if with_own else (labels >= 0) & (labels != owns[0])
        candidates = scan(queries, vectors, k + 1 + SPARE, allowed)
        candidates[candidates == rows[places][:, None]] = -1  # no image votes for itself
        distances, found = nearest(queries, vectors, candidates, k)
        for place, own, near, away in zip(places.tolist(), owns.tolist(), found, distances, strict=True):
            there = near >= 0
            best, _, sureness[place] = _answer(labels[near[there]], away[there], classes)
            right[place] = best == own
    return sureness, right


def _groups(labels: Rows, *, together: bool) -> list[Rows]:
    """Places that are asked about at a time: blocks, or classes one by one."""
    if together:
        every = np.arange(len(labels))
        return [every[start : start + BLOCK] for start in range(0, len(labels), BLOCK)]
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
