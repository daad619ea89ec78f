"""`softwarp export`: a trained model as ONNX, torch.export, a Hugging Face folder or weights for timm."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from softwarp.export.check import Check, SampledImages
    from softwarp.export.write import Int8
    from softwarp.inference import EmbeddingModel


class Format(StrEnum):
    """What `--to` takes."""

    onnx = "onnx"
    torch_export = "torch-export"
    hf = "hf"
    timm = "timm"


class Quantisation(StrEnum):
    """What `--quantise` takes."""

    int8 = "int8"


def export(
    run: Annotated[str, typer.Argument(help="A run folder, or whatever else softwarp.load reads.")],
    to: Annotated[Format, typer.Option(help="What to write.")],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="The file to write: .onnx, .pt2, .safetensors; hf: a folder."),
    ],
    quantise: Annotated[
        Quantisation | None, typer.Option(help="With --to onnx: int8 weights in linear layers, for CPUs.")
    ] = None,
    licence: Annotated[
        str | None,
        typer.Option(help="With --to hf: the licence of the weights for the model card, like mit."),
    ] = None,
    push: Annotated[
        str | None,
        typer.Option(metavar="USER/NAME", help="With --to hf: then upload it; a new repository is private."),
    ] = None,
    images: Annotated[
        int, typer.Option(min=11, help="About how many images the export is compared with torch on.")
    ] = 1000,
) -> None:
    """Write a model for production and say how far it is from torch.

    \b
    onnx          one file for onnxruntime and other runtimes; no torch needed there
    torch-export  one .pt2 file, read by torch.export.load without softwarp
    hf            a folder for Hugging Face: weights, config, model card; softwarp.load reads it
    timm          the backbone alone, for timm.create_model(NAME, num_classes=0)

    Graphs read bytes 0..255, resized and cropped, with any batch size, and normalise them themselves. What a
    caller needs to know (resize, crop, distance) is in the metadata. A file that differs from torch by more
    than rounding is not written; for int8, recall before and after is printed.
    """
    from softwarp.export.check import images_to_check
    from softwarp.inference import load

    _check_options(to, output, quantise, licence, push)
    model = load(run, device="cpu")
    shown = images_to_check(run, model, count=images)
    if to is Format.hf:
        _export_folder(model, output, shown, licence, push)
    else:
        _export_file(to, model, output, shown, int8=quantise is not None)


def _check_options(
    to: Format, output: Path, quantise: Quantisation | None, licence: str | None, push: str | None
) -> None:
    from softwarp.export.formats import FORMATS

    if quantise and to is not Format.onnx:
        raise ValueError(f"--quantise needs --to onnx, not {to.value}")
    if (licence or push) and to is not Format.hf:
        raise ValueError(f"--licence and --push need --to hf, not {to.value}")
    suffix = FORMATS[to.value].suffix if to.value in FORMATS else output.suffix
    if output.suffix != suffix:
        raise ValueError(f"--to {to.value} writes a {suffix} file, not {output}; rename --output")


def _export_file(
    to: Format, model: "EmbeddingModel", output: Path, images: "SampledImages", *, int8: bool
) -> None:
    from softwarp.export.write import write_file

    written = write_file(model, output, int8=int8, images=images)
    _report(written.check)
    _report_int8(written.int8)
    typer.echo(f"{output}: {_size(written.size)}")
    _say_next(to, model, output)


def _export_folder(
    model: "EmbeddingModel", output: Path, images: "SampledImages", licence: str | None, name: str | None
) -> None:
    from softwarp.export import formats
    from softwarp.export.write import write_folder
    from softwarp.inference import load

    _report(write_folder(model, output, lambda draft: load(draft).embed, licence=licence, images=images))
    typer.echo(f"{output}: config.json, model.safetensors, README.md (the model card: read and complete it)")
    if name:
        typer.echo(f"uploaded to {formats.push_folder(output, name)}")
    typer.echo(f"next: softwarp.load({name or str(output)!r}).embed([...])")


def _report(check: "Check | None") -> None:
    """Print how close the export is to torch."""
    from softwarp.export.check import NEIGHBOURS

    assert check is not None
    typer.echo(f"compared with torch on {check.images:,} {check.origin}: {check.figures()}")
    typer.echo(
        f"the {NEIGHBOURS} nearest neighbours are the same for {check.same_neighbours:,} of them, in order"
    )


def _report_int8(int8: "Int8 | None") -> None:
    """Print what int8 gains and costs."""
    if int8 is None or int8.check is None:
        return
    small, check = int8.quantised, int8.check
    typer.echo(
        f"int8: {_size(int8.whole)} -> {_size(len(small.content))}; linear layers made int8: {small.linear}, "
        f"convolutions left in float32: {small.convolutions}"
    )
    if check.recall is None:
        typer.echo("int8: what recall it costs is unknown, for these images have no classes")
        return
    before, after = (100 * recall for recall in check.recall)
    typer.echo(f"int8: Recall@1 {before:.1f} -> {after:.1f} ({after - before:+.1f}) on these images")
    typer.echo(f"int8: the nearest neighbours are the same for {check.same_neighbours:,} of {check.images:,}")


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def _say_next(to: Format, model: "EmbeddingModel", output: Path) -> None:
    from softwarp.export.formats import INPUT, timm_name

    if to is Format.onnx:
        typer.echo(f"next: onnxruntime.InferenceSession({str(output)!r}).run(None, {{{INPUT!r}: pixels}})")
    elif to is Format.torch_export:
        typer.echo(f"next: torch.export.load({str(output)!r}).module()(pixels)")
    elif to is Format.timm:
        name = timm_name(model)
        typer.echo(f"next: timm.create_model({name!r}, num_classes=0, checkpoint_path={str(output)!r})")
