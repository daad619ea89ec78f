"""The class of an image by its neighbours, its confidence, and the threshold for none of these."""

from dataclasses import replace

import numpy as np
import pytest
from support.tiny_index import brute_force, vector_index

from softwarp.index.classify import calibrate, classify
from softwarp.index.images import NewImage
from softwarp.index.index import Index

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
def test_calibration_by_false_acceptance_is_that_of_a_loop(tmp_path, distance):
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
    calibration = replace(calibrate(index, K), threshold=limit)
    found = classify(index, queries, K, calibration=calibration)
    for one, (best, share, sure), row in zip(found, expected, away, strict=True):
        assert one.guess == best
        assert one.label == (best if sure > limit else None)
        assert (one.share, one.sureness) == pytest.approx((share, sure), rel=1e-4)
        assert one.confidence == calibration.confidence(one.sureness)
        assert one.ids == (np.argsort(row)[:K] + 1).tolist()
        assert one.distance == pytest.approx(
            min(row[n - 1] for n in one.ids if labels[n - 1] == best), rel=1e-4
        )
    assert {one.label is None for one in found} == {True, False}


def test_no_image_votes_for_itself(tmp_path):
    vectors, labels = overlapping()
    index = Index.create(tmp_path / "index", dimensions=6, distance="euclidean")
    items = [NewImage(f"{row}.jpg", label, b"%d" % row) for row, label in enumerate(labels)]
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
    answers = classify(index, vectors, K, calibration=calibrate(index, K))
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
    index = vector_index(tmp_path / "index", vectors, labels=labels)
    assert calibrate(mixed, K) == calibrate(index, K)
    queries = overlapping(seed=1)[0]
    assert [(each.guess, each.sureness) for each in classify(mixed, queries, K)] == [
        (each.guess, each.sureness) for each in classify(index, queries, K)
    ]
    bare = vector_index(tmp_path / "bare", vectors)
    for ask in (calibrate, lambda index: classify(index, vectors[:1])):
        with pytest.raises(ValueError, match="no classes"):
            ask(bare)


def test_false_acceptance_needs_classes_of_several_images(tmp_path):
    vectors, labels = overlapping(classes=3)
    with pytest.raises(ValueError, match="3 classes"):
        calibrate(vector_index(tmp_path / "few", vectors, labels=labels), false_acceptance=0.1)
    alone = vector_index(tmp_path / "alone", vectors, labels=[str(row) for row in range(len(labels))])
    with pytest.raises(ValueError, match="0 classes"):
        calibrate(alone, false_acceptance=0.1)
    with pytest.raises(ValueError, match=r"false_acceptance is 1\.5"):
        calibrate(alone, false_acceptance=1.5)
    with pytest.raises(ValueError, match=r"false_rejection is 1\.5"):
        calibrate(alone, false_rejection=1.5)


@pytest.mark.parametrize(
    "labels", [["a"] * 8, ["a", "b"], ["a", "a", "b"], [*"abcdefgh"], ["a", *[None] * 7], ["a", *"bcd" * 2]]
)
def test_an_answer_on_any_index_with_a_class(tmp_path, labels):
    vectors = np.random.default_rng(0).normal(size=(len(labels), 3)).astype(np.float32)
    index = vector_index(tmp_path / "index", vectors, labels=labels)
    found = calibrate(index, K)
    several = {label for label in labels if label and labels.count(label) > 1}
    assert found.images == sum(label in several for label in labels)
    for each in classify(index, vectors + 1e-3, K, calibration=found):
        assert each.guess in labels
        assert np.isnan(each.confidence) if not several else 0 < each.confidence < 1


def drawn(classes, sizes, spread, held_out, seed=0):
    """Vectors and labels of an index, and new ones of the same classes."""
    generator = np.random.default_rng(seed)
    centres = spread * generator.normal(size=(classes, 8))
    inside, outside = np.repeat(np.arange(classes), sizes), np.repeat(np.arange(classes), held_out)
    vectors = [
        (centres[truth] + generator.normal(size=(len(truth), 8))).astype(np.float32)
        for truth in (inside, outside)
    ]
    return vectors[0], [str(each) for each in inside], vectors[1], [str(each) for each in outside]


CASES = {
    "overlapping": drawn(8, 40, 0.7, 50),
    "well apart": drawn(8, 40, 5.0, 50),
    "unbalanced": drawn(20, np.arange(2, 42, 2), 1.5, np.arange(2, 42, 2)),
    "a single class": drawn(1, 200, 1.0, 200),
    "three classes": drawn(3, 100, 1.5, 100),
    "1,000 classes": drawn(1000, 3, 3.0, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_known_ones_are_rejected_at_most_one_in_twenty(tmp_path, name):
    vectors, labels, queries, _ = CASES[name]
    index = vector_index(tmp_path / "index", vectors, labels=labels)
    calibration = calibrate(index, K)
    found = classify(index, queries, K, calibration=calibration)
    slack = 3 * np.sqrt(0.05 * 0.95 * (1 / len(queries) + 1 / calibration.images))
    rejected = np.mean([each.label is None for each in found])
    assert rejected < 0.05 + slack
    assert rejected > 0.01  # and not by accepting whatever comes
    assert calibration.false_rejection == pytest.approx(0.05, abs=slack)


@pytest.mark.parametrize("name", ["overlapping", "well apart", "unbalanced", "three classes"])
def test_confidence_is_how_often_guesses_are_right(tmp_path, name):
    """Asked with as many images of unknown classes as of known ones, which the index has not seen."""
    vectors, labels, queries, truth = CASES[name]
    index = vector_index(tmp_path / "index", vectors, labels=labels)
    calibration = calibrate(index, K)
    known = classify(index, queries, K, calibration=calibration)
    confidence = [each.confidence for each in known]
    right = [each.guess == own for each, own in zip(known, truth, strict=True)]
    for own in sorted(set(truth)):
        others = [row for row, label in enumerate(labels) if label != own]
        without = vector_index(
            tmp_path / f"without {own}", vectors[others], labels=[labels[row] for row in others]
        )
        asked = queries[[label == own for label in truth]]
        answers = classify(without, asked, K, calibration=calibration)
        confidence += [each.confidence for each in answers]
        right += [False] * len(answers)
    order = np.argsort(confidence)
    for part in np.array_split(order, 4):
        assert np.mean(np.array(right)[part]) == pytest.approx(np.mean(np.array(confidence)[part]), abs=0.1)
