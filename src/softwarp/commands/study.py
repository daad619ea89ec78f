"""`softwarp study`: the figures and tables of the paper, one study each."""

import inspect
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

# What every study takes; `on_event` comes from here, too.
Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", help="Folder of the study. Default: runs/study_NAME, or study_NAME_quick."
    ),
]
Quick = Annotated[bool, typer.Option("--quick", help="Under a minute, with poor figures.")]
Results = Annotated[Path | None, typer.Option(help="Also write the summary to FOLDER/study_NAME.json.")]
COMMON: dict[str, tuple[Any, Any]] = {
    "output": (Output, None),
    "quick": (Quick, False),
    "results": (Results, None),
}


def study(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME [OPTIONS]]", help="A study and its options.")
    ] = None,
) -> None:
    """Redraw a figure or table of the paper on any data; without a name, list them.

    \b
    softwarp study
    softwarp study functions --help
    softwarp study functions --quick
    softwarp study own_figure.py

    A study trains what it needs, and writes its summary (JSON), table, figures (SVG) and their numbers (CSV)
    into its folder. The same command resumes a study that was stopped and, started several times, shares the
    trainings.
    """
    if not words or words[0] in ("-h", "--help"):
        _list()
        return
    from softwarp.studies import load_study

    module = load_study(words[0])
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(help=inspect.getdoc(module.main), context_settings={"help_option_names": ["-h", "--help"]})(
        command_of(module)
    )
    app(words[1:], prog_name=f"softwarp study {words[0]}")


def command_of(module: ModuleType) -> Callable[..., None]:
    """Return the command that runs a study: with the options of its `main`, and those of every study."""

    def run(**options: Any) -> None:
        _run(module, **options)

    own = [
        each
        for each in inspect.signature(module.main).parameters.values()
        if each.name not in ("output", "quick", "on_event")
    ]
    common = [
        inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
        for key, (kind, default) in COMMON.items()
    ]
    run.__signature__ = inspect.Signature([*own, *common])  # type: ignore[attr-defined]
    return run


def _run(study: ModuleType, output: Path | None, *, quick: bool, **options: Any) -> None:
    from rich.console import Console

    from softwarp.commands.progress import bars_until_stopped, say
    from softwarp.report.claims import OUR_READING
    from softwarp.studies.run import run_study, study_name

    folder = output or Path("runs") / f"study_{study_name(study)}{'_quick' * quick}"
    command = command_line(sys.argv[1:])
    with bars_until_stopped(folder) as on_event:
        summary, table = run_study(study, folder, quick=quick, command=command, on_event=on_event, **options)
    Console().print(table.terminal())
    for claim in summary.get("claims", []):
        place = claim.get("said", OUR_READING)
        typer.echo(f"{claim['verdict']}: {claim['claim']} ({place}): {claim['numbers']}")
    say(f"study: {folder}; summary.json, table.md, table.tex, figures as .svg and .csv")


def command_line(words: list[str]) -> str:
    """Return the command without the path of the data on this machine.

    >>> command_line(["study", "alpha", "data.root=/home/me/CUB_200_2011"])
    'softwarp study alpha data.root=CUB_200_2011'
    """
    root = "data.root="
    named = (root + Path(word).name if word.startswith(root) else word for word in words)
    return shlex.join(["softwarp", *named])


def _list() -> None:
    from rich.console import Console
    from rich.table import Table

    from softwarp.studies import listed_studies

    listed = Table("study", "in the paper", "", box=None, pad_edge=False)
    for each in listed_studies():
        listed.add_row(each.name, each.paper, each.about)
    Console().print(listed)
    typer.echo("softwarp study NAME --help shows a study's options.")
