"""Figures as SVG text, drawn by matplotlib without a display."""

import io
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import matplotlib
import torch
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from softwarp.comparisons import Pair

COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7")  # safe for colour-blind readers


def curves(histories: dict[str, list[dict[str, Any]]]) -> Markup:
    """Return training loss and AvgDTP by epoch; a radius alpha, if the rows have one, is a dashed line."""
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for colour, (title, rows) in zip(cycle(COLOURS), histories.items(), strict=False):
        epochs = [row["epoch"] for row in rows]
        left.plot(epochs, [row["loss"] for row in rows], color=colour, label=title)
        right.plot(epochs, [row["avg_dtp"] for row in rows], color=colour, label=title)
        if rows and "alpha" in rows[-1]:
            radii = [row["alpha"] for row in rows]
            right.plot(epochs, radii, color=colour, linestyle="--", linewidth=1, label=f"alpha of {title}")
    left.set(title="training loss", xlabel="epoch", yscale="log")
    right.set(title="AvgDTP: mean distance to its own proxy", xlabel="epoch", ylim=(0, None))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(frameon=False, fontsize=8)
    return svg(figure)


def projection(embeddings: Tensor, labels: Tensor, distance: str, characters: dict[int, str]) -> Markup:
    """Return the first two principal components, each point drawn as its character."""
    points = torch.nn.functional.normalize(embeddings) if distance == "cosine" else embeddings
    points = points - points.mean(dim=0)
    _, _, directions = torch.linalg.svd(points, full_matrices=False)
    flat = (points @ directions[:2].T).numpy()
    classes = labels.unique().tolist()
    colours = (*matplotlib.color_sequences["tab10"], "black", "navy")
    figure = Figure(figsize=(4.2, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.scatter(flat[:, 0], flat[:, 1], s=0)  # sets the limits
    for (x, y), label in zip(flat, labels.tolist(), strict=True):
        colour = colours[classes.index(label) % len(colours)]
        axes.text(x, y, characters[label], color=colour, ha="center", va="center", parse_math=False)
    axes.set_aspect("equal", adjustable="datalim")
    axes.set(xticks=[], yticks=[])
    return svg(figure)


def roc(curves: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Markup:
    """Return the ROC of each set of pairs, false accepts on a logarithmic axis."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    lowest = min(rate for far, _ in curves.values() for rate in far if rate > 0)
    for colour, (title, (far, tar)) in zip(cycle(COLOURS), curves.items(), strict=False):
        axes.step([max(rate, lowest / 2) for rate in far], tar, where="post", color=colour, label=title)
    axes.set(
        xscale="log",
        xlim=(lowest / 2, 1),
        ylim=(0, 1.01),
        xlabel="different pairs accepted (FAR)",
        ylabel="same pairs accepted (TAR)",
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="lower right")
    return svg(figure)


def svg(figure: Figure) -> Markup:
    """Return the figure as an <svg> element, the same for the same figure."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "softwarp"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return Markup(text[text.index("<svg") :])


def differences(seeds: Mapping[str, Sequence[float]], behind: Mapping[str, Pair]) -> Markup:
    """Return each seed's value, and how far each row is behind the first, with intervals; in percent."""
    figure = Figure(figsize=(10, 0.8 + 0.3 * len(seeds)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for place, (name, values) in enumerate(seeds.items()):
        points = [100 * value for value in values]
        left.plot(points, [place] * len(points), "o", color=COLOURS[1], markersize=4)
        left.plot([sum(points) / len(points)], [place], "|", color="black", markersize=12)
        if name in behind:
            pair = behind[name]
            for interval, width in ((pair.over_seeds, 1), (pair.over_classes, 4)):
                if interval:
                    right.plot(
                        [-100 * end for end in interval], [place] * 2, color=COLOURS[0], linewidth=width
                    )
            right.plot([-100 * pair.difference], [place], "o", color="black", markersize=4)
    lowest = max((max(pair.difference, pair.over_classes[1]) for pair in behind.values()), default=0.0)
    right.set_xlim(-115 * lowest - 1, 15 * lowest + 1)
    right.axvline(0, color="grey", linewidth=1)
    left.set(yticks=range(len(seeds)), yticklabels=list(seeds), xlabel="MAP@R (%)")
    right.set(xlabel="difference from the best (points)")
    left.invert_yaxis()
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    return svg(figure)
