"""`softwarp report`: any runs and studies on one page."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from softwarp.files import printable


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...",
            help="Folders of runs, of --seeds, and of demo, benchmark, reality-check, tune and study.",
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The page.")] = Path("report.html"),
) -> None:
    """Make one page of any runs and studies, to look at, print or send: it needs no other file.

    \b
    softwarp report runs/my_images-test
    softwarp report runs/arcface runs/hist runs/study_noise -o compared.html

    Tables with deviations, curves, the best, median and worst answers, the most confused classes, a map,
    geometry, recipes. Every figure is also written as SVG and its numbers as CSV, into compared-figures.
    """
    from softwarp.report.write import write_report

    write_report(output, folders, shlex.join(["softwarp", *sys.argv[1:]]))
    place, figures = printable(str(output)), printable(f"{output.with_suffix('')}-figures")
    typer.echo(f"report: {place} ({output.stat().st_size / 1e6:.1f} MB); its figures and numbers: {figures}")
