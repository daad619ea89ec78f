"""The figures of `landscape.py`: planes with lines of force, surfaces, the lemma and the proposition."""

import math
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle

from softwarp.figures import COLOURS, tidy
from softwarp.studies import planes
from softwarp.studies.planes import Floats, Functions, Plane, Window, settles_on_line

LEVELS = np.logspace(-2, 1, 13)  # levels of the loss, the same in every panel
FAINT = 1e-3  # no lines are drawn where the force is weaker
NORM = LogNorm(LEVELS[0], LEVELS[-1])
# The darker part of viridis: white lines stay visible on all of it.
COLOUR_MAP = ListedColormap(matplotlib.colormaps["viridis"](np.linspace(0.02, 0.8, 256)))
ORANGE = COLOURS[0]
Style = dict[str, Any]
OWN: Style = {"marker": "*", "color": ORANGE, "markersize": 13, "markeredgecolor": "white", "zorder": 5}
OTHER: Style = {"marker": "X", "color": "black", "markersize": 9, "markeredgecolor": "white", "zorder": 5}
SAID: Style = {"color": "#555555", "linestyle": ":", "linewidth": 1.5}
RING: Style = {"marker": "o", "color": ORANGE, "markersize": 10, "fillstyle": "none", "zorder": 6}
RING |= {"markeredgewidth": 2, "linestyle": ""}
LOWEST: Style = {"marker": "o", "color": ORANGE, "linestyle": ""}
HIGHEST: Style = {"marker": "o", "color": "white", "markeredgecolor": "black", "linestyle": ""}


def draw_functions(functions: list[Functions], proxies: Floats, columns: int) -> Figure:
    """Return a plane for each function and, with two proxies, the loss along L_p below it."""
    two = len(proxies) == 2
    heights = (9, 4) * math.ceil(len(functions) / 2) if two else (1,) * math.ceil(len(functions) / 2)
    size = (10, 0.3 + sum(heights) * (0.3 if two else 4.6))
    figure = Figure(figsize=size, dpi=144, layout="compressed")
    panels = figure.subplots(len(heights), 2, sharex=True, sharey="row", height_ratios=heights, squeeze=False)
    for number, each in enumerate(functions):
        row, column = (2 if two else 1) * (number // 2), number % 2
        window = planes.window_of(proxies, each.alpha, 9 / 16 if two else 1.0)
        minima = draw_plane(panels[row, column], each, proxies, window, columns)
        words = _outcome(settles_on_line(each, proxies) if two else _distance(minima, proxies), each.alpha)
        title = f"({chr(97 + number)})  {title_of(each)}: {words}"
        panels[row, column].set_title(title, loc="left", fontsize=11)
        if two:
            draw_on_line(panels[row + 1, column], each, proxies, window)
    if len(functions) % 2:
        for spare in panels[-2 if two else -1 :, 1]:
            spare.set_visible(False)
    _draw_keys(figure, panels, two)
    return figure


def title_of(functions: Functions) -> str:
    """Return the functions in mathematics."""
    text = functions.text.replace("sqrt t", r"\sqrt{t}")
    if functions.alpha is not None:
        return text
    return f"$f_1 = {text}$" if text[0].isdigit() else f"$f_1 = f_2 = {text}$"


def _distance(minima: Floats, proxies: Floats) -> float:
    return float(np.linalg.norm(minima[0] - proxies[0])) if len(minima) else math.inf


def _outcome(settles: float | None, alpha: float | None) -> str:
    if settles is None:
        return "a plateau"
    if math.isinf(settles):
        return "away, without end"
    if alpha is not None and math.isclose(settles, alpha, rel_tol=1e-3):
        return r"to the radius $\alpha$"
    return "onto the proxy" if settles < 1e-3 else f"{settles:.2f} from the proxy"


def draw_plane(
    axes: Axes, functions: Functions, proxies: Floats, window: Window, columns: int, *, said: bool = False
) -> Floats:
    """Draw a plane with lines of force, L_p, the radius alpha and the minima of what is felt; return them."""
    plane = planes.plane_of(functions, proxies, window, columns)
    loss = (plane.said if said else plane.felt).clip(LEVELS[0] / 2, LEVELS[-1] * 2)
    axes.contourf(plane.x, plane.y, loss, LEVELS, cmap=COLOUR_MAP, norm=NORM, extend="both", rasterized=True)
    _draw_force(axes, plane)
    if len(proxies) == 2:
        axes.axline(proxies[0], proxies[1], color="white", linewidth=0.8, linestyle=(0, (1, 2)))
    if functions.alpha:
        radius: Style = {"fill": False, "color": ORANGE, "linewidth": 1.5, "linestyle": "--", "zorder": 4}
        axes.add_patch(Circle(tuple(proxies[0]), functions.alpha, **radius))
    minima = planes.minima_of(functions, proxies, window)
    axes.plot(*proxies[0], **OWN)
    axes.plot(*proxies[1:].T, **OTHER, linestyle="")
    axes.plot(*minima.T, **RING)
    axes.set(aspect="equal", xlim=window[:2], ylim=window[2:])
    return minima


def _draw_force(axes: Axes, plane: Plane) -> None:
    strength = np.linalg.norm(plane.force, axis=-1)
    u, v = np.where(strength > FAINT, plane.force.transpose(2, 0, 1), np.nan)
    lines: Style = {"density": (1.1, 1.1 * len(plane.y) / len(plane.x)), "linewidth": 0.7, "arrowsize": 0.7}
    drawn = axes.streamplot(plane.x, plane.y, u, v, color="white", **lines)
    # Every other point gives the same picture in a smaller file.
    drawn.lines.set_segments([np.vstack([path[:-1:2], path[-1:]]) for path in drawn.lines.get_segments()])


def draw_on_line(axes: Axes, functions: Functions, proxies: Floats, window: Window) -> None:
    """Draw both losses along L_p; x is the first coordinate, as in the plane above."""
    side = planes.direction_of(proxies)[0] or 1.0
    start, end = sorted((limit - proxies[0, 0]) / side for limit in window[:2])
    line = planes.line_of(functions, proxies, start, end)
    x = proxies[0, 0] + line.distance * side
    axes.plot(x, line.felt, color="black", linewidth=1.5)
    if functions.alpha is not None:
        axes.plot(x, line.said, **SAID)
    settles = settles_on_line(functions, proxies)
    if settles is not None and settles < end:
        axes.plot(proxies[0, 0] + settles * side, np.interp(settles, line.distance, line.felt), **RING)
    axes.set(yscale="log", ylim=(5e-3, 20), xlim=window[:2], yticks=[0.01, 0.1, 1, 10])
    axes.set_ylabel("loss on $L_p$")
    axes.label_outer()
    axes.minorticks_off()
    tidy(axes)


def _draw_keys(figure: Figure, panels: Any, two: bool) -> None:
    _draw_colours(figure, panels, "loss that embeddings feel, one scale for all panels", aspect=50)
    handles = [
        Line2D([], [], **OWN, linestyle="", label="own proxy $p_c$"),
        Line2D([], [], **OTHER, linestyle="", label="other proxy"),
        Line2D([], [], **RING, label="minimum, found numerically"),
        Line2D([], [], color=ORANGE, linestyle="--", label=r"radius $\alpha$"),
    ]
    if two:
        handles.append(Line2D([], [], **SAID, label=r"what the loss says, with $\Delta$"))
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=9)


def _draw_colours(figure: Figure, panels: Any, label: str, *, aspect: float = 20) -> None:
    colours = ScalarMappable(NORM, COLOUR_MAP)
    figure.colorbar(colours, ax=panels, extend="both", aspect=aspect, label=label).minorticks_off()


def draw_each_pair(functions: Functions, proxies: Floats, columns: int) -> Figure:
    """Return the landscape of each pair of proxies, and of all together: Fig. 5 of the paper."""
    figure = Figure(figsize=(3.1 * len(proxies), 3.6), dpi=144, layout="compressed")
    panels = figure.subplots(1, len(proxies), squeeze=False)[0]
    window = planes.window_of(proxies, functions.alpha)
    for number, axes in enumerate(panels):
        all_of_them = number == len(proxies) - 1
        shown = proxies if all_of_them else proxies[[0, number + 1]]
        draw_plane(axes, functions, shown, window, columns)
        axes.set(xticks=[], yticks=[])
        axes.set_title("all together" if all_of_them else f"$p_c$ and $p_{number + 1}$", fontsize=11)
    return figure


def draw_felt_and_said(functions: Functions, proxies: Floats, columns: int) -> Figure:
    """Return what embeddings feel beside what the loss says, with the same lines of force and minima."""
    figure = Figure(figsize=(10, 3.4), dpi=144, layout="compressed")
    panels = figure.subplots(1, 2, sharey=True)
    window = planes.window_of(proxies, functions.alpha, 9 / 16)
    for axes, said in zip(panels, (False, True), strict=True):
        draw_plane(axes, functions, proxies, window, columns, said=said)
        feel, say = (
            r"what embeddings feel: $\Delta$ constant",
            r"what the loss says: its value, with $\Delta$",
        )
        axes.set_title(say if said else feel, loc="left", fontsize=11)
    _draw_colours(figure, panels, "loss")
    return figure


def draw_surfaces(functions: list[Functions], proxies: dict[str, Floats], columns: int) -> Figure:
    """Return surfaces: every function with the first proxies, and the last as it says and with the others."""
    first, *others = proxies.values()
    last = functions[-1]
    shown = [(each, first, False, title_of(each)) for each in functions]
    shown += [(last, first, True, "the same: what the loss says")] * (last.alpha is not None)
    shown += [(last, each, False, f"the same: {len(each)} proxies") for each in others]
    figure = Figure(figsize=(11, 3.6 * math.ceil(len(shown) / 3)), dpi=144, layout="constrained")
    panels = figure.subplots(math.ceil(len(shown) / 3), 3, subplot_kw={"projection": "3d"}, squeeze=False)
    for axes, (each, places, said, title) in zip(panels.flat, shown, strict=False):
        plane = planes.plane_of(each, places, planes.window_of(places, each.alpha), columns)
        loss = plane.said if said else plane.felt
        height = np.log10(loss.clip(LEVELS[0], 30))
        x, y = np.meshgrid(plane.x, plane.y)
        colours = COLOUR_MAP(NORM(loss.clip(LEVELS[0], LEVELS[-1])))
        axes.plot_surface(x, y, height, facecolors=colours, rstride=1, cstride=1, rasterized=True, shade=True)
        axes.view_init(elev=32, azim=-115)
        axes.set_box_aspect((1, 1, 0.55), zoom=1.15)
        axes.set(zticks=[-2, -1, 0, 1], zticklabels=["0.01", "0.1", "1", "10"], zlim=(-2, 1.3))
        axes.set(xticks=[], yticks=[])
        axes.set_title(title, fontsize=10)
    for spare in panels.flat[len(shown) :]:
        spare.remove()  # a hidden one would have no size for the layout
    return figure


def draw_lemma(monotone: Functions, other: Functions, proxies: Floats, radii: tuple[float, ...]) -> Figure:
    """Return Lemma 3.1: disks round the other proxy, with their best and worst points, for two functions."""
    figure = Figure(figsize=(11, 4), dpi=144, layout="constrained")
    panels = figure.subplots(1, 3, width_ratios=(1, 1, 0.9))
    names = ("(a)  $f_1$ increases: on the line", f"(b)  $f_1 = {other.text}$ falls first: off the line")
    for axes, functions, name in zip(panels, (monotone, other), names, strict=False):
        draw_disks(axes, functions, proxies, radii)
        axes.set_title(name, loc="left", fontsize=10)
    for functions, colour in ((monotone, COLOURS[1]), (other, COLOURS[0])):
        angles, _, z = planes.circle_of(functions, proxies, radii[1])
        text = functions.text.replace("warp", "warp\\ ")
        panels[2].plot(np.degrees(angles), z, color=colour, label=f"$f_1 = {text}$")
    panels[2].set(xlabel="angle on the disk from $L_p$", ylabel="$f_1(t_1) - f_2(t_2)$")
    panels[2].set_xticks([-180, -90, 0, 90, 180])
    panels[2].set_title(f"(c)  along the disk of radius {radii[1]:g}", loc="left", fontsize=10)
    panels[2].legend(frameon=False, fontsize=8)
    tidy(panels[2])
    return figure


def draw_disks(axes: Axes, functions: Functions, proxies: Floats, radii: tuple[float, ...]) -> None:
    """Draw circles round the other proxy, coloured by z, with their lowest and highest points."""
    axes.axline(proxies[0], proxies[1], color="grey", linewidth=1, linestyle=(0, (1, 2)))
    for radius in radii:
        _, points, z = planes.circle_of(functions, proxies, radius)
        pieces = np.stack([points[:-4:4], points[4::4]], axis=1)
        axes.add_collection(LineCollection(list(pieces), array=z[2::4], cmap=COLOUR_MAP, linewidths=4))
        axes.plot(*points[z <= z.min() + 1e-9].T, **LOWEST, markeredgecolor="white", markersize=9, zorder=4)
        axes.plot(*points[z.argmax()], **HIGHEST, markersize=8, zorder=4)
    axes.plot(*proxies[0], **OWN)
    axes.plot(*proxies[1], **OTHER)
    reach = max(radii) + 0.8
    x, y = proxies[1]
    axes.set(aspect="equal", xlim=(x - reach, x + reach), ylim=(y - reach, y + reach), xticks=[], yticks=[])
    handles = [
        Line2D([], [], **LOWEST, label="lowest, $e_*$"),
        Line2D([], [], **HIGHEST, label="highest, $e^*$"),
    ]
    axes.legend(handles=handles, loc="lower left", fontsize=8)


def draw_proposition(functions: list[Functions], proxies: Floats) -> Figure:
    """Return Prop. 3.2: slopes along L_p, and below them f1 - f2, which turns where they change places."""
    figure = Figure(figsize=(11, 4.6), dpi=144, layout="constrained")
    panels = figure.subplots(2, len(functions), sharex=True, squeeze=False)
    gap = float(np.linalg.norm(proxies[0] - proxies[1]))
    reach = 2 * max(gap, *(each.alpha or 0.0 for each in functions))
    r = np.linspace(0.02, reach, 600)
    for (upper, lower), each in zip(panels.T, functions, strict=True):
        own, other = planes.slope_of(each.own, r), planes.slope_of(each.other, r + gap)
        upper.plot(r, own, color=ORANGE, label="$f_1'(r)$: pull")
        upper.plot(r, other, color=COLOURS[1], label="$f_2'(r + d)$: push")
        upper.fill_between(r, own, other, where=own < other, color=COLOURS[1], alpha=0.18, linewidth=0)
        upper.fill_between(r, own, other, where=own > other, color=ORANGE, alpha=0.18, linewidth=0)
        upper.set_title(title_of(each), loc="left", fontsize=10)
        upper.set(ylim=(0, min(2.2, 1.15 * max(own.max(), other.max()))) if each.alpha else (0, None))
        z = planes.exponent(
            proxies[0] + r[:, None] * planes.direction_of(proxies), proxies, each.felt, each.other
        )
        lower.plot(r, z, color="black")
        settles = settles_on_line(each, proxies)
        if settles is not None and math.isfinite(settles):
            for axes in (upper, lower):
                axes.axvline(settles, color=ORANGE, linestyle="--", linewidth=1)
            lower.plot(settles, np.interp(settles, r, z), **RING)
        lower.set(xlabel="distance $r$ beyond $p_c$ on $L_p$")
    panels[0, 0].set_ylabel("slopes")
    panels[0, 0].legend(frameon=False, fontsize=8)
    panels[1, 0].set_ylabel("$f_1(r) - f_2(r + d)$")
    tidy(*panels.flat)
    return figure
