"""A folder -> all that is in it, by kind: the images, and whatever is left out, with a line on each kind."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NoReturn

from softwarp.data.decode import SUFFIXES
from softwarp.files import printable

LEFT_BY_ARCHIVES = "__MACOSX"
KINDS_SHOWN = 10  # kinds of files that are not images


@dataclass
class Tree:
    """The contents of a folder, as paths relative to it, with forward slashes."""

    folders: list[str] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)  # files and folders whose names start with a dot
    archives: list[str] = field(default_factory=list)  # folders that an archive program left
    links: list[str] = field(default_factory=list)  # links to folders, which are not followed

    def add(self, folder: str, files: Sequence[str]) -> None:
        for name in files:
            if name.startswith("."):
                place = self.hidden
            else:
                place = self.images if PurePosixPath(name).suffix.lower() in SUFFIXES else self.others
            place.append(_join(folder, name))

    def left_out(self) -> list[str]:
        """Return what is not an image, or was not looked at, one line for each kind."""
        notes = []
        if self.archives:
            notes.append(f"folders that an archive program left, left out: {_count(self.archives)}")
        if self.links:
            notes.append(f"links to folders, not followed: {_count(self.links)}; give the folders themselves")
        if self.hidden:
            notes.append(f"names that start with a dot, left out: {_count(self.hidden)}")
        if self.others:
            kinds = Counter(PurePosixPath(path).suffix.lower() or "without extension" for path in self.others)
            counts = ", ".join(f"{count} {printable(kind)}" for kind, count in kinds.most_common(KINDS_SHOWN))
            more = ", ..." if len(kinds) > KINDS_SHOWN else ""
            notes.append(f"other files, ignored: {len(self.others)} ({counts}{more})")
        return notes


def read_tree(root: Path) -> Tree:
    """Return what is in a folder and below it, sorted; links to folders are followed at the top only."""
    tree = Tree()
    _walk(tree, root, root)
    for kind in vars(tree).values():
        kind.sort()
    return tree


def some(names: Sequence[str]) -> str:
    """Return the first three names, safe for a terminal."""
    return ", ".join(printable(name) for name in names[:3]) + (", ..." if len(names) > 3 else "")


def is_text(name: str) -> bool:
    """Return whether a name is valid UTF-8; file names can be any bytes.

    >>> is_text("wren"), is_text("wren\\udcff")
    (True, False)
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def folders_above(path: str) -> list[str]:
    """Return the folders around a file or folder, from the outermost.

    >>> folders_above("Fruit/Apple/Gala")
    ['Fruit', 'Fruit/Apple']
    """
    folders = path.split("/")
    return ["/".join(folders[:level]) for level in range(1, len(folders))]


def entries_of(folder: Path) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
    """Return the entries of a folder; if it cannot be read, the error says what to do."""
    try:
        return os.scandir(folder)
    except OSError as error:
        _unreadable(error)


def _walk(tree: Tree, root: Path, start: Path) -> None:
    for folder, inner, files in os.walk(start, onerror=_unreadable):
        here = "" if folder == str(root) else Path(folder).relative_to(root).as_posix()
        if here:
            tree.folders.append(here)
        tree.add(here, files)
        for name in [*inner]:
            if name.startswith("."):
                place = tree.hidden
            elif name == LEFT_BY_ARCHIVES:
                place = tree.archives
            elif not Path(folder, name).is_symlink():
                continue
            elif folder == str(root) and not _leads_up(root, name):
                _walk(tree, root, root / name)
                continue
            else:
                place = tree.links
            place.append(_join(here, name))
            inner.remove(name)


def _leads_up(root: Path, name: str) -> bool:
    """Whether a link leads to the folder that it is in, or to one around it."""
    return root.resolve().is_relative_to((root / name).resolve())


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _count(paths: Sequence[str]) -> str:
    return f"{len(paths)} ({some(paths)})"


def _unreadable(error: OSError) -> NoReturn:
    """Raise the error with what to do: for `os.walk`."""
    raise OSError(f"{error.filename} cannot be read ({error.strerror}); grant access with chmod") from error
