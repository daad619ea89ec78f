"""`softwarp verify`: how well a model tells people apart, on pairs of faces and on templates."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softwarp.commands.progress import note, say, this_command

if TYPE_CHECKING:
    from softwarp.faces.pairs import PairSet
    from softwarp.faces.verify import Verified
    from softwarp.inference import EmbeddingModel


def verify(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run folder, an exported model, or the name of a backbone.")
    ],
    pairs: Annotated[
        list[Path] | None,
        typer.Option(
            help="A .bin of insightface, pairs.txt, or .tsv (fold, first, second, same); repeatable."
        ),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(help="Folder that paths start from. Default: `images` beside the list, or its folder."),
    ] = None,
    templates: Annotated[
        Path | None,
        typer.Option(
            help="A list of images and templates: columns image, template, media, person, role; or IJB's. "
            "--pairs then holds pairs of templates."
        ),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="Weights of a backbone given by its name: insightface's backbone.pth.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the results. Default: RUN-verification.")
    ] = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes that decode.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Verify pairs of faces: 10-fold accuracy, TAR at several FARs, the ROC, the worst mistakes on a page.

    \b
    softwarp verify runs/faces --pairs lfw/pairs.txt --pairs cfp/pairs_fp.tsv
    softwarp verify iresnet100 --weights backbone.pth --pairs lfw.bin --pairs agedb_30.bin
    softwarp verify runs/faces --templates ijbc_face_tid_mid.txt --pairs ijbc_template_pair_label.txt

    Embeddings of an image and its mirror image are averaged and compared by the distance of the run's loss:
    Euclidean without normalising, or cosine. Each fold is judged by the threshold that is best on the others.
    TAR@F is on the ROC of all pairs; fold TAR@F takes each fold's threshold
    from the others, as insightface does.
    """
    if not pairs and templates is None:
        raise ValueError("nothing to verify; give --pairs FILE, or --templates FILE")
    from softwarp.faces.pairs import read_pairs
    from softwarp.inference import load
    from softwarp.report.verification import as_json as everything
    from softwarp.report.verification import pairs_table, write_verification

    model = load(run, weights=weights)
    results: list[Verified] = []
    found: dict[str, float] = {}
    if templates is not None:
        found = _verify_templates(model, templates, pairs or [], images, workers)
    else:
        sets = {path: read_pairs(path, images, shorter_side=model.resize) for path in pairs or []}
        results = [_verify(model, each, workers) for each in _told_apart(sets)]
    folder = output or Path(f"{run.rstrip('/')}-verification")
    about = {"model": run, "distance": model.distance, "command": this_command()}
    page = write_verification(folder, results, found, about)
    if as_json:
        import json

        typer.echo(json.dumps(everything(results, found, about), indent=2))
        return
    from rich.console import Console

    if results:
        Console().print(pairs_table(results, title=f"{model.distance} distance, percent").terminal())
    for name, value in found.items():
        typer.echo(f"{name}: {value if isinstance(value, int) else f'{100 * value:.2f}'}")
    say(f"page: {page}")


def _told_apart(sets: "dict[Path, PairSet]") -> "list[PairSet]":
    """The sets; those of one name are called by their paths, or one would hide the other in the results."""
    from dataclasses import replace

    names = [pairs.name for pairs in sets.values()]
    return [
        replace(pairs, name=str(path)) if names.count(pairs.name) > 1 else pairs
        for path, pairs in sets.items()
    ]


def _verify(model: "EmbeddingModel", pairs: "PairSet", workers: int) -> "Verified":
    from softwarp.events import bars
    from softwarp.faces.verify import verify as verify_pairs

    with bars() as progress:
        task = progress.add_task(pairs.name, total=len(pairs.images))
        result = verify_pairs(
            model, pairs, workers=workers, advance=lambda count: progress.advance(task, count)
        )
    if result.left_out:
        lost = len(pairs.same) - len(result.pairs.same)
        note(
            f"{pairs.name}: {lost} pairs left out; {len(result.left_out)} images cannot be read, the first is"
        )
        note(result.left_out[0])
    return result


def _verify_templates(
    model: "EmbeddingModel", path: Path, pairs: list[Path], images: Path | None, workers: int
) -> dict[str, float]:
    from softwarp.events import bars
    from softwarp.faces.templates import read_template_pairs, read_templates
    from softwarp.faces.verify import verify_templates

    if len(pairs) > 1:
        raise ValueError(
            f"templates take one list of pairs, but {len(pairs)} were given; verify them one by one"
        )
    templates = read_templates(path, images, shorter_side=model.resize)
    listed = read_template_pairs(pairs[0], templates) if pairs else None
    with bars() as progress:
        task = progress.add_task(path.stem, total=len(templates.images))
        metrics, left_out = verify_templates(
            model, templates, listed, workers=workers, advance=lambda count: progress.advance(task, count)
        )
    if left_out:
        note(f"{path.stem}: {len(left_out)} images left out that cannot be read, the first is")
        note(left_out[0])
        metrics["left_out"] = len(left_out)
    return metrics
