"""The bar of embedding and indexing, what to do after Ctrl-C, and which files were broken."""

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from softwarp.commands.progress import listening, note, this_command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from softwarp.events import OnEvent
    from softwarp.index.index import Index
    from softwarp.index.remote import RemoteIndex
    from softwarp.index.updates import Changes

SHOWN = 100  # broken files


def updating(kept: str) -> "AbstractContextManager[OnEvent]":
    """Return a listener that draws bars; Ctrl-C ends with what is kept and exit code 130."""
    again = this_command()
    return listening(lambda error: f"stopped; {kept}. To resume: {again}")


@contextmanager
def opened(folder: Path, kept: str) -> "Iterator[tuple[Index, OnEvent]]":
    """Yield an index and a listener, as `updating` does, which also minds Ctrl-C while libraries load."""
    with updating(kept) as on_event:
        from softwarp.index.index import Index

        yield Index.open(folder), on_event


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
