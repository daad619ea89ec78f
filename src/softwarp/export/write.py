"""Writes a model for others, once what it would write has done on images what torch does."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch

from softwarp.export.check import Check, SampledImages, compare_with_torch, images_to_check
from softwarp.export.formats import (
    FORMATS,
    Forward,
    Quantised,
    format_of,
    push_folder,
    quantise,
    run_onnx,
    write_model_folder,
)
from softwarp.files import atomic_write
from softwarp.runs.run import Run

if TYPE_CHECKING:
    from softwarp.inference import EmbeddingModel

CHECKED = 100  # images, about


@dataclass(frozen=True)
class Int8:
    """What int8 weights gain and cost."""

    quantised: Quantised
    whole: int  # bytes of the file in float32
    check: Check | None


@dataclass(frozen=True)
class Exported:
    """A file that was written, and how near it is to torch."""

    file: Path
    size: int  # bytes
    check: Check | None  # None if it was not compared
    int8: Int8 | None = None


def write_file(
    model: "EmbeddingModel",
    file: Path,
    *,
    int8: bool = False,
    check: bool = True,
    images: SampledImages | None = None,
) -> Exported:
    """Return what was written to a file, in the format of its suffix; one that is not torch's is not written.

    Args:
        images: to compare on; about a hundred of the model's run by default.
    """
    name, model = format_of(file), _on_cpu(model)
    if int8 and name != "onnx":
        raise ValueError(f"int8 weights are for .onnx, not {file}")
    images = images or (images_to_check(model.source, model, count=CHECKED) if check else None)
    content = FORMATS[name].write(model)
    checked = refuse_other(file, FORMATS[name].run(content, model), model, images) if images else None
    small = None
    if int8:
        quantised, whole = quantise(content), len(content)
        content = quantised.content
        small = Int8(
            quantised, whole, compare_with_torch(run_onnx(content), model, images) if images else None
        )
    with atomic_write(file) as output:
        output.write(content)
    return Exported(file, len(content), checked, small)


def write_folder(
    model: "EmbeddingModel",
    folder: Path,
    read: Callable[[Path], Forward],
    *,
    licence: str | None = None,
    images: SampledImages | None = None,
) -> Check | None:
    """Write a folder in Hugging Face form, and return how near what `read` makes of it is to torch.

    Args:
        images: to compare on; None for no comparison.
    """
    run, model = run_of(model), _on_cpu(model)
    checked = None
    if images is not None:
        with TemporaryDirectory() as draft:
            write_model_folder(Path(draft), run, model, licence=licence)
            checked = refuse_other(folder, read(Path(draft)), model, images)
    write_model_folder(folder, run, model, licence=licence)
    return checked


def upload(model: "EmbeddingModel", name: str, *, licence: str | None = None) -> str:
    """Write a folder in Hugging Face form, upload it to `user/name` and return its address."""
    with TemporaryDirectory() as draft:
        write_model_folder(Path(draft), run_of(model), _on_cpu(model), licence=licence)
        return push_folder(Path(draft), name)


def run_of(model: "EmbeddingModel") -> Run:
    """Return the run that a model comes from; a ValueError if it comes from none."""
    if model.folder is None:
        raise ValueError("only the model of a run has a model card; load it from its run folder")
    return Run(model.folder)


def refuse_other(place: Path, forward: Forward, model: "EmbeddingModel", images: SampledImages) -> Check:
    """Return how near the embeddings of `forward` are to torch's; a ValueError if that is not rounding."""
    check = compare_with_torch(forward, model, images)
    if not check.close():
        raise ValueError(f"{place} does not do what torch does: {check.figures()}; nothing was written")
    return check


def _on_cpu(model: "EmbeddingModel") -> "EmbeddingModel":
    if model.device.type == "cpu":
        return model
    return replace(model, network=copy.deepcopy(model.network).cpu(), device=torch.device("cpu"))
