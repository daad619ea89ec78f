"""The loss and its forces over a plane with proxies, as numbers: what `landscape.py` draws.

The first proxy is that of the embedding's own class. What embeddings *feel* is the loss with Delta held at
the constant (1 - k1) alpha: it falls along the negative gradient of training. What the loss *says* is the
value that training prints, where Delta lifts the value and has no gradient. Only for the warp do they differ.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import minimum_filter
from torch import Tensor

from softwarp.losses.distances import euclidean_distances
from softwarp.losses.warped_softmax import softmax_loss
from softwarp.losses.warps import Warp, identity, piecewise, power, scaled

Floats = NDArray[np.float64]
Window = tuple[float, float, float, float]  # left, right, bottom, top

Height = Callable[[Floats], Floats]  # points -> heights

DECIMAL = r"(\d*\.?\d+)"
FAR = 40.0  # how far along L_p to look for the place where embeddings settle


@dataclass(frozen=True)
class Functions:
    """f1 as training has it, f1 with the slopes that embeddings feel, and f2."""

    text: str
    own: Warp
    felt: Warp
    other: Warp
    alpha: float | None = None


def parse_functions(text: str) -> Functions:
    """Return the functions that a text names: t, t^2, sqrt t, 0.5t or warp(ALPHA,K1,K2) or with a DELTA.

    A power is that of all distances, a multiple that of the distance to its own proxy: the paper's Table 3.

    >>> parse_functions("t^2").other(torch.tensor([3.0]))
    tensor([9.])
    >>> parse_functions("0.5t").other(torch.tensor([3.0]))
    tensor([3.])
    """
    compact = text.replace(" ", "")
    if compact == "t":
        return Functions(text, identity, identity, identity)
    if found := re.fullmatch(rf"t\^{DECIMAL}", compact.replace("sqrtt", "t^0.5")):
        raised = power(float(found[1]))
        return Functions(text, raised, raised, raised)
    if found := re.fullmatch(rf"{DECIMAL}t", compact):
        multiple = scaled(float(found[1]))
        return Functions(text, multiple, multiple, identity)
    if found := re.fullmatch(rf"warp\({DECIMAL},{DECIMAL},{DECIMAL}(?:,{DECIMAL})?\)", compact):
        alpha, k1, k2, delta = (1.0 if each is None else float(each) for each in found.groups())
        warp = piecewise(alpha=alpha, k1=k1, k2=k2, delta=delta)
        return Functions(text, warp, felt(alpha=alpha, k1=k1, k2=k2), identity, alpha)
    raise ValueError(f"{text!r} is not a function; use t, t^2, sqrt t, 0.5t or warp(ALPHA,K1,K2)")


def felt(*, alpha: float, k1: float, k2: float) -> Warp:
    """Return the continuous function with the slopes of `piecewise`: Delta as the constant (1 - k1) alpha.

    >>> felt(alpha=2.0, k1=0.5, k2=2.0)(torch.tensor([1.0, 2.0, 3.0]))
    tensor([1.5000, 2.0000, 4.0000])
    """
    warp = piecewise(alpha=alpha, k1=k1, k2=k2, delta=0.0)
    return lambda t: warp(t) + (1 - k1) * alpha * (t < alpha).to(t.dtype)


def loss_and_force(
    points: Floats, proxies: Floats, own: Warp, other: Warp, scale: float = 1.0
) -> tuple[Floats, Floats]:
    """Return the loss of each point [N] and its negative gradient [N, 2]."""
    embeddings = torch.tensor(points, requires_grad=True)
    labels = torch.zeros(len(points), dtype=torch.long)
    loss = softmax_loss(embeddings, torch.tensor(proxies), labels, own=own, other=other, scale=scale)
    (gradient,) = torch.autograd.grad(loss.sum(), embeddings)
    return loss.detach().numpy(), -gradient.numpy()


def exponent(points: Floats, proxies: Floats, own: Warp, other: Warp) -> Floats:
    """Return z of each point [N]. The loss is log(1 + exp(z)); z has its minima and does not round to 0."""
    t = euclidean_distances(torch.tensor(points), torch.tensor(proxies))
    z: Tensor = (own(t[:, 0])[:, None] - other(t[:, 1:])).logsumexp(dim=1)
    return z.numpy()


def window_of(proxies: Floats, alpha: float | None = None, height: float = 1.0) -> Window:
    """Return a window around its own proxy that shows the next one and the radius alpha.

    >>> window_of(np.array([(0.0, 0.0), (4.0, 0.0)]), height=0.5)
    (-8.0, 8.0, -4.0, 4.0)
    """
    (x, y), gaps = proxies[0], np.linalg.norm(proxies[1:] - proxies[0], axis=1)
    reach = 2 * max(float(gaps.min()), alpha or 0.0)
    return float(x - reach), float(x + reach), float(y - reach * height), float(y + reach * height)


def axes_of(window: Window, columns: int) -> tuple[Floats, Floats]:
    """Return the x [W] and y [H] of a grid of squares, `columns` wide, with a point in the middle."""
    left, right, bottom, top = window
    rows = 1 + 2 * round((columns - 1) / 2 * (top - bottom) / (right - left))
    return np.linspace(left, right, columns), np.linspace(bottom, top, rows)


def points_of(x: Floats, y: Floats) -> Floats:
    """Return the points of a grid as [H * W, 2]."""
    return np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)


@dataclass(frozen=True)
class Plane:
    """Arrays over a window, [H, W] or [H, W, 2]."""

    x: Floats
    y: Floats
    felt: Floats  # the loss with Delta held constant
    said: Floats  # the loss as training prints it
    force: Floats  # minus the gradient that training gives
    downhill: Floats  # minus the gradient of what is felt


def plane_of(functions: Functions, proxies: Floats, window: Window, columns: int = 161) -> Plane:
    """Return both losses and the forces over a window."""
    x, y = axes_of(window, columns)
    shape, points = (len(y), len(x)), points_of(x, y)
    felt_loss, downhill = loss_and_force(points, proxies, functions.felt, functions.other)
    said, force = loss_and_force(points, proxies, functions.own, functions.other)
    return Plane(
        x,
        y,
        felt_loss.reshape(shape),
        said.reshape(shape),
        force.reshape(*shape, 2),
        downhill.reshape(*shape, 2),
    )


@dataclass(frozen=True)
class Line:
    """Arrays along L_p, [L], the line through its own proxy and the nearest other one."""

    distance: Floats  # beyond its own proxy, away from the other one
    pull: Floats  # force along the line, outward positive, with an unsaturated softmax
    felt: Floats
    said: Floats


def direction_of(proxies: Floats) -> Floats:
    """Return the unit vector that points from the nearest other proxy to its own."""
    away: Floats = proxies[0] - proxies[1:]
    nearest: Floats = away[np.linalg.norm(away, axis=1).argmin()]
    return nearest / np.linalg.norm(nearest)


def line_of(functions: Functions, proxies: Floats, start: float, end: float) -> Line:
    """Return both losses and the force along L_p, in steps of 1/32."""
    distance = np.linspace(start, end, 1 + round(32 * (end - start)))
    direction = direction_of(proxies)
    points = proxies[0] + distance[:, None] * direction
    # A small scale changes how strong forces are, not where they point.
    small = 1e-3
    force = loss_and_force(points, proxies, functions.own, functions.other, scale=small)[1] / small
    return Line(
        distance,
        pull=force @ direction,
        felt=loss_and_force(points, proxies, functions.felt, functions.other)[0],
        said=loss_and_force(points, proxies, functions.own, functions.other)[0],
    )


def attractor(distance: Floats, pull: Floats) -> float | None:
    """Return the first point beyond the proxy where the pull is no longer outward; 0, infinity or None.

    >>> attractor(np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 1.0, -1.0, -1.0]))
    3.0
    """
    beyond = distance > 0
    distance, pull = distance[beyond], pull[beyond]
    if np.abs(pull).max() < 1e-9:
        return None
    turns = np.flatnonzero((pull[:-1] > 0) & (pull[1:] <= 0))
    if len(turns):
        return float(distance[turns[0] + 1])
    return 0.0 if pull[0] < 0 else math.inf


def settles_on_line(functions: Functions, proxies: Floats) -> float | None:
    """Return the attractor on L_p."""
    line = line_of(functions, proxies, 0.0, FAR)
    return attractor(line.distance, line.pull)


def minima_of(functions: Functions, proxies: Floats, window: Window, columns: int = 97) -> Floats:
    """Return the strict local minima of what is felt within a window, [M, 2], the lowest first.

    Every point of a grid that is lower than its neighbours starts a search. A place that is no higher in some
    direction half a square away, as on a plateau, is not a minimum.
    """
    x, y = axes_of(window, columns)
    square = float(x[1] - x[0])

    def height(points: Floats) -> Floats:
        return exponent(points, proxies, functions.felt, functions.other)

    points = points_of(x, y)
    grid = height(points).reshape(len(y), len(x))
    lower = grid <= minimum_filter(grid, size=3)
    lower[[0, -1]] = lower[:, [0, -1]] = False
    found = _descend(height, proxies[0], _off(proxies[0], points[lower.ravel()], square / 2), square)
    left, right, bottom, top = window
    inside = (found > (left, bottom)).all(1) & (found < (right, top)).all(1)
    found = found[inside]
    around = found[:, None] + square / 2 * _compass(32)
    heights, lowest_around = height(found), height(around.reshape(-1, 2)).reshape(-1, 32).min(1)
    strict = lowest_around > heights + 1e-9
    return _apart(found[strict][np.argsort(heights[strict])], square)


def _compass(count: int) -> Floats:
    angles = np.arange(count) * 2 * math.pi / count
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _off(centre: Floats, points: Floats, distance: float) -> Floats:
    """Return the points; one on the centre, which has one direction only, gives way to some around it."""
    there = np.linalg.norm(points - centre, axis=1) < distance
    around = [centre + distance * _compass(8)] * bool(there.any())
    return np.concatenate([points[~there], *around])


def _descend(height: Height, centre: Floats, points: Floats, step: float) -> Floats:
    """Return where points come to rest that move in and out or round the centre while that leads down.

    f1 depends on the distance to the centre, so its kinks lie along these directions.
    """
    away = points - centre
    place = np.stack([np.hypot(*away.T), np.arctan2(away[:, 1], away[:, 0])])  # radius and angle

    def there(place: Floats) -> Floats:
        radius, angle = place
        return np.stack([centre[0] + radius * np.cos(angle), centre[1] + radius * np.sin(angle)], axis=-1)

    steps = np.full(len(points), step)
    here = height(there(place))
    for _ in range(2000):
        if not (steps > 1e-7).any():
            break
        turns = steps / np.maximum(place[0], steps).clip(1e-300)
        moves = [(steps, 0), (-steps, 0), (0, turns), (0, -turns)]
        tried = [np.stack([np.maximum(place[0] + out, 0), place[1] + turn]) for out, turn in moves]
        heights = np.stack([height(there(each)) for each in tried])
        best = heights.argmin(0)
        better = heights.min(0) < here - 1e-14
        place = np.where(better, np.choose(best, tried), place)
        here = np.where(better, heights.min(0), here)
        steps = np.where(better, steps, steps / 2)
    return there(place)


def _apart(points: Floats, distance: float) -> Floats:
    """Return the points that are not within the distance of an earlier one."""
    kept: list[Floats] = []
    for point in points:
        if all(np.linalg.norm(point - other) > distance for other in kept):
            kept.append(point)
    return np.array(kept).reshape(-1, 2)


def slope_of(function: Warp, t: Floats) -> Floats:
    """Return the derivative of a function at distances [N], as training has it.

    >>> slope_of(piecewise(alpha=2.0, k1=0.5, k2=1.5), np.array([1.0, 3.0]))
    array([0.5, 1.5])
    """
    distances = torch.tensor(t, requires_grad=True)
    (slope,) = torch.autograd.grad(function(distances).sum(), distances)
    return slope.numpy()


def circle_of(
    functions: Functions, proxies: Floats, radius: float, count: int = 721
) -> tuple[Floats, Floats, Floats]:
    """Return angles [N], points [N, 2] and z [N] on a circle round the other proxy: the disk of Lemma 3.1.

    The angle is 0 on L_p on the side of its own proxy, and pi opposite.
    """
    angles = np.linspace(-math.pi, math.pi, count)
    x, y = direction_of(proxies)
    turned = np.cos(angles)[:, None] * (x, y) + np.sin(angles)[:, None] * (-y, x)
    points = proxies[1] + radius * turned
    return angles, points, exponent(points, proxies, functions.felt, functions.other)
