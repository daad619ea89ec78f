"""What a command says after Ctrl-C, unless it says so itself because it knows more, as train and index do."""

import shlex
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from softwarp.memory import freed_memory_kept

STOPPED = 130  # the exit code after Ctrl-C
NOTHING = "nothing was changed"
# What is left behind. The same command resumes it, or starts over.
TRAINS = ("train", "benchmark", "reality-check", "study", "demo")
RESUMED = dict.fromkeys(TRAINS, "what is finished is kept") | {
    "tune": "trials that are finished are kept",
    "embed": "what is embedded is kept",
    "index": "the index is whole, and what is finished is kept",
    "data cub": "what has arrived is kept",
    "data sop": "what has arrived is kept",
}
STARTED_OVER = {
    "verify": "there are no results yet",
    "export": "the export is not written yet",
    "report": "the page is not written yet",
    "faces pack": "shards are left that the same command replaces",
    "faces pairs": "the list is not written yet",
    "index classify": NOTHING,
}


class Stoppable(TyperGroup):
    """The commands. Ctrl-C in any of them is one line and exit code 130, never a traceback.

    They keep the memory that tensors free, as they own the process; a server gives it back.
    """

    def invoke(self, context: Any) -> Any:
        try:
            with freed_memory_kept():
                return super().invoke(context)
        except KeyboardInterrupt:
            from softwarp.commands.progress import note

            note(when_stopped(sys.argv[1:]))
            raise typer.Exit(STOPPED) from None


def when_stopped(words: list[str]) -> str:
    """Return what is left behind by a command that was stopped, and how to go on.

    >>> when_stopped(["embed", "runs/birds", "photos", "-o", "birds.safetensors"])
    'stopped; what is embedded is kept. To resume: softwarp embed runs/birds photos -o birds.safetensors'
    """
    again = f"softwarp {shlex.join(words)}"
    for name in (" ".join(words[:2]), words[0] if words else ""):
        if name in RESUMED:
            return f"stopped; {RESUMED[name]}. To resume: {again}"
        if name in STARTED_OVER:
            return f"stopped; {STARTED_OVER[name]}. To start over: {again}"
    return f"stopped; {NOTHING}. To start over: {again}"
