"""Float32 scores of pairs, with a bound on their error, and the float64 distances that settle the rest.

With x centred and scaled to |x| <= 1 the score of a pair, larger for closer, is

    s_ij = x_i . x_j - |x_i|^2 / 2 - |x_j|^2 / 2 = -|x_i - x_j|^2 / 2

Centring leaves distances as they are and removes most of the cancellation; scaling keeps squares from
overflowing and underflowing. What the error bound cannot decide is asked of `exact_distances`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from softwarp.metrics.threads import Map

CHUNK = 128  # dimensions summed at a time: the bound on the rounding error grows with it
ROWS_AT_ONCE = 1024  # float64 copies are made of so many rows, never of all


@dataclass(frozen=True)
class Side:
    """Queries or gallery, as given and once more in the order of their keys, ready for the product."""

    exact: Tensor  # [N, D] as given
    order: Tensor  # [N] place in the order of keys -> index as given
    keys: Tensor  # [N] ascending; equal keys are in the order given
    points: Tensor  # [N, D] float32, centred and scaled
    lengths: Tensor  # [N] float64, of the points
    centre: Tensor  # [D] float64, what was taken from them
    scale: float  # what they were then divided by


def make_sides(
    queries: Tensor, keys: Tensor, gallery: Tensor | None, gallery_keys: Tensor, each: Map
) -> tuple[Side, Side]:
    """Both sides of a search, the same object twice where there is no gallery."""
    items = queries if gallery is None else gallery
    centre = items.mean(dim=0, dtype=torch.float64)
    lengths = _lengths(queries, centre, each)
    item_lengths = lengths if gallery is None else _lengths(gallery, centre, each)
    scale = float(torch.maximum(lengths.max(), item_lengths.max())) or 1.0
    side = _make_side(queries, keys, centre, lengths, scale, each)
    return side, side if gallery is None else _make_side(
        gallery, gallery_keys, centre, item_lengths, scale, each
    )


def scores(side: Side, other: Side, rows: slice, columns: slice) -> Tensor:
    """Scores [rows, columns] in float32, by places in the order of keys."""
    left, right = side.points[rows], other.points[columns]
    block = -(side.lengths[rows, None].square() / 2).float() - (other.lengths[columns].square() / 2).float()
    if not _float32_products_are_full():
        return block.double().addmm_(left.double(), right.double().T).float()
    for chunk in range(0, left.shape[1], CHUNK):
        # In place: what autocast leaves in float32.
        block.addmm_(left[:, chunk : chunk + CHUNK], right[:, chunk : chunk + CHUNK].T)
    return block


def score_error(side: Side, other: Side, rows: slice, columns: slice) -> Tensor:
    """[rows] A bound on how far a row's scores in a block are from the truth.

    With u = 2^-24 and l = |x| + |y|: the sums of CHUNK products, in any order, are off by CHUNK u |x||y| at
    most, and |x||y| <= l^2 / 4; adding each of them to what is there by u l^2 / 2; rounding the points and
    lengths by less than 16 u l^2 / 4. 1e-30 covers underflow.
    """
    lengths = side.lengths[rows] + other.lengths[columns].max()
    terms = CHUNK + 2 * math.ceil(side.points.shape[1] / CHUNK) + 16
    return terms * 2**-24 * lengths.square() / 4 + 1e-30


def exact_distances(left: Tensor, right: Tensor) -> Tensor:
    """Float64 distances [..., n, m] from differences: each the same number whatever else is asked with it."""
    return torch.cdist(left.double(), right.double(), compute_mode="donot_use_mm_for_euclid_dist")


def near_distances(left: Tensor, right: Tensor) -> Tensor:
    """The same from a float64 product of centred and scaled rows: squared, off by `square_error` at most."""
    squares = left.square().sum(dim=1)[:, None] + right.square().sum(dim=1)
    return squares.addmm_(left, right.T, alpha=-2).clamp_(min=0).sqrt_()


def square_error(side: Side) -> float:
    """With u = 2^-53, lengths up to 1: (D + 16) u (1 + 1)^2 for the product, as much for the truth itself."""
    return (side.points.shape[1] + 16) * 2.0**-50


def centred(side: Side, exact: Tensor) -> Tensor:
    """Rows [n, D] in float64, centred and scaled."""
    return (exact.double() - side.centre) / side.scale


def _float32_products_are_full() -> bool:
    """Whether the process lets float32 products be float32: no TensorFloat-32, no bfloat16."""
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # torch says this where only some backends are set to less
        return False


def _lengths(exact: Tensor, centre: Tensor, each: Map) -> Tensor:
    def measure(part: Tensor) -> Tensor:
        lengths: Tensor = torch.linalg.vector_norm(part.double() - centre, dim=1)
        return lengths

    return torch.cat(list(each(measure, torch.split(exact, ROWS_AT_ONCE))))


def _make_side(exact: Tensor, keys: Tensor, centre: Tensor, lengths: Tensor, scale: float, each: Map) -> Side:
    keys, order = keys.sort(stable=True)
    points = torch.empty(exact.shape, dtype=torch.float32, device=exact.device)

    def fill(start: int) -> None:
        part = slice(start, start + ROWS_AT_ONCE)
        points[part] = (exact[order[part]].double() - centre) / scale

    list(each(fill, range(0, len(order), ROWS_AT_ONCE)))
    return Side(exact, order, keys, points, lengths[order] / scale, centre, scale)
