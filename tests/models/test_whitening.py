"""Whitening within classes, beside its equation."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from softwarp.models.whitening import ClassScatter


def clusters(seed=0, classes=6, each=9, size=5):
    generator = torch.Generator().manual_seed(seed)
    stretch = torch.linspace(0.2, 3.0, size)
    means = 4 * torch.randn(classes, 1, size, generator=generator)
    points = means + stretch * torch.randn(classes, each, size, generator=generator)
    return points.flatten(0, 1) + 7.0, torch.arange(classes).repeat_interleave(each)


def by_the_equation(features, labels, shrinkage):
    """Sw from loops over images, and its power by scipy."""
    from scipy.linalg import fractional_matrix_power

    rows = features.double()
    size = rows.shape[1]
    within = torch.zeros(size, size, dtype=torch.float64)
    for label in set(labels.tolist()):
        own = rows[labels == label]
        for row in own:
            within += torch.outer(row - own.mean(0), row - own.mean(0))
    within /= len(rows) - len(set(labels.tolist()))
    unit = within.trace() / size
    matrix = (within / unit + shrinkage * torch.eye(size)).numpy()
    power = torch.from_numpy(fractional_matrix_power(matrix, -0.5)) * math.sqrt(1 + shrinkage)
    return (rows - rows.mean(0)) @ power


@pytest.mark.parametrize("shrinkage", [0.03, 1.0, 30.0])
def test_the_layer_is_that_of_the_equation(shrinkage):
    features, labels = clusters()
    weight, bias = ClassScatter.of(features, labels).whitened(shrinkage)
    expected = by_the_equation(features, labels, shrinkage).float()
    torch.testing.assert_close(features @ weight.T + bias, expected, atol=1e-4, rtol=1e-4)


def test_infinite_shrinkage_subtracts_the_mean_and_nothing_else():
    features, labels = clusters()
    weight, bias = ClassScatter.of(features, labels).whitened(math.inf)
    torch.testing.assert_close(features @ weight.T + bias, features - features.mean(0), atol=1e-4, rtol=1e-5)
    nearly, _ = ClassScatter.of(features, labels).whitened(1e9)
    torch.testing.assert_close(nearly, weight, atol=1e-4, rtol=1e-4)


def test_without_shrinkage_every_direction_scatters_alike():
    features, labels = clusters(each=200)
    weight, bias = ClassScatter.of(features, labels).whitened(1e-6)
    again = ClassScatter.of(features @ weight.T + bias, labels)
    torch.testing.assert_close(again.values / again.values.mean(), torch.ones(5).double(), atol=1e-3, rtol=0)


@given(st.integers(0, 9), st.floats(0.01, 100), st.sampled_from([0.01, 1.0, 1e4]))
def test_neither_the_names_of_classes_nor_the_unit_matter(seed, shrinkage, unit):
    features, labels = clusters(seed)
    weight, bias = ClassScatter.of(features, labels).whitened(shrinkage)
    other, offset = ClassScatter.of(unit * features, 7 - labels).whitened(shrinkage)
    torch.testing.assert_close(other, weight, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(offset, unit * bias, atol=1e-3 * unit, rtol=1e-4)


def test_classes_of_one_image_leave_only_the_mean_to_subtract():
    features, _ = clusters()
    weight, bias = ClassScatter.of(features, torch.arange(len(features))).whitened(0.1)
    torch.testing.assert_close(weight, torch.eye(5))
    torch.testing.assert_close(bias, -features.mean(0), atol=1e-5, rtol=1e-5)
