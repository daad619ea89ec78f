"""The bar of embedding and indexing, what to do after Ctrl-C, and which files were broken."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from softwarp.commands.progress import note, progress_bars
from softwarp.memory import freed_memory_kept

if TYPE_CHECKING:
    from rich.progress import TaskID

    from softwarp.index_updates import Changes, Progress
    from softwarp.remote import RemoteIndex
    from softwarp.retrieve import Index

SHOWN = 100  # broken files


@contextmanager
def updating(kept: str) -> "Iterator[Progress]":
    """Yield a function that shows what is done; Ctrl-C ends with what is kept and exit code 130."""
    with freed_memory_kept(), progress_bars() as bars:
        tasks: dict[str, TaskID] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        try:
            yield show
        except KeyboardInterrupt:
            bars.stop()
            note(f"stopped; {kept}. To resume: softwarp {shlex.join(sys.argv[1:])}")
            raise typer.Exit(130) from None


def note_damage(index: "Index | RemoteIndex") -> None:
    """Say so where an index is scanned because its approximate one is missing or broken."""
    if getattr(index, "damaged", False):
        note(
            f"{index.address}: search-*.faiss is missing or broken, so images are searched exactly; "
            f"mend it with: softwarp index refresh {index.address}"
        )


def report_broken(changes: "Changes") -> None:
    """Print what was left out, and the files that cannot be read."""
    for line in changes.notes:
        note(line)
    for reason in changes.broken[:SHOWN]:
        note(f"skipped: {reason}".replace("\n", "\\n"))
    if len(changes.broken) > SHOWN:
        note(f"... and {len(changes.broken) - SHOWN:,} more")
    if changes.broken:
        note(f"files that cannot be read: {len(changes.broken):,}")
