"""The vote of the nearest, held to a loop in float64 and to scikit-learn."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.neighbors import KNeighborsClassifier
from support import references_metrics as references

from softwarp.evaluation import measure
from softwarp.metrics import knn_per_query, retrieval_per_query, votes

SIDES = st.tuples(
    st.integers(2, 20), st.integers(2, 20), st.integers(1, 4), st.booleans(), st.integers(0, 2**32 - 1)
)


def draw(table):
    """Queries and a gallery on a small grid (ties, duplicates) or at random, and their labels."""
    asked, known, classes, grid, seed = table
    generator = np.random.default_rng(seed)
    points = (
        generator.integers(-1, 2, (n, 2)) if grid else generator.normal(size=(n, 2)) for n in (asked, known)
    )
    queries, gallery = (each.astype(np.float32) for each in points)
    return queries, generator.integers(classes, size=asked), gallery, generator.integers(classes, size=known)


def assert_equal(values, expected):
    assert expected
    for place, row in enumerate(expected):
        for name, value in values.items():
            found = float(value[place])
            assert math.isnan(found) if row is None else found == row[name], (place, name)


@given(SIDES)
def test_the_vote_among_a_gallery_is_that_of_a_loop_in_float64(table):
    queries, labels, gallery, gallery_labels = draw(table)
    ks = sorted({1, min(2, len(gallery)), min(5, len(gallery)), len(gallery)})
    values = knn_per_query(queries, labels, gallery=gallery, gallery_labels=gallery_labels, ks=ks)
    assert list(values) == [f"knn@{k}" for k in ks]
    nobody = [-1] * len(queries)
    assert_equal(values, references.knn(queries, labels, gallery, gallery_labels, nobody, ks))


@given(SIDES, st.sampled_from(["euclidean", "cosine"]))
def test_without_a_gallery_no_query_votes_for_itself(table, distance):
    assume(
        distance == "euclidean" or not table[3]
    )  # on a grid angles tie, and rounding decides which is first
    points, labels, _, _ = draw(table)
    points += 3  # none at the origin, which has no direction
    ks = sorted({1, min(3, len(points) - 1), len(points) - 1})
    values = knn_per_query(points, labels, ks=ks, distance=distance)
    expected = references.knn(points, labels, points, labels, range(len(points)), ks, distance)
    assert_equal(values, expected)


@given(SIDES)
def test_a_vote_of_one_is_recall_at_1(table):
    queries, labels, gallery, gallery_labels = draw(table)
    sides = {"gallery": gallery, "gallery_labels": gallery_labels, "ks": (1,)}
    found = knn_per_query(queries, labels, **sides)["knn@1"]
    recall = retrieval_per_query(queries, labels, **sides)["recall@1"]
    assert torch.equal(found.nan_to_num(-1), recall.nan_to_num(-1))


def test_three_classes_and_no_ties_vote_as_in_scikit_learn():
    generator = np.random.default_rng(0)
    labels, gallery_labels = generator.integers(3, size=200), generator.integers(3, size=400)
    means = 1.5 * np.eye(3)
    queries, gallery = (
        generator.normal(size=(len(each), 3)) + means[each] for each in (labels, gallery_labels)
    )
    for k in (1, 7):
        peer = KNeighborsClassifier(k).fit(gallery, gallery_labels)
        shares = peer.predict_proba(queries)
        clear = (shares == shares.max(axis=1, keepdims=True)).sum(axis=1) == 1
        found = knn_per_query(queries, labels, gallery=gallery, gallery_labels=gallery_labels, ks=(k,))
        expected = peer.predict(queries) == labels
        assert clear.sum() > 100
        assert np.array_equal(found[f"knn@{k}"].numpy()[clear], expected[clear])


def test_of_classes_with_as_many_votes_the_nearest_wins():
    gallery, classes = [[0.1], [0.2], [0.3], [0.4]], ["wren", "gull", "gull", "wren"]
    sides = {"gallery": np.array(gallery), "gallery_labels": classes, "ks": (2, 3, 4)}
    values = knn_per_query(np.zeros((1, 1)), ["wren"], **sides)
    assert {name: float(value) for name, value in values.items()} == {
        "knn@2": 1.0,
        "knn@3": 0.0,
        "knn@4": 1.0,
    }


def test_parts_of_the_work_vote_alike(monkeypatch):
    queries, labels, gallery, gallery_labels = draw((20, 20, 3, False, 7))
    sides = {"gallery": gallery, "gallery_labels": gallery_labels, "ks": (5,)}
    whole = knn_per_query(queries, labels, **sides)["knn@5"]
    monkeypatch.setattr(votes, "PAIRS_AT_ONCE", 60)
    assert torch.equal(knn_per_query(queries, labels, **sides)["knn@5"], whole)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ks": (4,)}, "4.*1 to 3"),
        ({"ks": ()}, "K of knn"),
        ({"ks": (0,)}, "K of knn"),
        ({"gallery_labels": [0]}, "both or"),
    ],
)
def test_what_cannot_vote_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        knn_per_query(np.zeros((4, 1)), [0, 0, 1, 1], **options)


def test_measure_reports_it_with_an_interval_only_if_asked():
    queries, labels, gallery, gallery_labels = draw((20, 20, 3, False, 3))
    sides = {"gallery": gallery, "gallery_labels": gallery_labels}
    plain, asked = (measure(queries, labels, knn_ks=ks, bootstrap=20, **sides) for ks in ((), (5,)))
    assert "knn@5" not in plain["metrics"]
    assert asked["metrics"] == plain["metrics"] | {"knn@5": asked["metrics"]["knn@5"]}
    low, high = asked["intervals"]["knn@5"]
    assert low <= asked["metrics"]["knn@5"] <= high
