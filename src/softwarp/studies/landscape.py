"""Figure 3 of the paper, redrawn: the forces on an embedding, on a plane with two proxies.

Its own proxy is at the origin, the other one at `OTHER`. Lines of force are the negative gradients that
training gives an embedding (`softmax_loss` by autograd, with the paper's Delta). They do not belong to the
loss that training prints: Delta lifts its value and has no gradient. So the surface under the lines is the
loss of `felt`, the continuous function with the slopes of Eq. 7: it falls exactly along the lines.

    python -m softwarp.studies.landscape --output docs/images/landscape.svg
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import matplotlib
import numpy as np
import torch
import typer
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle
from numpy.typing import NDArray
from torch import Tensor

from softwarp.figures import COLOURS, svg
from softwarp.files import write_text
from softwarp.losses.warped_softmax import softmax_loss
from softwarp.losses.warps import Warp, identity, piecewise, power

Array = NDArray[np.float64]

ALPHA, K1, K2 = 3.0, 0.65, 1.5  # the paper's Fig. 3 (d)
OTHER = (4.0, 0.0)
WINDOW = (-8.0, 8.0, -4.5, 4.5)  # left, right, bottom, top
REACH = 40.0  # how far out along the line the force is followed
LEVELS = np.logspace(-2, 1, 13)  # of the loss, the same in every panel
FAINT = 1e-3  # no lines are drawn where the force is weaker
NORM = LogNorm(LEVELS[0], LEVELS[-1])
# The darker part of viridis: white lines stay visible on all of it.
COLOUR_MAP = ListedColormap(matplotlib.colormaps["viridis"](np.linspace(0.02, 0.8, 256)))
ORANGE = COLOURS[0]
LABEL_BOX: dict[str, Any] = {
    "boxstyle": "round,pad=0.15",
    "facecolor": "#30204a",
    "edgecolor": "none",
    "alpha": 0.85,
}
OWN_MARK: dict[str, Any] = {
    "marker": "*",
    "color": ORANGE,
    "markersize": 13,
    "markeredgecolor": "white",
    "zorder": 5,
}
OTHER_MARK: dict[str, Any] = {
    "marker": "X",
    "color": "black",
    "markersize": 9,
    "markeredgecolor": "white",
    "zorder": 5,
}
PRINTED: dict[str, Any] = {"color": "#555555", "linestyle": ":", "linewidth": 1.5}
SETTLES: dict[str, Any] = {
    "marker": "o",
    "color": ORANGE,
    "markersize": 10,
    "fillstyle": "none",
    "markeredgewidth": 2,
    "zorder": 6,
}


def felt(*, alpha: float, k1: float, k2: float) -> Warp:
    """Return the continuous function with the slopes of `piecewise`: Delta as the constant (1 - k1) alpha.

    >>> felt(alpha=2.0, k1=0.5, k2=2.0)(torch.tensor([1.0, 2.0, 3.0]))
    tensor([1.5000, 2.0000, 4.0000])
    """
    warp = piecewise(alpha=alpha, k1=k1, k2=k2, delta=0.0)
    return lambda t: warp(t) + (1 - k1) * alpha * (t < alpha).to(t.dtype)


@dataclass(frozen=True)
class Case:
    """A panel: f1 as training has it, f1 whose loss is drawn, and f2."""

    title: str
    own: Warp
    drawn: Warp
    other: Warp
    note: str = ""
    alpha: float | None = None


WARP = piecewise(alpha=ALPHA, k1=K1, k2=K2)
CASES = {
    "t": Case("$f = t$: a plateau", identity, identity, identity, note="no force on the line"),
    "t^2": Case(
        "$f = t^2$: away, without end",
        power(2.0),
        power(2.0),
        power(2.0),
        note="outward, but\ntoo weak to draw",
    ),
    "sqrt t": Case(r"$f = \sqrt{t}$: onto the proxy", power(0.5), power(0.5), power(0.5)),
    "warp": Case(
        r"warp: to the radius $\alpha$", WARP, felt(alpha=ALPHA, k1=K1, k2=K2), identity, alpha=ALPHA
    ),
}


@dataclass(frozen=True)
class Landscape:
    """Arrays over the plane, [H, W], and over the line through both proxies, [L]."""

    x: Array
    y: Array
    loss: Array
    force: Array  # [H, W, 2]: minus the gradient that training gives
    downhill: Array  # [H, W, 2]: minus the gradient of what is drawn
    line: Array  # distance beyond its own proxy, away from the other one
    pull: Array  # force along the line, outward positive, with an unsaturated softmax
    line_loss: Array  # what is drawn
    line_value: Array  # what training prints


def collect(columns: int = 161) -> dict[str, Landscape]:
    """Return loss and force of each case over `WINDOW`, that many columns wide, and along the line."""
    return {name: _landscape(case, columns) for name, case in CASES.items()}


def _landscape(case: Case, columns: int) -> Landscape:
    left, right, bottom, top = WINDOW
    rows = 1 + round((columns - 1) * (top - bottom) / (right - left))
    x, y = np.linspace(left, right, columns), np.linspace(bottom, top, rows)
    plane = torch.tensor(np.stack(np.meshgrid(x, y), axis=-1)).reshape(-1, 2)
    loss, downhill = _loss_and_force(plane, case.drawn, case.other)
    force = _loss_and_force(plane, case.own, case.other)[1].reshape(rows, columns, 2)
    distances = np.linspace(-right, REACH, 1 + 32 * round(REACH + right))
    line = torch.tensor(np.stack([-distances, np.zeros_like(distances)], axis=1))
    return Landscape(
        x=x,
        y=y,
        loss=loss.reshape(rows, columns),
        force=force,
        downhill=downhill.reshape(rows, columns, 2),
        line=distances,
        # A small scale changes how strong forces are, not where they point.
        pull=-_loss_and_force(line, case.own, case.other, scale=1e-3)[1][:, 0] / 1e-3,
        line_loss=_loss_and_force(line, case.drawn, case.other)[0],
        line_value=_loss_and_force(line, case.own, case.other)[0],
    )


def _loss_and_force(points: Tensor, own: Warp, other: Warp, scale: float = 1.0) -> tuple[Array, Array]:
    """Return the loss of each point [N] and its negative gradient [N, 2]."""
    embeddings = points.clone().requires_grad_()
    proxies = torch.tensor([(0.0, 0.0), OTHER], dtype=points.dtype)
    labels = torch.zeros(len(points), dtype=torch.long)
    loss = softmax_loss(embeddings, proxies, labels, own=own, other=other, scale=scale)
    (gradient,) = torch.autograd.grad(loss.sum(), embeddings)
    return loss.detach().numpy(), -gradient.numpy()


def summarise(landscapes: dict[str, Landscape]) -> dict[str, dict[str, float | None]]:
    """Return for each case where embeddings settle, and how the drawn loss relates to the forces.

    `attractor` is a distance beyond its own proxy: 0 on the proxy, infinity when nothing holds embeddings,
    None when no force acts on the line at all. The losses are those drawn; `value_at_proxy` is what
    training prints. `alignment` is the smallest cosine between the force and the drawn slope.
    """
    return {
        name: {
            "attractor": attractor(landscape.line, landscape.pull),
            "loss_at_proxy": _at(landscape, 0.0, landscape.line_loss),
            "loss_at_alpha": _at(landscape, ALPHA, landscape.line_loss),
            "loss_at_twice_alpha": _at(landscape, 2 * ALPHA, landscape.line_loss),
            "value_at_proxy": _at(landscape, 0.0, landscape.line_value),
            "alignment": _alignment(landscape.force, landscape.downhill),
        }
        for name, landscape in landscapes.items()
    }


def attractor(line: Array, pull: Array) -> float | None:
    """Return the first point beyond the proxy where the pull is no longer outward; 0, infinity or None.

    >>> attractor(np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 1.0, -1.0, -1.0]))
    3.0
    """
    beyond = line > 0
    line, pull = line[beyond], pull[beyond]
    if np.abs(pull).max() < 1e-9:
        return None
    turns = np.flatnonzero((pull[:-1] > 0) & (pull[1:] <= 0))
    if len(turns):
        return float(line[turns[0] + 1])
    return 0.0 if pull[0] < 0 else math.inf


def _at(landscape: Landscape, distance: float, values: Array) -> float:
    return float(np.interp(distance, landscape.line, values))


def _alignment(force: Array, downhill: Array) -> float:
    lengths = np.linalg.norm(force, axis=-1) * np.linalg.norm(downhill, axis=-1)
    some = lengths > 1e-12
    return float(((force * downhill).sum(-1)[some] / lengths[some]).min())


def draw(landscapes: dict[str, Landscape]) -> Figure:
    """Return the figure: for each case the plane, and under it the loss along the line.

    All panels share one colour scale, so a dark place is a low loss in each of them. It is
    logarithmic: a loss and its logarithm have the same level lines, and the low parts become visible.
    """
    figure = Figure(figsize=(10, 8.2), dpi=144, layout="compressed")
    axes = figure.subplots(4, 2, sharex=True, sharey="row", height_ratios=(9, 4, 9, 4))
    for number, (name, landscape) in enumerate(landscapes.items()):
        row, column = 2 * (number // 2), number % 2
        _draw_plane(axes[row, column], landscape, CASES[name])
        _draw_line(axes[row + 1, column], landscape, CASES[name])
        axes[row, column].set_title(f"({'abcd'[number]})  {CASES[name].title}", loc="left", fontsize=11)
    for row, label in enumerate(("", "loss on $L_p$") * 2):
        axes[row, 0].set_ylabel(label)
    for column in range(2):
        axes[-1, column].set_xlabel("position on $L_p$, the line through both proxies")
    _draw_keys(figure, axes)
    return figure


def _draw_plane(axes: Axes, landscape: Landscape, case: Case) -> None:
    loss = landscape.loss.clip(LEVELS[0] / 2, LEVELS[-1] * 2)
    surface: dict[str, Any] = {"cmap": COLOUR_MAP, "norm": NORM, "extend": "both", "rasterized": True}
    axes.contourf(landscape.x, landscape.y, loss, LEVELS, **surface)
    _draw_force(axes, landscape)
    axes.axhline(0, color="white", linewidth=0.8, linestyle=(0, (1, 2)))
    if case.alpha:
        circle: dict[str, Any] = {
            "fill": False,
            "color": ORANGE,
            "linewidth": 1.5,
            "linestyle": "--",
            "zorder": 4,
        }
        axes.add_patch(Circle((0, 0), case.alpha, **circle))
    axes.plot(0, 0, **OWN_MARK)
    axes.plot(*OTHER, **OTHER_MARK)
    axes.plot(-_settles(landscape), 0, **SETTLES)
    for x, y, text in ((0.3, 0.75, "$p_c$"), (OTHER[0] + 0.3, 0.75, "$p_{c'}$"), (-7.7, 0.0, case.note)):
        if text:
            axes.text(x, y, text, color="white", va="center", bbox=LABEL_BOX)
    axes.set(aspect="equal", xlim=WINDOW[:2], ylim=WINDOW[2:])


def _settles(landscape: Landscape) -> float:
    """Return the attractor for drawing: NaN, which is not drawn, where there is none in reach."""
    place = attractor(landscape.line, landscape.pull)
    return math.nan if place is None or math.isinf(place) else place


def _draw_force(axes: Axes, landscape: Landscape) -> None:
    strength = np.linalg.norm(landscape.force, axis=-1)
    u, v = np.where(strength > FAINT, landscape.force.transpose(2, 0, 1), np.nan)
    starts = [(landscape.x[column], landscape.y[row]) for row, column in _starts(u, v)]
    unbroken: dict[str, Any] = {
        "start_points": starts,
        "density": 1,
        "maxlength": 3,
        "broken_streamlines": False,
    }
    axes.streamplot(landscape.x, landscape.y, u, v, color="white", linewidth=0.7, arrowsize=0.7, **unbroken)


def _starts(u: Array, v: Array) -> list[tuple[int, int]]:
    """Return rows and columns that lines go through: between the proxies, and where lines cross edges."""
    rows, columns = u.shape
    middle = [(rows * i // 16, columns * 5 // 8) for i in range(1, 16)]
    edges = [(row, columns * i // 16) for i in range(1, 16) for row in (1, rows - 2)]
    left = [(rows * i // 10, 1) for i in range(1, 10)]
    starts = middle + [at for at in edges if abs(v[at]) > abs(u[at]) / 3]
    starts += [at for at in left if abs(u[at]) > abs(v[at])]
    return [at for at in starts if not np.isnan(u[at])]


def _draw_line(axes: Axes, landscape: Landscape, case: Case) -> None:
    x = -landscape.line
    axes.plot(x, landscape.line_loss, color="black", linewidth=1.5)
    if case.alpha:
        axes.plot(x, landscape.line_value, **PRINTED)
    axes.plot(-_settles(landscape), _at(landscape, _settles(landscape), landscape.line_loss), **SETTLES)
    axes.set(yscale="log", ylim=(5e-3, 20), xlim=WINDOW[:2], yticks=[0.01, 0.1, 1, 10])
    axes.minorticks_off()
    on, at, twice = (_at(landscape, distance, landscape.line_loss) for distance in (0.0, ALPHA, 2 * ALPHA))
    numbers = rf"on $p_c$ {on:.2g}, at $\alpha$ {at:.2g}, at $2\alpha$ {twice:.2g}"
    axes.text(-7.7, 9, numbers, fontsize=9, va="center")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_keys(figure: Figure, axes: Any) -> None:
    bar = figure.colorbar(
        ScalarMappable(NORM, COLOUR_MAP),
        ax=axes,
        extend="both",
        aspect=50,
        label="loss, one scale for all panels",
    )
    bar.minorticks_off()
    handles = [
        Line2D([], [], **OWN_MARK, linestyle="", label="own proxy $p_c$"),
        Line2D([], [], **OTHER_MARK, linestyle="", label="other proxy $p_{c'}$"),
        Line2D([], [], **SETTLES, linestyle="", label="where embeddings settle"),
        Line2D([], [], color=ORANGE, linestyle="--", label=r"radius $\alpha$"),
        Line2D([], [], **PRINTED, label=r"value in training, with $\Delta$"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=9)


def main(
    output: Annotated[Path, typer.Option(help="Where the figure goes.")] = Path("landscape.svg"),
) -> None:
    """Draw the landscapes of four functions and print what they show as numbers."""
    landscapes = collect()
    for name, numbers in summarise(landscapes).items():
        typer.echo(f"{name:8}" + "  ".join(f"{key} {value}" for key, value in numbers.items()))
    write_text(output, _shortened(svg(draw(landscapes))))


def _shortened(text: str) -> str:
    """Return the SVG with one decimal in its paths: half the size, the same picture.

    >>> _shortened('<path d="M 1.23456 7.0"/>')
    '<path d="M 1.2 7.0"/>'
    """
    return re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d)\d+", r"\1", path[0]), text)


if __name__ == "__main__":
    typer.run(main)
