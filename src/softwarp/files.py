"""Writes files so that a crash leaves either the old content or the new, and prints names safely."""

import csv
import io
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def atomic_write(path: Path, *, keep: Path | None = None) -> Iterator[IO[bytes]]:
    """Yield a binary file that replaces `path` when the block ends without an error.

    Args:
        keep: where the old content goes, if there is any.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "note.txt"
    >>> with atomic_write(path) as file: _ = file.write(b"kept")
    >>> path.read_text()
    'kept'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o666 & ~_umask())
        if keep is not None and path.exists():
            _keep(path, keep)
        Path(temporary).replace(path)
        _sync_folder(path.parent)
    finally:
        Path(temporary).unlink(missing_ok=True)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder; raise a ValueError if one is already in it.

    The lock ends with the process, however it ends, and leaves no file behind.
    """
    with _open_to_lock(folder, os.O_RDONLY) as handle:
        if not _lock(handle, wait=False):
            raise ValueError(f"another process is working in {folder}")
        yield


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Wait until no other process holds this file, which is created if needed, and hold it.

    The lock ends with the process, however it ends.
    """
    with _open_to_lock(path, os.O_RDWR | os.O_CREAT) as handle:
        _lock(handle, wait=True)
        yield


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Yield whether this process could take the lock of a file, which is created if needed; do not wait.

    Network file systems lock files, but not folders.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _open_to_lock(path, os.O_RDWR | os.O_CREAT) as handle:
        yield _lock(handle, wait=False)


@contextmanager
def open_shared(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file for reading, and share its lock; a mapping that is made of it holds the lock on."""
    with path.open("rb") as file:
        _lock(file.fileno() if os.name == "posix" else None, wait=True, shared=True)
        yield file


def is_locked(path: Path) -> bool:
    """Return whether a process holds the file."""
    if not path.exists():
        return False
    with _open_to_lock(path, os.O_RDWR) as handle:
        return not _lock(handle, wait=False)


@contextmanager
def _open_to_lock(path: Path, flags: int) -> Iterator[int | None]:
    """Yield a handle that no child inherits; None on Windows, where there are no such locks.

    The package filelock, which has some for Windows, locks neither folders nor for several readers at a time,
    leaves a file in each folder, and polls where flock wakes up. On Windows its lock also keeps the process
    that holds it from reading the file through another handle, as the journal of a search is.
    """
    if os.name != "posix":
        yield None
        return
    handle = os.open(path, flags, 0o666)
    _locks.add(handle)
    try:
        yield handle
    finally:
        if handle in _locks:
            _locks.discard(handle)
            os.close(handle)


def _lock(handle: int | None, *, wait: bool, shared: bool = False) -> bool:
    """Return whether the lock was taken; a file system without locks always gives it."""
    if handle is None:
        return True
    import fcntl

    try:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(handle, kind | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        pass
    return True


def check_writable(folder: Path) -> None:
    """Raise an OSError unless files can be written to the folder, which need not be there yet.

    Nothing is created: of a folder that is not there, the nearest one above it has to be writable.
    """
    nearest = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not nearest.is_dir():
        raise OSError(f"{nearest} is a file, not a folder; choose another folder")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise OSError(f"{nearest} cannot be written to; choose another folder, or change its permissions")


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path`, atomically."""
    with atomic_write(path) as file:
        file.write(text.encode())


def write_json(path: Path, content: Any) -> None:
    """Write `content` as readable JSON, atomically."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_csv(path: Path, rows: Iterable[Sequence[object]], **style: Any) -> None:
    """Write rows as CSV, atomically; `style` is that of `csv.writer`. Names of files need not be UTF-8."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n", **style).writerows(rows)
    with atomic_write(path) as file:
        file.write(text.getvalue().encode(errors="surrogateescape"))


def cache_folder() -> Path:
    """Return the user's cache folder for softwarp; `SOFTWARP_CACHE` overrides it."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("SOFTWARP_CACHE") or Path(base) / "softwarp")


def printable(text: str) -> str:
    r"""Return the text with control and unprintable characters escaped, except line ends.

    >>> printable("wren \x1b[2J\udcff")
    'wren \\x1b[2J\\udcff'
    """
    return "".join(
        letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1] for letter in text
    )


_locks: set[int] = set()


def _let_go() -> None:
    """Close the locks that a forked process has inherited: they must not outlive the one that took them."""
    while _locks:
        os.close(_locks.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def _keep(path: Path, keep: Path) -> None:
    """Make `keep` the content of `path`, which is there at every moment where hard links are known."""
    link = keep.with_name(f".{keep.name}.link")
    link.unlink(missing_ok=True)
    try:
        os.link(path, link)
    except OSError:
        path.replace(keep)
    else:
        link.replace(keep)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":  # elsewhere a folder cannot be opened
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
