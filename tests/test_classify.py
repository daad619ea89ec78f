"""The class of an image by its neighbours, and the threshold for none of these."""

import numpy as np
import pytest
from support.tiny_index import brute_force, vector_index

from softwarp.classify import calibrate, classify
from softwarp.index_store import NewItem
from softwarp.retrieve import create

K = 5


def overlapping(classes=8, images=9, spread=1.5, seed=0):
    generator = np.random.default_rng(seed)
    centres = spread * generator.normal(size=(classes, 6))
    truth = np.arange(classes * images) % classes
    vectors = (centres[truth] + generator.normal(size=(len(truth), 6))).astype(np.float32)
    return vectors, [f"class {each}" for each in truth.tolist()]


def answer(distances, labels, k=K):
    """The class and how sure it is, by a loop over Euclidean distances."""
    nearest = sorted(range(len(labels)), key=lambda row: distances[row])[:k]
    votes = {}
    for row in nearest:
        weight = np.exp(-3 * (distances[row] / distances[nearest[-1]]) ** 2)
        votes[labels[row]] = votes.get(labels[row], 0) + weight
    best = max(votes, key=votes.get)
    closest = min(distances[row] for row in nearest if labels[row] == best)
    return best, votes[best] / sum(votes.values()), votes[best] / sum(votes.values()) / closest


def left_out(vectors, labels, with_own):
    """How sure the answer for each image is, with the others of its class or without them."""
    found = []
    for row, own in enumerate(labels):
        others = [
            other for other in range(len(labels)) if other != row and (with_own or labels[other] != own)
        ]
        distances = brute_force(vectors[row : row + 1], vectors[others], "euclidean")[0]
        found.append(answer(distances, [labels[other] for other in others]))
    return found


@pytest.mark.parametrize("distance", ["euclidean", "cosine"])
def test_calibration_is_that_of_a_loop(tmp_path, distance):
    vectors, labels = overlapping()
    index = vector_index(tmp_path / "index", vectors, distance=distance, labels=labels)
    stored = np.array(index.vectors)
    known = left_out(stored, labels, with_own=True)
    unknown = np.array([sure for _, _, sure in left_out(stored, labels, with_own=False)])
    found = calibrate(index, K, false_acceptance=0.2)
    assert found.threshold == pytest.approx(np.quantile(unknown, 0.8), rel=1e-5)
    even = np.array([int(label.split()[1]) % 2 == 0 for label in labels])
    limits = np.where(even, np.quantile(unknown[~even], 0.8), np.quantile(unknown[even], 0.8))
    accepted = np.array([sure for _, _, sure in known]) > limits
    right = np.array([best == own for (best, _, _), own in zip(known, labels, strict=True)])
    assert found.false_acceptance == pytest.approx((unknown > limits).mean())
    assert found.false_rejection == pytest.approx(1 - accepted.mean())
    assert found.wrong == pytest.approx(1 - right[accepted].mean())
    assert 0 < found.false_rejection < 1
    assert found.wrong > 0
    assert found.images == len(labels)


@pytest.mark.parametrize("distance", ["euclidean", "cosine"])
def test_answers_are_those_of_a_loop(tmp_path, distance):
    vectors, labels = overlapping()
    queries = overlapping(seed=1)[0][:20]
    index = vector_index(tmp_path / "index", vectors, distance=distance, labels=labels)
    away = brute_force(queries, vectors, distance)
    euclidean = np.sqrt(2 * away) if distance == "cosine" else away
    expected = [answer(row, labels) for row in euclidean]
    limit = float(np.median([sure for _, _, sure in expected]))
    found = classify(index, queries, K, threshold=limit)
    for one, (best, share, sure), row in zip(found, expected, away, strict=True):
        assert one.most_votes == best
        assert one.label == (best if sure > limit else None)
        assert (one.share, one.sureness) == pytest.approx((share, sure), rel=1e-4)
        assert one.ids == (np.argsort(row)[:K] + 1).tolist()
        assert one.distance == pytest.approx(
            min(row[n - 1] for n in one.ids if labels[n - 1] == best), rel=1e-4
        )
    assert {one.label is None for one in found} == {True, False}


def test_no_image_votes_for_itself(tmp_path):
    vectors, labels = overlapping()
    index = create(tmp_path / "index", dimensions=6, distance="euclidean")
    items = [NewItem(f"{row}.jpg", label, b"%d" % row) for row, label in enumerate(labels)]
    index.append(vectors, items)
    found = classify(index, vectors, K, digests=[item.digest for item in index.items])
    for row, (one, (best, share, sure)) in enumerate(
        zip(found, left_out(vectors, labels, with_own=True), strict=True)
    ):
        assert one.label == best
        assert (one.share, one.sureness) == pytest.approx((share, sure), rel=1e-4)
        assert row + 1 not in one.ids
        assert len(one.ids) == K


def test_a_class_that_is_not_there_is_none_of_these(tmp_path):
    vectors, labels = overlapping(classes=10, spread=4)
    there = [row for row, label in enumerate(labels) if label != "class 3"]
    index = vector_index(tmp_path / "index", vectors[there], labels=[labels[row] for row in there])
    threshold = calibrate(index, K).threshold
    answers = classify(index, vectors, K, threshold=threshold)
    strangers = [each.label for each, label in zip(answers, labels, strict=True) if label == "class 3"]
    assert strangers == [None] * 9
    fresh = overlapping(classes=10, spread=4)[0] + 0.1
    right = [each.label == label for each, label in zip(classify(index, fresh, K), labels, strict=True)]
    assert np.mean(right) == 0.9  # all but the class that is not there, as no threshold was asked for


def test_images_without_a_label_neither_vote_nor_count(tmp_path):
    vectors, labels = overlapping()
    mixed = vector_index(
        tmp_path / "mixed", np.concatenate([vectors, vectors]), labels=labels + [None] * len(labels)
    )
    assert calibrate(mixed, K) == calibrate(vector_index(tmp_path / "index", vectors, labels=labels), K)
    (one,) = classify(mixed, vectors[:1] + 0.01, 2)
    assert (one.label, one.share) == (labels[0], 1.0)
    with pytest.raises(ValueError, match="no classes"):
        classify(vector_index(tmp_path / "bare", vectors), vectors[:1])


def test_calibration_needs_classes_of_several_images(tmp_path):
    vectors, labels = overlapping(classes=3)
    with pytest.raises(ValueError, match="3 classes"):
        calibrate(vector_index(tmp_path / "few", vectors, labels=labels))
    alone = vector_index(tmp_path / "alone", vectors, labels=[str(row) for row in range(len(labels))])
    with pytest.raises(ValueError, match="0 classes"):
        calibrate(alone)
    with pytest.raises(ValueError, match=r"1\.5"):
        calibrate(alone, false_acceptance=1.5)
