"""The figures of reports, each with its numbers."""

import math
from collections.abc import Mapping, Sequence
from itertools import cycle, product, repeat
from typing import Any

import torch
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogFormatter, MaxNLocator
from torch import Tensor

from softwarp.fair.comparisons import Pair
from softwarp.figures import COLOURS, draw_seeds, plain, svg, tidy
from softwarp.files import printable
from softwarp.models.principal import principal_head
from softwarp.report.page import Illustration

LINES = ("-", "-.", ":")  # further runs take the next line once all colours are used; dashes are for alpha
Histories = Mapping[str, Sequence[Sequence[Mapping[str, Any]]]]  # title -> per seed, rows of epochs
# What is drawn by epoch, for the runs that have it.
CURVES = {
    "loss": "training loss",
    "avg_dtp": "AvgDTP: mean distance to its own proxy",
    "map@r": "MAP@R on validation classes (%)",
}
WIDTH, HEIGHT, TILE = 640, 480, 26  # size of a map and of its images, in its own units


def curves(prefix: str, histories: Histories) -> list[Illustration]:
    """Return loss, AvgDTP and validated MAP@R by epoch, those that there are; alpha is a dashed line."""
    rows = [
        {"run": title, "seed": number, **_epoch(row)}
        for title, seeds in histories.items()
        for number, history in enumerate(seeds)
        for row in history
        if "event" not in row
    ]
    styles = dict(zip(histories, cycle(product(LINES, COLOURS)), strict=False))
    some = [key for key in CURVES if any(row[key] is not None for row in rows)]
    return [_curve(f"{prefix}{key.replace('@', '_at_')}", key, rows, styles) for key in some]


def _curve(
    name: str, key: str, rows: Sequence[Mapping[str, Any]], styles: Mapping[str, tuple[str, str]]
) -> Illustration:
    figure = Figure(figsize=(5.4, 3.2 + 0.09 * len(styles)), layout="constrained")
    axes = figure.subplots()
    drawn = _draw_curves(axes, key, rows, styles)
    tidy(axes)
    labels = [plain(label) for label in drawn]
    figure.legend(drawn.values(), labels, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    shown = [{k: row[k] for k in ("run", "seed", "epoch", key, "alpha")} for row in rows]
    return Illustration(name, svg(figure), shown)


def _epoch(row: Mapping[str, Any]) -> dict[str, Any]:
    validated = row.get("validation", {}).get("map@r")
    found = {key: row.get(key) for key in ("epoch", "loss", "avg_dtp", "alpha")}
    return found | {"map@r": None if validated is None else 100 * validated}


def _draw_curves(
    axes: Axes, key: str, rows: Sequence[Mapping[str, Any]], styles: Mapping[str, tuple[str, str]]
) -> dict[str, Line2D]:
    """Draw one panel; return its lines by label, one for all seeds of a run."""
    drawn = {}
    for title, (line, colour) in styles.items():
        own = [row for row in rows if row["run"] == title and row[key] is not None]
        seeds = {row["seed"] for row in own}
        for seed in seeds:
            some = [row for row in own if row["seed"] == seed]
            epochs = [row["epoch"] for row in some]
            width = 1.5 if len(seeds) == 1 else 0.9
            values = [row[key] for row in some]
            look: dict[str, Any] = {"linewidth": width, "marker": "o" if len(epochs) == 1 else None}
            (drawn[title],) = axes.plot(epochs, values, color=colour, linestyle=line, **look)
            radii = [row["alpha"] for row in some]
            if key == "avg_dtp" and None not in radii:
                (drawn[f"alpha of {title}"],) = axes.plot(epochs, radii, "--", color=colour, linewidth=1)
    axes.set(title=CURVES[key], xlabel="epoch")
    losses = [row["loss"] for row in rows]
    if key == "loss" and losses and 0 < 10 * min(losses) < max(losses):
        axes.set(yscale="log")
        axes.yaxis.set_major_formatter(LogFormatter())
        axes.yaxis.set_minor_formatter(LogFormatter())
    if key == "avg_dtp":
        axes.set(ylim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return drawn


def thumbnail_map(
    name: str, points: Tensor, classes: Sequence[str], files: Sequence[str], sources: Sequence[str]
) -> Illustration:
    """Return the first two principal components of points, each drawn as its image in its class's colour.

    Args:
        sources: the images as data URIs; where one is empty, there is a dot instead.
    """
    centred = points.double() - points.double().mean(0)
    weight, _ = principal_head(centred, 2, centre=False)
    flat = centred @ weight.T
    share = float(flat.square().sum() / centred.square().sum().clamp_min(1e-300))
    spread = (flat.amax(0) - flat.amin(0)).clamp_min(1e-12)
    room = torch.tensor([WIDTH - 2.0 * TILE, HEIGHT - 2.0 * TILE], dtype=flat.dtype)
    places = (flat - flat.amin(0)) * (room / spread).min() + TILE
    colours = {each: _hue(place) for place, each in enumerate(dict.fromkeys(classes))}
    marks = Markup("").join(
        _mark(x, y, source, colours[label], f"{printable(label)}: {printable(file)}")
        for (x, y), source, label, file in zip(places.tolist(), sources, classes, files, strict=True)
    )
    drawn = Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}">'
        '<rect width="{0}" height="{1}" fill="#fff"/>{2}</svg>'
    ).format(WIDTH, HEIGHT, marks)
    rows = [
        {"class": printable(label), "file": printable(file), "x": x, "y": y}
        for label, file, (x, y) in zip(classes, files, flat.tolist(), strict=True)
    ]
    return Illustration(name, str(drawn), rows, f"{share:.0%} of the variance")


def _mark(x: float, y: float, source: str, colour: str, title: str) -> Markup:
    if not source:
        text = '<circle cx="{:.1f}" cy="{:.1f}" r="4" fill="{}"><title>{}</title></circle>'
        return Markup(text).format(x, y, colour, title)
    corner = {"x": x - TILE / 2, "y": y - TILE / 2, "side": TILE, "colour": colour, "source": source}
    return Markup(
        '<g><title>{title}</title><image x="{x:.1f}" y="{y:.1f}" width="{side}" height="{side}" '
        'href="{source}"/><rect x="{x:.1f}" y="{y:.1f}" width="{side}" height="{side}" fill="none" '
        'stroke="{colour}" stroke-width="1.5"/></g>'
    ).format(title=title, **corner)


def _hue(place: int) -> str:
    """The colour of a class: neighbours in the list are far apart on the circle, and differ in lightness."""
    return f"hsl({(place * 137.5) % 360:.0f} 75% {(38, 52, 30)[place % 3]}%)"


def roc(
    name: str, curves: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float]]]
) -> Illustration:
    """Return the ROC of each set of pairs, false accepts on a logarithmic axis.

    Args:
        curves: by title: rates of false and of true accepts, and the distance up to which pairs are accepted.
    """
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    lowest = min(rate for far, _, _ in curves.values() for rate in far if rate > 0)
    for colour, (title, (far, tar, _)) in zip(cycle(COLOURS), curves.items(), strict=False):
        axes.step([max(rate, lowest / 2) for rate in far], tar, where="post", color=colour, label=title)
    axes.set(
        xscale="log",
        xlim=(lowest / 2, 1),
        ylim=(0, 1.01),
        xlabel="different pairs accepted (FAR)",
        ylabel="same pairs accepted (TAR)",
    )
    tidy(axes)
    axes.legend(frameon=False, loc="lower right")
    rows = [
        {"set": title, "far": far, "tar": tar, "distance": distance}
        for title, curve in curves.items()
        for far, tar, distance in zip(*curve, strict=True)
    ]
    return Illustration(name, svg(figure), rows)


def differences(name: str, seeds: Mapping[str, Sequence[float]], behind: Mapping[str, Pair]) -> Illustration:
    """Return each seed's value, and how far each row is behind the first, with intervals; in percent."""
    figure = Figure(figsize=(10, 0.8 + 0.3 * len(seeds)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    shown = {title: [100 * value for value in values] for title, values in seeds.items()}
    draw_seeds(left, shown, repeat(COLOURS[1]))
    for place, title in enumerate(seeds):
        if pair := behind.get(title):
            for interval, width in ((pair.over_seeds, 1), (pair.over_classes, 4)):
                if interval:
                    ends = [-100 * end for end in interval]
                    right.plot(ends, [place] * 2, color=COLOURS[0], linewidth=width)
            right.plot([-100 * pair.difference], [place], "o", color="black", markersize=4)
    lowest = max((max(pair.difference, pair.over_classes[1]) for pair in behind.values()), default=0.0)
    highest = max((-min(pair.difference, pair.over_classes[0]) for pair in behind.values()), default=0.0)
    right.set_xlim(-115 * max(lowest, 0) - 1, max(15 * lowest, 115 * highest) + 1)
    right.axvline(0, color="grey", linewidth=1)
    left.set(xlabel="MAP@R (%)")
    right.set(xlabel="difference from the best (points)")
    tidy(left, right)
    apart = {title: pair.difference for title, pair in behind.items()}
    rows = [
        {"loss": title, "seed": number, "map@r": value, "behind": apart.get(title, math.nan)}
        for title, values in seeds.items()
        for number, value in enumerate(values)
    ]
    return Illustration(name, svg(figure), rows)
