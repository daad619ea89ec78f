"""Command words -> functions in commands/, and exit codes.

Heavy imports are inside the commands, so that `softwarp --help` answers at once.
"""

import signal
import sys
from typing import Annotated

import typer

from softwarp.commands import data, faces, index, weights
from softwarp.commands.backbones import backbones
from softwarp.commands.benchmark import benchmark
from softwarp.commands.compare import compare
from softwarp.commands.demo import demo
from softwarp.commands.embed import embed
from softwarp.commands.evaluate import evaluate
from softwarp.commands.explore import explore
from softwarp.commands.export import export
from softwarp.commands.losses import losses
from softwarp.commands.reality_check import reality_check
from softwarp.commands.recipes import recipes, show
from softwarp.commands.report import report
from softwarp.commands.search import search
from softwarp.commands.serve import serve
from softwarp.commands.stopped import STOPPED, Stoppable
from softwarp.commands.study import study
from softwarp.commands.train import train
from softwarp.commands.tune import tune
from softwarp.commands.verify import verify
from softwarp.files import printable

app = typer.Typer(
    name="softwarp",
    cls=Stoppable,
    help="Deep metric learning with Realigned Softmax Warping.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    train,
    backbones,
    tune,
    benchmark,
    reality_check,
    recipes,
    show,
    compare,
    report,
    evaluate,
    verify,
    losses,
    embed,
    search,
    serve,
    export,
    demo,
    explore,
):
    app.command()(command)
# A study has options of its own, which only its file knows.
app.command(
    add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False}
)(study)
app.add_typer(data.app, name="data")
app.add_typer(faces.app, name="faces")
app.add_typer(index.app, name="index")
app.add_typer(weights.app, name="weights")


def main() -> None:
    """Run the command line; errors that the user can fix are one line and exit code 2, not a traceback."""
    try:
        app()
    except (ValueError, OSError) as error:
        typer.secho(f"error: {printable(str(error))}", fg="red", err=True)
        sys.exit(2)
    except SystemExit as stop:
        if stop.code == STOPPED:
            # A second Ctrl-C ends it at once, without a traceback.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        raise


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"softwarp {installed('softwarp')}")
        raise typer.Exit
