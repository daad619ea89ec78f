"""The demo's report: table, curves, retrieval gallery and projection of unseen classes in one HTML file."""

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jinja2 import Environment, PackageLoader, select_autoescape
from PIL import Image
from torch import Tensor

from softwarp.data.glyphs import glyph_images
from softwarp.files import write_text
from softwarp.metrics import nearest_neighbours
from softwarp.report.figures import curves, projection
from softwarp.runs import Run, environment
from softwarp.tables import Table

QUERIES = 8
NEIGHBOURS = 11  # the other styles of a character
PROJECTED = 12  # classes


def write_report(path: Path, runs: dict[str, Run], table: Table, caption: str, command: str) -> None:
    """Write the report; nothing in it is loaded from elsewhere."""
    first = next(iter(runs.values()))
    items = first.items()
    images = glyph_images([item.file for item in items])
    spaces: dict[str, tuple[Tensor, Tensor, str]] = {}
    for title, run in runs.items():
        arrays = run.load_embeddings()
        spaces[title] = (arrays["embeddings"], arrays["labels"], run.result().distance)
    names = dict(
        zip(spaces[next(iter(spaces))][1].tolist(), (item.class_name for item in items), strict=True)
    )
    page = Environment(loader=PackageLoader("softwarp.report"), autoescape=select_autoescape(["jinja"]))
    html = page.get_template("demo.html.jinja").render(
        table=table,
        caption=caption,
        command=command,
        runs={title: (run.recipe(), run.result()) for title, run in runs.items()},
        first=first.result(),
        environment=environment(),
        neighbours=NEIGHBOURS,
        projected=PROJECTED,
        curves=curves({title: run.history() for title, run in runs.items()}),
        gallery=gallery(lambda item: picture(images[item]), spaces),
        projections={
            title: projection(*_first_classes(embeddings, labels), distance, names)
            for title, (embeddings, labels, distance) in spaces.items()
        },
    )
    write_text(path, html)


def gallery(
    show: Callable[[int], str], spaces: dict[str, tuple[Tensor, Tensor, str]]
) -> list[dict[str, Any]]:
    """Return each loss's nearest images, for some queries that not every loss answers perfectly.

    Args:
        show: the image of an item, as a data URI.
        spaces: by loss, embeddings, labels and distance.
    """
    found = {
        title: nearest_neighbours(embeddings, min(NEIGHBOURS, len(embeddings) - 1), distance=distance)[1]
        for title, (embeddings, _, distance) in spaces.items()
    }
    _, labels, _ = next(iter(spaces.values()))
    right = {title: labels[indices] == labels[:, None] for title, indices in found.items()}
    hard = torch.stack([hits.all(dim=1) for hits in right.values()]).all(dim=0).logical_not()
    candidates = hard.nonzero().flatten() if hard.any() else torch.arange(len(labels))
    places = torch.linspace(0, len(candidates) - 1, min(QUERIES, len(candidates))).long()
    chosen = candidates[places].tolist()
    return [
        {
            "query": show(query),
            "answers": [
                {
                    "loss": title,
                    "items": [
                        {"image": show(index), "right": hit}
                        for index, hit in zip(
                            found[title][query].tolist(), right[title][query].tolist(), strict=True
                        )
                    ],
                }
                for title in found
            ],
        }
        for query in chosen
    ]


def picture(image: Tensor) -> str:
    """Return a grey image [1, H, W] as a data URI, dark on white."""
    buffer = io.BytesIO()
    Image.fromarray(255 - image[0].numpy()).save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _first_classes(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    classes = torch.linspace(0, int(labels.max()), PROJECTED).long()
    shown = torch.isin(labels, classes)
    return embeddings[shown], labels[shown]
