"""Names the class of an image by its neighbours in an index, or says that it is none of them.

The k nearest images vote. How sure an answer is = the share of the votes for its class / the Euclidean
distance of the nearest image that voted so. Below a threshold, the answer is none of these. `calibrate`
chooses the threshold by leaving out each class in turn: its images are then what does not belong.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from softwarp.index_faiss import SPARE, nearest, scan
from softwarp.index_store import Rows, Vectors
from softwarp.insights import Distances, numbered, vote
from softwarp.retrieve import Index

JUDGED = 5000  # images that a threshold is chosen by, at most
CLASSES = 4  # that calibration needs: two to choose the threshold by, two to judge it by


@dataclass(frozen=True)
class Calibration:
    """A threshold and its errors on classes that it was not chosen by."""

    threshold: float
    false_acceptance: float  # of images whose class was left out, the share that was given a class
    false_rejection: float  # of images whose class was there, the share that was given none
    wrong: float  # of images whose class was there and that were given one, the share with another class
    images: int  # that were judged, each with and without its class


@dataclass(frozen=True)
class Answer:
    """The class of an image, and what it rests on."""

    label: str | None  # None: none of the classes
    most_votes: str  # the class that has them, accepted or not
    share: float  # of the votes
    distance: float  # to the nearest image that voted so, as `search` prints it
    sureness: float
    ids: list[int]  # of the neighbours
    distances: list[float]


def calibrate(index: Index, k: int = 10, *, false_acceptance: float = 0.05) -> Calibration:
    """Return the threshold at which that share of the images of unknown classes is accepted.

    The errors are those of half of the classes under the threshold of the other half, and vice versa.
    """
    if not 0 < false_acceptance < 1:
        raise ValueError(f"false_acceptance is {false_acceptance}; choose a share between 0 and 1")
    names, labels = numbered(index)
    if not names:
        raise ValueError(f"{index.folder} has no classes; put its images into a folder per class")
    rows = _judged(labels)
    classes, number = np.unique(labels[rows], return_inverse=True)
    if len(classes) < CLASSES:
        raise ValueError(
            f"{index.folder} has {len(classes)} classes of two and more images; a threshold needs {CLASSES}"
        )
    known, right = _judge(index, labels, rows, k, with_own=True)
    unknown, _ = _judge(index, labels, rows, k, with_own=False)
    half = number % 2 == 0
    of_half, of_other = (np.quantile(unknown[part], 1 - false_acceptance) for part in (half, ~half))
    judged_by = np.where(half, of_other, of_half)
    accepted = known > judged_by
    return Calibration(
        threshold=float(np.quantile(unknown, 1 - false_acceptance)),
        false_acceptance=float((unknown > judged_by).mean()),
        false_rejection=float(1 - accepted.mean()),
        wrong=float(1 - right[accepted].mean()) if accepted.any() else 0.0,
        images=len(rows),
    )


def classify(
    index: Index,
    queries: Vectors,
    k: int = 10,
    *,
    threshold: float = 0.0,
    digests: Sequence[str] | None = None,
) -> list[Answer]:
    """Return an answer for each of the queries' embeddings [Q, D].

    Args:
        threshold: of `calibrate`; an answer that is no surer than that is none of the classes.
        digests: of the queries' files; images of the same content do not vote.
    """
    names, labels = numbered(index)
    if not names:
        raise ValueError(f"{index.folder} has no classes; put its images into a folder per class")
    ids, distances = index.search(queries, k + 1)
    answers = []
    for place, (found, away) in enumerate(zip(ids, distances, strict=True)):
        own = None if digests is None else digests[place]
        others = [number for number, item in enumerate(index.store.items(found)) if item.digest != own][:k]
        found, away = found[others], away[others]
        voters = labels[np.searchsorted(index.ids, found)]
        euclidean = np.sqrt(2 * away) if index.distance == "cosine" else away
        best, share, sureness = _answer(voters, euclidean, len(names))
        answers.append(
            Answer(
                label=names[best] if sureness > threshold else None,
                most_votes=names[best],
                share=share,
                distance=float(away[voters == best].min(initial=np.inf)),
                sureness=sureness,
                ids=found.tolist(),
                distances=away.tolist(),
            )
        )
    return answers


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


def _judge(
    index: Index, labels: Rows, rows: Rows, k: int, *, with_own: bool
) -> tuple[Distances, NDArray[np.bool_]]:
    """How sure the answer for each row is, with the others of its class or without, and if it is right."""
    vectors, classes = np.ascontiguousarray(index.vectors), int(labels.max()) + 1
    sureness, right = np.zeros(len(rows)), np.zeros(len(rows), bool)
    for own in np.unique(labels[rows]).tolist():
        places = np.flatnonzero(labels[rows] == own)
        queries = vectors[rows[places]]
        allowed = (labels >= 0) & ((labels != own) | with_own)
        candidates = scan(queries, vectors, k + 1 + SPARE, allowed)
        candidates[candidates == rows[places][:, None]] = -1  # no image votes for itself
        distances, found = nearest(queries, vectors, candidates, k)
        for place, near, away in zip(places.tolist(), found, distances, strict=True):
            there = near >= 0
            best, _, sureness[place] = _answer(labels[near[there]], away[there], classes)
            right[place] = best == own
    return sureness, right
