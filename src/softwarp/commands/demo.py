"""`softwarp demo`: three losses on glyphs."""

from pathlib import Path
from typing import Annotated

import typer

from softwarp.commands.progress import bars_until_stopped


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the three runs, demo.json and report.html.")
    ] = Path("runs/demo"),
    seed: Annotated[
        int, typer.Option(min=0, max=2**31 - 1, help="Seed of initial weights, batches and clustering.")
    ] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few classes and epochs: takes seconds, gives poor figures.")
    ] = False,
) -> None:
    """Train three losses on glyphs and compare them on characters that none of them saw.

    Warped softmax, Euclidean softmax and ProxyNCA++ get the same network, batches and budget. Needs no
    download and takes about three minutes on two cores. The same command resumes a demo that was stopped
    and restarts a finished one.
    """
    from rich.console import Console

    from softwarp.studies.demo import CAPTION, demo_table, run_demo

    with bars_until_stopped(output) as on_event:
        runs = run_demo(output, seed=seed, quick=quick, on_event=on_event)
    Console().print(demo_table(runs, quick=quick).terminal())
    typer.echo(CAPTION)
    typer.echo(f"report: {output / 'report.html'}")
