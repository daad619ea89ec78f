"""Lengths and distances at any scale: the squares of numbers beyond 1e154 or below 1e-162 leave float64.

Where something is scaled it is by a power of two, which changes no digit.
"""

import torch
from torch import Tensor

TINY = 2.0**-450  # squares of differences that make a distance below this may have underflowed


def power_of_two(largest: Tensor) -> Tensor:
    """The largest power of two up to each number >= 0; 1 for 0."""
    mantissa = torch.frexp(largest).mantissa  # from 0.5 to 1
    return torch.where(largest == 0, 1.0, largest / (2 * mantissa))


def unit_of(*tables: Tensor) -> float:
    """The power of two that brings the largest absolute value of all tables to between 1 and 2."""
    extremes = [torch.maximum(-low, high) for low, high in map(torch.aminmax, tables)]
    return float(power_of_two(torch.stack(extremes).max().double()))


def row_lengths(rows: Tensor) -> Tensor:
    """Float64 lengths [n] of rows [n, D]."""
    double = rows.double()
    units = power_of_two(torch.linalg.vector_norm(double, torch.inf, dim=1))
    lengths: Tensor = torch.linalg.vector_norm(double / units[:, None], dim=1)
    return lengths * units


def exact_distances(left: Tensor, right: Tensor) -> Tensor:
    """Float64 distances [..., n, m] from differences: each the same number whatever else is asked with it."""
    left, right = left.double(), right.double()
    distances = _from_differences(left, right)
    odd = (distances < TINY) | distances.isinf()
    if bool(odd.any()):
        largest = torch.cdist(left, right, p=torch.inf)
        odd &= largest > 0  # else they are copies
        pairs, units = (*odd.shape, left.shape[-1]), power_of_two(largest[odd])
        first, second = left[..., :, None, :].expand(pairs)[odd], right[..., None, :, :].expand(pairs)[odd]
        scaled = (first - second) / units[:, None]
        distances[odd] = _from_differences(scaled, scaled.new_zeros(1, scaled.shape[1]))[:, 0] * units
    return distances


def _from_differences(left: Tensor, right: Tensor) -> Tensor:
    return torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist")
