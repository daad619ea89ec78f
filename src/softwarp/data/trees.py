"""Any files and folders of images -> the images, and the class that a path names."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from softwarp.data.decode import SUFFIXES
from softwarp.data.folders import LEFT_BY_ARCHIVES, unreadable
from softwarp.data.readers import SPLIT_NAMES


def find_images(places: Iterable[Path], *, listed: bool = False) -> list[Path]:
    """Return the images of these files and folders, each once, folders sorted by path.

    Hidden files and folders are left out. A file that is named itself is taken whatever its suffix is.

    Args:
        listed: the places come from a list, of which a file that is missing counts as broken, not as a typo.
    """
    found: dict[Path, None] = {}
    for place in places:
        if place.is_dir():
            found |= dict.fromkeys(_inside(place))
        elif listed or place.exists():
            found[absolute(place)] = None
        else:
            raise FileNotFoundError(f"{place} does not exist; give images or folders of images")
    return list(found)


def absolute(path: Path) -> Path:
    """Return the path from the root of the file system, without `..`; links stay what they are."""
    return Path(os.path.abspath(path))  # noqa: PTH100  # Path.resolve would follow links


def root_of(places: Sequence[Path]) -> Path:
    """Return the folder that names start from: the only one given, or the innermost that holds all places."""
    if not places:
        raise ValueError("no images were given; name files or folders of images")
    if len(places) == 1 and places[0].is_dir():
        return absolute(places[0])
    return Path(os.path.commonpath([absolute(place).parent for place in places]))


def name_of(path: Path, root: Path) -> str:
    """Return a path relative to the root, with forward slashes; as it is if it lies elsewhere."""
    path = absolute(path)
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()


def class_of(path: str, *, depth: int | None, splits: bool) -> str | None:
    """Return the class that a relative path names: its folders; None directly in the root.

    >>> class_of("birds/wren/1.jpg", depth=None, splits=False), class_of("1.jpg", depth=None, splits=False)
    ('birds/wren', None)
    >>> class_of("train/wren/day/1.jpg", depth=1, splits=True)
    'wren'

    Args:
        depth: how many folders, counted from the root; None for all.
        splits: whether the top folder is train, val or test, which is no part of the class.
    """
    if path.startswith("/"):
        return PurePosixPath(path).parent.name or None  # outside of the root
    folders = path.split("/")[splits:-1]
    return "/".join(folders[:depth]) or None


def has_splits(paths: Sequence[str]) -> bool:
    """Return whether the top folder of every path is named after a split."""
    return bool(paths) and all("/" in path and path.split("/")[0].lower() in SPLIT_NAMES for path in paths)


def _inside(root: Path) -> list[Path]:
    images = []
    for folder, inner, files in os.walk(absolute(root), onerror=unreadable):
        inner[:] = sorted(name for name in inner if not name.startswith(".") and name != LEFT_BY_ARCHIVES)
        names = (name for name in files if not name.startswith("."))
        images += [Path(folder, name) for name in names if PurePosixPath(name).suffix.lower() in SUFFIXES]
    return sorted(images)
