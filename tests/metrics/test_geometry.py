import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import references_metrics as references

from softwarp.metrics import (
    average_distance_to_proxy,
    bootstrap_over_classes,
    geometry,
    geometry_metrics,
    hubness,
    occurrences,
)


def draw(seed, count=40, width=5, classes=6):
    generator = np.random.default_rng(seed)
    return generator.normal(size=(count, width)) + 3, generator.integers(0, classes, count)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 30))
def test_average_distance_to_proxy_equals_the_equation(seed, count):
    points, labels = draw(seed, count)
    proxies = np.random.default_rng(seed + 1).normal(size=(9, 5))  # some classes have no embeddings
    expected = references.average_distance_to_proxy(points, labels, proxies)
    assert average_distance_to_proxy(points, labels, proxies) == pytest.approx(expected, rel=1e-12)


def test_average_distance_to_proxy_weighs_classes_alike():
    points, proxies = torch.tensor([[1.0], [1.0], [1.0], [13.0]]), torch.tensor([[0.0], [10.0]])
    assert average_distance_to_proxy(points, torch.tensor([0, 0, 0, 1]), proxies) == 2.0


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_compactness_and_separability_equal_the_definitions(seed, cosine):
    points, labels = draw(seed)
    on = points / np.linalg.norm(points, axis=1, keepdims=True) if cosine else points
    result = geometry_metrics(points, labels, distance="cosine" if cosine else "euclidean")
    compactness, separability = references.compactness(on, labels), references.separability(on, labels)
    assert result["compactness"] == pytest.approx(compactness, rel=1e-6)
    assert result["separability"] == pytest.approx(separability, rel=1e-6)
    assert result["separability_ratio"] == pytest.approx(separability / compactness, rel=1e-6)


def test_blocks_change_nothing(monkeypatch):
    points, labels = draw(3)
    whole = geometry_metrics(points, labels)
    monkeypatch.setattr(geometry, "CLASS_ROWS", 2)
    assert geometry_metrics(points, labels) == pytest.approx(whole, rel=1e-9)


def test_far_from_the_origin_no_digits_are_lost():
    """With more than 25 rows torch's distances come from a product, unless told otherwise."""
    points, labels = draw(0, count=300, classes=3)
    near = geometry_metrics(points, labels)
    far = geometry_metrics(points + 1e7, labels)
    assert far["compactness"] == pytest.approx(near["compactness"], rel=1e-7)
    labels = np.arange(300) // 5
    near, far = geometry_metrics(points, labels), geometry_metrics(points + 1e7, labels)
    assert far["separability"] == pytest.approx(near["separability"], rel=1e-7)


def test_spectrum_of_directions_used_alike_and_of_one():
    alike = geometry_metrics(torch.eye(6), torch.arange(6) % 2)
    assert alike["spectral_decay"] == pytest.approx(0, abs=1e-12)
    assert alike["effective_rank"] == pytest.approx(6)
    share = np.array([3.0, 1.0]) / 4
    uneven = geometry_metrics(torch.diag(torch.tensor([3.0, 1.0])), torch.arange(2))
    assert uneven["spectral_decay"] == pytest.approx(np.mean(np.log(0.5 / share)))
    assert uneven["effective_rank"] == pytest.approx(np.exp(-(share * np.log(share)).sum()))


def test_what_is_undefined_is_nan():
    points = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    assert math.isnan(geometry_metrics(points, torch.tensor([0, 1]))["compactness"])
    assert math.isnan(geometry_metrics(points, torch.tensor([0, 0]))["separability"])


def test_wrong_inputs_are_named():
    points, labels, proxies = torch.zeros(2, 3), torch.tensor([0, 1]), torch.zeros(2, 3)
    with pytest.raises(ValueError, match="3 dimensions and proxies 4"):
        average_distance_to_proxy(points, labels, torch.zeros(2, 4))
    with pytest.raises(ValueError, match="rows of the 2 proxies"):
        average_distance_to_proxy(points, torch.tensor([0, 2]), proxies)
    with pytest.raises(ValueError, match="rows of the 2 proxies; got -1 to 0"):
        average_distance_to_proxy(points, torch.tensor([0, -1]), proxies)


def test_the_bootstrap_draws_classes_and_not_queries():
    """Ten classes, all right or all wrong: the interval is that of ten coins, not of 1000 queries."""
    labels = torch.arange(10).repeat_interleave(100)
    values = (labels < 5).double()
    low, high = bootstrap_over_classes(values, labels, samples=4000)
    assert (low, high) == pytest.approx((0.2, 0.8), abs=0.05)
    narrow = bootstrap_over_classes(values, torch.arange(1000), samples=1000)
    assert narrow[1] - narrow[0] < 0.1


def test_the_bootstrap_leaves_out_what_has_no_value_and_is_seeded():
    labels = torch.arange(30) % 7
    values = torch.rand(30, generator=torch.Generator().manual_seed(0))
    values[::7] = torch.nan  # class 0, every query
    kept = ~values.isnan()
    assert bootstrap_over_classes(values, labels) == bootstrap_over_classes(values[kept], labels[kept])
    assert bootstrap_over_classes(values, labels) != bootstrap_over_classes(values, labels, seed=1)
    low, high = bootstrap_over_classes(values, labels)
    assert low < float(values[kept].mean()) < high
    assert all(map(math.isnan, bootstrap_over_classes(values[::7], labels[::7])))
    with pytest.raises(ValueError, match="level between 0 and 1"):
        bootstrap_over_classes(values, labels, level=95)


@pytest.mark.parametrize("distance", ["euclidean", "cosine"])
def test_hubs_are_counted_as_the_definition_says(distance):
    points, _ = draw(7, count=30)
    on = points / np.linalg.norm(points, axis=1, keepdims=True) if distance == "cosine" else points
    apart = np.linalg.norm(on[:, None] - on[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    counts = np.bincount(apart.argsort(axis=1)[:, :4].ravel(), minlength=30)
    assert occurrences(points, k=4, distance=distance).tolist() == counts.tolist()
    skewness = ((counts - counts.mean()) ** 3).mean() / counts.std() ** 3
    assert hubness(points, k=4, distance=distance) == pytest.approx(skewness)
    assert math.isnan(hubness(points[:1]))


def test_lengths_are_those_of_the_embeddings_given():
    points = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    for distance in ("euclidean", "cosine"):
        found = geometry_metrics(points, torch.tensor([0, 1]), distance=distance)
        assert (found["norm"], found["norm_deviation"]) == (3.0, 2.0)


def test_the_share_between_classes_equals_the_definition():
    points, labels = draw(5)
    means = np.stack([points[labels == label].mean(0) for label in labels])
    between = ((means - points.mean(0)) ** 2).sum() / ((points - points.mean(0)) ** 2).sum()
    assert geometry_metrics(points, labels)["between_share"] == pytest.approx(between)
    assert math.isnan(geometry_metrics(points, labels * 0)["between_share"])
