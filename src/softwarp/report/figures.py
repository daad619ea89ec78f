"""Figures as SVG text, drawn by matplotlib without a display."""

import io
from itertools import cycle
from typing import Any

import matplotlib
import torch
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

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


def svg(figure: Figure) -> Markup:
    """Return the figure as an <svg> element, the same for the same figure."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "softwarp"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return Markup(text[text.index("<svg") :])
