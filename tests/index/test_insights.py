"""What neighbours tell of a folder: near-duplicates and labels that neighbours disagree with."""

import numpy as np
import pytest
from support.tiny_index import brute_force, vector_index

from softwarp.events import Progress
from softwarp.index import insights
from softwarp.index.index import Index
from softwarp.index.insights import neighbours, vote


def points(count, dimensions=16, seed=0):
    return np.random.default_rng(seed).normal(size=(count, dimensions)).astype(np.float32)


def planted(count=60, copies=3, seed=0):
    """Points far apart, and some that are nearly the first ones; the groups of rows that belong together."""
    generator = np.random.default_rng(seed)
    vectors = points(count, seed=seed)
    near = vectors[:5].repeat(copies, 0) + 0.01 * generator.normal(size=(5 * copies, 16)).astype(np.float32)
    order = generator.permutation(count + 5 * copies)
    place = np.argsort(order)
    groups = {
        frozenset(place[[row, *(count + row * copies + copy for copy in range(copies))]].tolist())
        for row in range(5)
    }
    return np.concatenate([vectors, near])[order], groups


@pytest.mark.parametrize("distance", ["euclidean", "cosine"])
def test_planted_duplicates_are_found_and_nothing_else(tmp_path, distance):
    vectors, groups = planted()
    index = vector_index(tmp_path / "index", vectors, distance=distance)
    found = index.duplicates()
    assert {frozenset(number - 1 for number in group.ids) for group in found.groups} == groups
    exact = brute_force(vectors, vectors, distance)
    np.fill_diagonal(exact, np.inf)
    quartile = np.quantile(exact.min(axis=1), 0.75)
    assert found.threshold == pytest.approx((0.25 if distance == "cosine" else 0.5) * quartile, rel=1e-3)
    np.fill_diagonal(exact, 0)
    for group in found.groups:
        rows = np.array(group.ids) - 1
        np.testing.assert_allclose(group.distances, exact[rows[0], rows], atol=1e-5)
    largest = [max(group.distances) for group in found.groups]
    assert largest == sorted(largest)


def test_a_threshold_of_ones_own_groups_by_chains(tmp_path):
    vectors = np.array([[0.0], [1.0], [2.0], [5.0], [6.1]], np.float32)
    index = vector_index(tmp_path / "index", vectors)
    assert [group.ids for group in index.duplicates(1.05).groups] == [[1, 2, 3]]
    assert [group.ids for group in index.duplicates(0.0).groups] == []
    with pytest.raises(ValueError, match="-1"):
        index.duplicates(-1)


def test_more_copies_than_neighbours_are_one_group(tmp_path, monkeypatch):
    vectors = np.concatenate([np.zeros((70, 16), np.float32), 10 * points(100) + 90])
    # Two clouds of 40, each closer together than to the other: connected only beyond the tenth neighbour.
    vectors[:40] += 0.01 * points(40, seed=1)
    vectors[40:70] += 0.01 * points(30, seed=2) + 0.15
    monkeypatch.setattr(insights, "BLOCK", 7)
    found = vector_index(tmp_path / "index", vectors).duplicates(0.7)
    assert [group.ids for group in found.groups] == [list(range(1, 71))]


def test_removed_images_are_not_duplicates(tmp_path):
    vectors, _ = planted()
    index = vector_index(tmp_path / "index", vectors)
    gone = index.duplicates().groups[0].ids[1:]
    index.store.remove([index.item(number).path for number in gone])
    index = Index.open(tmp_path / "index")
    assert len(index.store.removed) == len(gone)
    found = index.duplicates()
    assert len(found.groups) == 4
    assert not set(gone) & {number for group in found.groups for number in group.ids}


def test_neighbours_are_those_of_brute_force(tmp_path, monkeypatch):
    monkeypatch.setattr(insights, "BLOCK", 16)
    vectors = points(50)
    seen = []
    index = vector_index(tmp_path / "index", vectors)
    rows, distances = neighbours(index, 6, on_event=seen.append)
    exact = brute_force(vectors, vectors, "euclidean")
    np.fill_diagonal(exact, np.inf)
    assert (rows == np.argsort(exact, axis=1)[:, :6]).all()
    np.testing.assert_allclose(distances, np.sort(exact, axis=1)[:, :6], rtol=1e-6)
    assert seen[-1] == Progress("comparing", 50, 50)
    assert neighbours(vector_index(tmp_path / "copies", np.zeros((9, 2), np.float32)), 3)[0].shape == (9, 3)


@pytest.mark.parametrize("rows", [0, 1])
def test_an_image_alone_has_no_duplicate(tmp_path, rows):
    assert vector_index(tmp_path / "index", points(1)[:rows]).duplicates().groups == ()


def labelled(wrong=(), spread=6):
    """Four classes of 12 around their own centres; the labels of some rows are those of the next class."""
    generator = np.random.default_rng(0)
    centres = spread * generator.normal(size=(4, 8))
    truth = np.arange(48) % 4
    vectors = (centres[truth] + generator.normal(size=(48, 8))).astype(np.float32)
    labels = [f"class {(each + (row in wrong)) % 4}" for row, each in enumerate(truth.tolist())]
    return vectors, labels


def test_wrong_labels_come_first_with_the_right_suggestion(tmp_path):
    wrong = (3, 17, 40)
    vectors, labels = labelled(wrong)
    found = vector_index(tmp_path / "index", vectors, labels=labels).outliers()
    assert {each.id - 1 for each in found[:3]} == set(wrong)
    for each in found[:3]:
        row = each.id - 1
        assert (each.label, each.suggested) == (f"class {(row + 1) % 4}", f"class {row % 4}")
        assert each.score > 0.5
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)


def test_right_labels_are_not_outliers(tmp_path):
    vectors, labels = labelled()
    assert len(vector_index(tmp_path / "index", vectors, labels=labels).outliers()) == 0


def test_scores_are_those_of_a_loop(tmp_path):
    vectors, labels = labelled(wrong=(5, 6), spread=1)
    labels[9] = None
    index = vector_index(tmp_path / "index", vectors, labels=labels)
    exact = brute_force(vectors, vectors, "euclidean")
    np.fill_diagonal(exact, np.inf)
    expected = {}
    for row, own in enumerate(labels):
        nearest = np.argsort(exact[row])[:7]
        votes = {}
        for at in nearest.tolist():
            weight = np.exp(-3 * (exact[row, at] / exact[row, nearest[-1]]) ** 2)
            if labels[at] is not None:
                votes[labels[at]] = votes.get(labels[at], 0) + weight
        shares = {name: votes[name] / sum(votes.values()) for name in votes}
        best = max((name for name in shares if name != own), key=shares.get, default=None)
        if own is not None and best is not None and shares[best] > shares.get(own, 0):
            expected[row + 1] = shares[best] - shares.get(own, 0)
    found = {each.id: each.score for each in index.outliers(k=7)}
    assert found == pytest.approx(expected)
    assert list(found) == sorted(expected, key=expected.get, reverse=True)
    assert sum(score < 0.9 for score in found.values()) >= 2


def test_outliers_need_classes(tmp_path):
    with pytest.raises(ValueError, match="0 classes"):
        vector_index(tmp_path / "index", points(5)).outliers()


def test_copies_vote_alike():
    assert vote(np.array([0, 1, -1, 1]), np.zeros(4), 3).tolist() == pytest.approx([1 / 3, 2 / 3, 0])
    assert vote(np.array([-1]), np.ones(1), 2).tolist() == [0, 0]


def test_clusters_are_the_classes_where_these_lie_apart(tmp_path):
    vectors, labels = labelled()
    index = vector_index(tmp_path / "index", vectors)
    groups = index.clusters(fineness=1).groups
    truth = {frozenset(row + 1 for row in range(48) if labels[row] == name) for name in set(labels)}
    assert {frozenset(group.ids) for group in groups} == truth
    finer = index.clusters().groups
    assert len(finer) > 4
    assert all(any(set(group.ids) <= each for each in truth) for group in finer)
    sizes = [len(group.ids) for group in finer]
    assert (sum(sizes), sizes) == (48, sorted(sizes, reverse=True))


def test_a_cluster_begins_with_its_most_typical_image(tmp_path):
    vectors = np.array([[9.0], [0.0], [1.0], [2.5]], np.float32)
    (group,) = vector_index(tmp_path / "index", vectors).clusters(fineness=0.01).groups
    assert group.ids == [4, 3, 2, 1]
    np.testing.assert_allclose(group.distances, [0, 1.5, 2.5, 6.5])


@pytest.mark.parametrize("rows", [0, 1])
def test_an_image_alone_is_its_own_cluster(tmp_path, rows):
    found = vector_index(tmp_path / "index", points(1)[:rows]).clusters().groups
    assert [group.ids for group in found] == [[1]] * rows
