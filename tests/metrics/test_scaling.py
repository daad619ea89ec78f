"""Numbers whose squares leave float64: every metric is what brute force says, and what it is at scale 1."""

import math

import numpy as np
import pytest
import torch

from softwarp.metrics import (
    average_distance_to_proxy,
    clustering_metrics,
    geometry_metrics,
    nearest_neighbours,
    pair_distances,
    retrieval_metrics,
    retrieval_per_query,
    verification_metrics,
)
from softwarp.metrics.scaling import exact_distances, power_of_two, row_lengths

SIZES = [1e154, 1e-200, 1e299, 2.0**-1050]  # the last leaves 24 bits and is subnormal
LABELS = np.arange(40) % 8


def points(seed=0):
    generator = np.random.default_rng(seed)
    return generator.normal(size=(8, 6))[LABELS] + generator.normal(size=(40, 6))


def mixed(seed):
    """Rows of very different size, some of them copies."""
    generator = np.random.default_rng(seed)
    rows = points(seed) * generator.choice([1e-310, 1e-200, 1e-10, 1.0, 1e154], size=(40, 1))
    rows[5], rows[21] = rows[6], rows[22]
    return rows


def brute_force(rows):
    """Distances that never overflow or underflow, and each row's neighbours, ties by index."""
    distances = np.array([[math.dist(row, other) for other in rows] for row in rows])
    np.fill_diagonal(distances, np.inf)
    return distances, distances.argsort(axis=1, kind="stable")[:, :-1]


def map_at_r(order):
    hits = LABELS[order] == LABELS[:, None]
    positives = hits.sum(axis=1)
    places = np.arange(1, hits.shape[1] + 1)
    within = hits & (places <= positives[:, None])
    return (within * hits.cumsum(axis=1) / places).sum(axis=1) / positives


@pytest.mark.parametrize(
    "rows",
    [*(points() * size for size in SIZES), *map(mixed, range(6))],
    ids=lambda rows: f"{rows[0, 0]:.0e}",
)
def test_euclidean_search_equals_brute_force(rows):
    distances, order = brute_force(rows)
    assert retrieval_per_query(rows, LABELS)["map@r"].numpy() == pytest.approx(map_at_r(order), abs=1e-12)
    found, indices = nearest_neighbours(rows, 39)
    assert indices.tolist() == order.tolist()
    expected = np.take_along_axis(distances, order, axis=1)
    assert found.numpy() == pytest.approx(expected, rel=1e-12, abs=5e-324)
    gallery = {"gallery": rows[::2], "gallery_labels": LABELS[::2]}
    nearest = retrieval_per_query(rows[1::2], LABELS[1::2], ks=(1,), **gallery)["recall@1"]
    closest = np.array([[math.dist(row, other) for other in rows[::2]] for row in rows[1::2]]).argmin(axis=1)
    expected_hits = LABELS[::2][closest] == LABELS[1::2]
    assert np.nan_to_num(nearest.numpy()).astype(bool).tolist() == expected_hits.tolist()


@pytest.mark.parametrize("seed", range(4))
def test_cosine_does_not_depend_on_lengths(seed):
    rows = points(seed)
    lengths = 2.0 ** np.random.default_rng(seed).integers(-1000, 990, (40, 1))
    for metric in (retrieval_metrics, clustering_metrics, geometry_metrics):
        found, expected = (metric(each, LABELS, distance="cosine") for each in (rows * lengths, rows))
        for name in ("norm", "norm_deviation"):  # these are lengths
            assert np.isfinite([found.pop(name, 0.0), expected.pop(name, 0.0)]).all()
        assert found == expected
    expected = nearest_neighbours(rows, 5, distance="cosine")
    found = nearest_neighbours(rows * lengths, 5, distance="cosine")
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
    assert torch.equal(
        pair_distances(rows * lengths, rows[::-1] / lengths, distance="cosine"),
        pair_distances(rows, rows[::-1].copy(), distance="cosine"),
    )


def test_a_subnormal_row_has_a_direction():
    rows = np.array([[3.0, 4.0], [3 * 5e-324, 4 * 5e-324], [4.0, -3.0]])
    distances, indices = nearest_neighbours(rows, 1, distance="cosine")
    assert indices[:2].flatten().tolist() == [1, 0]
    assert distances[0] == pytest.approx(0, abs=1e-30)


@pytest.mark.parametrize("size", SIZES[:3])
def test_shapes_and_pairs_grow_with_the_embeddings(size):
    rows = points()
    plain, scaled = geometry_metrics(rows, LABELS), geometry_metrics(rows * size, LABELS)
    for name, power in {"compactness": 1, "separability": 1, "separability_ratio": 0}.items():
        assert scaled[name] == pytest.approx(plain[name] * size**power, rel=1e-12)
    for name in ("spectral_decay", "effective_rank"):
        assert scaled[name] == pytest.approx(plain[name], rel=1e-9)
    assert clustering_metrics(rows * size, LABELS) == clustering_metrics(rows, LABELS)
    proxies = rows[:8] + 1
    expected = size * average_distance_to_proxy(rows, LABELS, proxies)
    assert average_distance_to_proxy(rows * size, LABELS, proxies * size) == pytest.approx(
        expected, rel=1e-12
    )
    pairs = pair_distances(rows[:20] * size, rows[20:] * size)
    assert pairs.tolist() == pytest.approx(
        list(map(math.dist, rows[:20] * size, rows[20:] * size)), rel=1e-12
    )
    same = LABELS[:20] == LABELS[20:][np.random.default_rng(1).permutation(20)]
    names = ("accuracy", "auc", "best_accuracy", "tar@far=0.1")
    values = [verification_metrics(each, same, folds=4) for each in (pairs, pairs / size)]
    assert [values[0][name] for name in names] == [values[1][name] for name in names]


def test_distances_and_lengths_of_rows_of_any_size():
    rows = np.concatenate([mixed(0), mixed(1) * 2.0**-20, np.zeros((1, 6))])
    expected = [[math.dist(row, other) for other in rows] for row in rows]
    found = exact_distances(torch.from_numpy(rows), torch.from_numpy(rows))
    assert found.numpy() == pytest.approx(np.array(expected), rel=1e-14, abs=5e-324)
    lengths = [math.hypot(*row) for row in rows]
    assert row_lengths(torch.from_numpy(rows)).tolist() == pytest.approx(lengths, rel=1e-14, abs=5e-324)


def test_powers_of_two_are_the_largest_below():
    numbers = [0.0, 5e-324, 3e-310, 0.75, 1.0, 3.9, 1.7e308]
    expected = [1.0] + [math.ldexp(1.0, math.frexp(number)[1] - 1) for number in numbers[1:]]
    assert power_of_two(torch.tensor(numbers, dtype=torch.float64)).tolist() == expected


def test_what_no_distance_can_be_measured_of_is_refused():
    rows = points()
    rows[3, 2] = -1e301
    with pytest.raises(ValueError, match="embeddings has numbers beyond 1e\\+300"):
        retrieval_metrics(rows, LABELS)
