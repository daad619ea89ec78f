"""A folder of class folders -> the images in it; the listing's notes say what was left out."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NoReturn

from softwarp.data.decode import SUFFIXES
from softwarp.data.readers import SPLIT_NAMES, Listing, by_name
from softwarp.files import printable

LEFT_BY_ARCHIVES = "__MACOSX"
NESTED = 0.05  # with a smaller share of images directly in the top folders, classes may be a level deeper


@dataclass
class _Tree:
    """The contents of a folder, as paths relative to it; hidden files and folders are left out."""

    folders: list[str] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)  # names that are not UTF-8, leftovers of archives

    def add(self, folder: str, files: Sequence[str]) -> None:
        for name in files:
            path = f"{folder}/{name}" if folder else name
            if not name.startswith("."):
                place = self.images if _is_image(name) else self.others
                (place if is_text(path) else self.skipped).append(path)


def read_folder(root: Path, depth: int | None = None) -> Listing:
    """Return the images of root/<class>, or of root/<split>/<class> where all top folders are splits.

    Args:
        depth: depth of the class folders below the root, or below a split: 1 for the top ones. None means 1,
            unless images are deeper or folders look like splits: that is an error that says how to choose.
    """
    tree = _read_tree(root)
    splits = _splits(root, tree, depth)
    level = depth or _level(root, tree, splits)
    rows, loose = [], []
    for path in tree.images:
        home, inner = _below(path, splits)
        if inner.count("/") < level or (splits and not home):
            loose.append(path)
        else:
            rows.append((home, "/".join(inner.split("/")[:level]), path))
    if not rows:
        raise ValueError(_nothing(root, tree, loose))
    rows.sort()
    homes, names, paths = (list(column) for column in zip(*rows, strict=True))
    filled = {f"{home}/{name}" if home else name for home, name, _ in rows}
    empty = [path for path in tree.folders if _is_class(path, splits, level) and path not in filled]
    notes = _notes(tree, loose, empty)
    return by_name(root, paths, names, [splits[home] for home in homes] if splits else None, notes)


def _read_tree(root: Path) -> _Tree:
    if not root.is_dir():
        raise NotADirectoryError(f"{root} is not a folder; give a folder that holds one folder per class")
    tree = _Tree()
    with scan(root) as entries:
        seen = sorted((entry.name, entry.is_dir()) for entry in entries)
    tree.add("", [name for name, is_folder in seen if not is_folder])
    for top in (name for name, is_folder in seen if is_folder and not name.startswith(".")):
        for folder, inner, files in os.walk(root / top, onerror=unreadable):
            path = Path(folder).relative_to(root).as_posix()
            if not is_text(path) or Path(folder).name == LEFT_BY_ARCHIVES:
                tree.skipped.append(path)
                inner.clear()
                continue
            inner[:] = sorted(name for name in inner if not name.startswith("."))
            tree.folders.append(path)
            tree.add(path, files)
    return tree


def _splits(root: Path, tree: _Tree, depth: int | None) -> dict[str, str]:
    """The split of each top folder that holds images; empty if the top folders are classes."""
    tops = sorted({path.partition("/")[0] for path in tree.images if "/" in path})
    if tops and all(top.lower() in SPLIT_NAMES for top in tops):
        return {top: SPLIT_NAMES[top.lower()] for top in tops}
    classes = {path.partition("/")[0] for path in tree.images if path.count("/") == 1}
    named = [top for top in tops if top.lower() in SPLIT_NAMES]
    alike = [top for top in tops if top not in classes and _words(top) & SPLIT_NAMES.keys()]
    alike = sorted({*alike, *(named if len(named) > 1 else [])})  # one may be a class: a vehicle
    if alike and depth is None:
        others = [top for top in tops if top.lower() not in SPLIT_NAMES]
        raise ValueError(
            f"{root}: folders look like splits ({_some(alike)}), but not all are named after one "
            f"({_some(others)}). Name them train, val and test and move other folders away; or, if the top "
            "folders are classes, set data.depth=1"
        )
    return {}


def _level(root: Path, tree: _Tree, splits: Mapping[str, str]) -> int:
    """The depth of class folders: 1; an error if nearly all images are deeper."""
    places = [inner.split("/")[:-1] for _, inner in (_below(path, splits) for path in tree.images)]
    inside = [place for place in places if place]
    if sum(len(place) == 1 for place in inside) >= NESTED * len(inside):
        return 1
    tops, deeper = (sorted({"/".join(place[:level]) for place in inside}) for level in (1, 2))
    raise ValueError(
        f"{root}: images are two folders deep. The classes are either {len(tops)} ({_some(tops)}) or "
        f"{len(deeper)} ({_some(deeper)}): choose with data.depth=1 or data.depth=2 (data check: --depth)"
    )


def _below(path: str, splits: Mapping[str, str]) -> tuple[str, str]:
    """The split folder that a path is in, "" if none, and the rest of the path."""
    top, _, rest = path.partition("/")
    return (top, rest) if top in splits else ("", path)


def _is_class(folder: str, splits: Mapping[str, str], level: int) -> bool:
    home, inner = _below(folder, splits)
    if splits and not home:
        return "/" not in folder  # an empty one next to the splits
    return bool(inner) and inner.count("/") + 1 == level


def _notes(tree: _Tree, loose: Sequence[str], empty: Sequence[str]) -> list[str]:
    """What is left out, and why, one line each."""
    notes = []
    if empty:
        notes.append(f"folders without images, left out: {len(empty)} ({_some(empty)})")
    if loose:
        notes.append(
            f"images in no class folder, left out: {len(loose)} ({_some(loose)}); move them into one"
        )
    archives = [path for path in tree.skipped if is_text(path)]
    if archives:
        notes.append(f"folders that an archive program left, left out: {len(archives)} ({_some(archives)})")
    odd = [path for path in tree.skipped if not is_text(path)]
    if odd:
        notes.append(f"names that are not UTF-8, left out: {len(odd)} ({_some(odd)}); rename them")
    if tree.others:
        kinds = Counter(PurePosixPath(path).suffix.lower() or "without extension" for path in tree.others)
        counts = ", ".join(f"{count} {printable(kind)}" for kind, count in kinds.most_common(5))
        notes.append(f"other files, ignored: {len(tree.others)} ({counts})")
    return notes


def _nothing(root: Path, tree: _Tree, loose: Sequence[str]) -> str:
    """Why there are no images to use, and what to do."""
    found = "; ".join(_notes(tree, loose, tree.folders)) or "it is empty"
    return (
        f"{root} holds no class folder with images: {found}. Make one folder per class; images end in "
        f"{', '.join(sorted(SUFFIXES))}"
    )


def _some(names: Sequence[str]) -> str:
    """The first three names, safe for a terminal."""
    return ", ".join(printable(name) for name in names[:3]) + (", ..." if len(names) > 3 else "")


def _words(name: str) -> set[str]:
    return set(re.findall("[a-z]+", name.lower()))


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


def _is_image(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in SUFFIXES


def scan(folder: Path) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
    """Return the entries of a folder; if it cannot be read, the error says what to do."""
    try:
        return os.scandir(folder)
    except OSError as error:
        unreadable(error)


def unreadable(error: OSError) -> NoReturn:
    """Raise the error with what to do: for `os.walk`."""
    raise OSError(f"{error.filename} cannot be read ({error.strerror}); grant access with chmod") from error
