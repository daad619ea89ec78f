"""`softwarp embed`: any tree of images -> a file of embeddings."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from softwarp.commands.index_progress import report_broken, updating
from softwarp.commands.options import Backbone, Depth, model_and_images


def embed(
    model: Annotated[
        str, typer.Argument(metavar="RUN", help="A run folder, efficientnet_lite0 or any timm name.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The .safetensors file to write.")],
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Images, folders, CSV files (path,label); - reads a list from stdin, split by lines or \\0."
        ),
    ] = None,
    backbone: Backbone = None,
    depth: Depth = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Replace the file if it is there.")] = False,
) -> None:
    """Embed images with a trained run, or with a pretrained model and no training at all.

    \b
    softwarp embed runs/birds photos -o vectors.safetensors
    find photos -name '*.jpg' -print0 | softwarp embed efficientnet_lite0 - -o vectors.safetensors

    Files that cannot be read are skipped and named. The same command resumes after a stop or a crash. The
    file holds `embeddings`, `names`, `digests` of the files' content and, for class folders and CSV files,
    `labels`.
    """
    if output.suffix != ".safetensors":
        raise ValueError(f"{output}: the file must end in .safetensors")
    if output.exists() and not fresh:
        raise ValueError(f"{output} is there already; choose another --output, or replace it with --fresh")
    with updating(f"what is embedded is kept in {output}.part") as on_event:
        model, paths = model_and_images(model, paths or [], backbone)
        listed = paths == [Path("-")]
        places = _from_stdin() if listed else paths
        from softwarp.index.embed_tree import embed_tree

        changes = embed_tree(model, places, output, listed=listed, depth=depth, on_event=on_event)
    report_broken(changes)
    typer.echo(f"embedded {changes.added + changes.changed + changes.unchanged:,} images into {output}")
    typer.echo(_next(paths, output))


def _next(paths: list[Path], output: Path) -> str:
    """Return which command comes next: evaluation if there are classes, otherwise an index."""
    from safetensors import safe_open

    with safe_open(output, "np") as file:
        labels, about = "labels" in file.keys(), file.metadata()  # noqa: SIM118
    if labels:
        return f"measure them: softwarp evaluate {shlex.quote(str(output))} --distance {about['distance']}"
    words = shlex.join([about["model"], *map(str, paths)])
    return f"search them: softwarp index {words} -o images.index"


def _from_stdin() -> list[Path]:
    """The paths on stdin, separated by zero bytes if there are any, otherwise by line ends."""
    content = sys.stdin.buffer.read()
    lines = content.split(b"\0") if b"\0" in content else content.splitlines()
    return [Path(os.fsdecode(line)) for line in lines if line]
