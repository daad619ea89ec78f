"""Float32 scores of pairs, with a bound on their error, and the float64 distances that settle the rest.

With x centred and scaled to |x| <= 1 (`scaling.py`) the score of a pair, larger for closer, is

    s_ij = x_i . x_j - |x_i|^2 / 2 - |x_j|^2 / 2 = -|x_i - x_j|^2 / 2

Centring leaves distances as they are and removes most of the cancellation; scaling keeps squares from
overflowing and underflowing. What the error bound cannot decide is asked of `scaling.exact_distances`.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from softwarp.metrics.checks import ROWS_AT_ONCE
from softwarp.metrics.scaling import unit_of
from softwarp.metrics.threads import Map

CHUNK = 256  # dimensions summed at a time: the bound on the rounding error grows with it


@dataclass(frozen=True)
class Frame:
    """How embeddings become points: divided by a power of two, centred, divided by the largest length."""

    unit: float
    centre: Tensor  # [D] float64
    scale: float


@dataclass(frozen=True)
class Side:
    """Queries or gallery, as given and once more in the order of their keys, ready for the product."""

    exact: Tensor  # [N, D] as given
    order: Tensor  # [N] place in the order of keys -> index as given
    keys: Tensor  # [N] ascending; equal keys are in the order given
    points: Tensor  # [N, D] float32, in the frame
    lengths: Tensor  # [N] float64, of the points
    halves: Tensor  # [N] float32: -length^2 / 2, a point's own part of its scores
    frame: Frame


def make_sides(
    queries: Tensor, keys: Tensor, gallery: Tensor | None, gallery_keys: Tensor, each: Map
) -> tuple[Side, Side]:
    """Both sides of a search, the same object twice where there is no gallery."""
    frame = _frame(queries, gallery, each)
    side = _make_side(queries, keys, frame, each)
    return side, side if gallery is None else _make_side(gallery, gallery_keys, frame, each)


def scores(side: Side, other: Side, rows: slice, columns: slice, block: Tensor) -> Tensor:
    """Scores [rows, columns] in float32, by places in the order of keys, written into `block`."""
    left, right = side.points[rows], other.points[columns]
    torch.add(side.halves[rows, None], other.halves[columns], out=block)
    if not _float32_products_are_full():
        return block.copy_(block.double().addmm_(left.double(), right.double().T))
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


def near_distances(left: Tensor, right: Tensor) -> Tensor:
    """Float64 distances [..., n, m] from a product of points: squared, off by `square_error` at most."""
    squares = left.square().sum(dim=-1)[..., :, None] + right.square().sum(dim=-1)[..., None, :]
    return squares.sub_(left @ right.mT, alpha=2).clamp_(min=0).sqrt_()


def square_error(side: Side) -> float:
    """With u = 2^-53, lengths up to 1: (D + 16) u (1 + 1)^2 for the product, as much for the truth itself."""
    return (side.points.shape[1] + 16) * 2.0**-50


def in_frame(frame: Frame, exact: Tensor) -> Tensor:
    """Rows [n, D] as points, in float64."""
    return (exact.double() / frame.unit - frame.centre) / frame.scale


def distances_in_frame(frame: Frame, distances: Tensor) -> Tensor:
    """Distances between embeddings as those between their points."""
    return distances / frame.unit / frame.scale


def _float32_products_are_full() -> bool:
    """Whether the process lets float32 products be float32: no TensorFloat-32, no bfloat16."""
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # torch says this where only some backends are set to less
        return False


def _frame(queries: Tensor, gallery: Tensor | None, each: Map) -> Frame:
    items = queries if gallery is None else gallery
    unit, parts = unit_of(queries, items), torch.split(items, ROWS_AT_ONCE)
    centre = torch.zeros(items.shape[1], dtype=torch.float64, device=items.device)
    for part in each(lambda part: (part.double() / unit).sum(dim=0), parts):
        centre += part / len(items)
    frame = Frame(unit, centre, 1.0)
    parts += () if gallery is None else torch.split(queries, ROWS_AT_ONCE)
    longest = max(each(lambda part: float(_lengths(in_frame(frame, part)).max()), parts))
    return Frame(unit, centre, longest or 1.0)


def _make_side(exact: Tensor, keys: Tensor, frame: Frame, each: Map) -> Side:
    keys, order = keys.sort(stable=True)
    points = torch.empty(exact.shape, dtype=torch.float32, device=exact.device)
    lengths = torch.empty(len(exact), dtype=torch.float64, device=exact.device)

    def fill(start: int) -> None:
        part = slice(start, start + ROWS_AT_ONCE)
        rows = in_frame(frame, exact[order[part]])
        points[part], lengths[part] = rows, _lengths(rows)

    list(each(fill, range(0, len(order), ROWS_AT_ONCE)))
    return Side(exact, order, keys, points, lengths, (-lengths.square() / 2).float(), frame)


def _lengths(rows: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return lengths
