"""The figures of `toy.py`: embeddings of two dimensions with their proxies, still and moving."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from softwarp.figures import Drawing
from softwarp.files import atomic_write

Floats = NDArray[np.float64]
COLOURS = matplotlib.color_sequences["tab10"]
SECONDS_PER_FRAME = 0.12


def draw_embeddings(
    points: Mapping[str, Floats], proxies: Mapping[str, Floats], names: Sequence[str]
) -> Drawing:
    """Return a panel per loss, points [C, N, 2] in the colour of their class; circles are proxies."""
    figure = Figure(figsize=(1 + 4.5 * len(points), 5.2), dpi=144, layout="constrained")
    for axes, title in zip(_panels(figure, list(points)), points, strict=True):
        _scatter(axes, points[title], proxies[title])
        axes.set_aspect("equal", adjustable="datalim")
    _legend(figure, names, columns=10)
    rows = [
        {"loss": title, "class": name, "x": float(x), "y": float(y)}
        for title, classes in points.items()
        for name, places in zip(names, classes, strict=True)
        for x, y in places
    ]
    return Drawing(figure, rows)


def _panels(figure: Figure, titles: list[str]) -> list[Axes]:
    panels: list[Axes] = list(figure.subplots(1, len(titles), squeeze=False)[0])
    for axes, title in zip(panels, titles, strict=True):
        axes.set_title(title, loc="left")
        axes.grid(alpha=0.3)
    return panels


def _scatter(axes: Axes, points: Floats, proxies: Floats) -> tuple[PathCollection, PathCollection]:
    colours = [COLOURS[label % 10] for label in range(len(proxies))]
    (x, y), (u, v) = points.reshape(-1, 2).T, proxies.T
    dots = axes.scatter(x, y, s=7, c=np.repeat(colours, points.shape[1], axis=0), linewidths=0)
    return dots, axes.scatter(u, v, s=90, c=colours, edgecolors="black", linewidths=1.3, zorder=3)


def _legend(figure: Figure, names: Sequence[str], columns: int) -> None:
    handles = [
        matplotlib.lines.Line2D([], [], marker="o", linestyle="", color=COLOURS[place % 10], label=name)
        for place, name in enumerate(names)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)


def write_animation(
    path: Path, frames: Mapping[str, Sequence[tuple[Floats, Floats]]], names: Sequence[str]
) -> None:
    """Write a GIF in which the points of each loss move; every panel has room for all of its frames."""
    figure = Figure(figsize=(4 * len(frames), 4.3), dpi=80, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    drawn = []
    for axes, (_, moving) in zip(_panels(figure, list(frames)), frames.items(), strict=True):
        drawn.append(_scatter(axes, *moving[-1]))
        reach = 1.05 * max(float(np.abs(each).max()) for frame in moving for each in frame)
        axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    _legend(figure, names, columns=5)
    images = [_picture(canvas, drawn, moment) for moment in zip(*frames.values(), strict=True)]
    times = [int(1000 * SECONDS_PER_FRAME)] * (len(images) - 1) + [2500]
    with atomic_write(path) as file:
        images[0].save(file, format="GIF", save_all=True, append_images=images[1:], duration=times, loop=0)


def _picture(
    canvas: FigureCanvasAgg, drawn: Sequence[Any], moment: Sequence[tuple[Floats, Floats]]
) -> Image.Image:
    for (dots, circles), (points, proxies) in zip(drawn, moment, strict=True):
        dots.set_offsets(points.reshape(-1, 2))
        circles.set_offsets(proxies)
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")  # type: ignore[no-untyped-call]
    return pixels.quantize(64, dither=Image.Dither.NONE)
