"""`softwarp backbones`: which network suits a folder of images."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softwarp.commands.options import Depth
from softwarp.commands.progress import listening, note, say

if TYPE_CHECKING:
    from softwarp.training.backbones_result import Backbones


def backbones(
    images: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A folder (CLASS/IMAGE) or a CSV file (path,label).")
    ],
    names: Annotated[
        str | None,
        typer.Option(help="Networks, by commas, like efficientnet_lite0. Default: those with weights here."),
    ] = None,
    protocol: Annotated[
        str,
        typer.Option(
            help="train: judge the classes that train would train on; test: its test classes; all: all."
        ),
    ] = "train",
    depth: Depth = None,
    results: Annotated[Path | None, typer.Option(help="Also write the rows to this JSON file.")] = None,
) -> None:
    """Compare networks on your images before any training, the best first.

    \b
    softwarp backbones my_images
    softwarp backbones my_images --names efficientnet_lite0,vit_small_patch14_dinov2
    softwarp train --data my_images      takes the best, once calibrated

    Recall@1 and MAP@R have 95% intervals over classes; ms is the time of an image in the network. Features
    are kept: the same command again takes seconds.
    """
    wanted = None if names is None else names.replace(",", " ").split()
    with listening(lambda _: "stopped; the features that are there are kept") as on_event:
        from softwarp.training.backbones import backbones as compare

        found = compare(images, wanted, protocol=protocol, depth=depth, on_event=on_event)
    _print(found)
    if results is not None:
        _write(results, images, wanted, protocol, found)
    if found.rows[0].map_at_r is not None and protocol == "train":
        say(f"next: softwarp train --data {images} --backbone {found.best}")


def _print(found: "Backbones") -> None:
    from rich.console import Console

    if any(not row.problem for row in found):
        Console().print(found.table().terminal())
    for row in found:
        if row.broken:
            note(f"{row.broken} images cannot be read, and are left out")
            break
    for problem in found.problems():
        note(problem)
    if all(row.problem for row in found):
        raise ValueError(f"none of the networks can be had: {', '.join(row.name for row in found)}")


def _write(file: Path, images: Path, names: list[str] | None, protocol: str, found: "Backbones") -> None:
    from dataclasses import asdict

    from softwarp.files import write_json
    from softwarp.runs.provenance import environment

    listed = f" --names {','.join(names)}" if names else ""
    content = {
        "command": f"softwarp backbones {images.resolve().name}{listed} --protocol {protocol}",
        "judged": found.about,
        "images": found.images,
        "minutes": round(found.seconds / 60, 1),
        "load": round(os.getloadavg()[0] / (os.cpu_count() or 1), 1) if hasattr(os, "getloadavg") else None,
        "rows": [asdict(row) for row in found],
        "environment": environment(),
    }
    write_json(file, content)
