"""Any files, folders and CSV lists of images -> the images, with the labels that lists give."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from softwarp.data.classes import class_of, nesting_notes, split_folders, splits_in_classes
from softwarp.data.csv_file import read_csv
from softwarp.data.walk import read_tree, some


@dataclass
class FoundImages:
    """The images of some places, each once."""

    paths: list[Path] = field(default_factory=list)
    lists: dict[Path, dict[Path, str]] = field(default_factory=dict)  # CSV file -> the labels of its images
    notes: list[str] = field(default_factory=list)  # what was left out, one line each

    def labels(self) -> dict[Path, str]:
        """Return the label of every image that a CSV file lists; if several do, that of the last."""
        return {path: label for listed in self.lists.values() for path, label in listed.items()}


def find_images(places: Iterable[Path], *, listed: bool = False) -> FoundImages:
    """Return the images of these files, folders and CSV lists, folders sorted by path.

    Hidden files and folders are left out. A file that is named itself is taken whatever its suffix is.

    Args:
        listed: the places come from a list, in which a missing file counts as broken, not as a typo.
    """
    paths: dict[Path, None] = {}
    found = FoundImages()
    for place in places:
        if place.is_dir():
            tree = read_tree(place)
            paths |= dict.fromkeys(absolute(place) / path for path in tree.images)
            found.notes += tree.left_out()
        elif not listed and is_list(place):
            labels = _read_list(place, found.notes)
            found.lists[absolute(place)] = labels
            paths |= dict.fromkeys(labels)
        elif listed or place.exists():
            paths[absolute(place)] = None
        else:
            raise FileNotFoundError(f"{place} does not exist; give images, folders of images or a CSV file")
    found.paths = list(paths)
    return found


def is_list(place: Path) -> bool:
    """Return whether a place is a CSV file, which lists images with their labels."""
    return place.suffix.lower() == ".csv" and place.is_file()


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


def has_splits(paths: Sequence[str]) -> bool:
    """Return whether top folders of these paths are splits, as training sees them."""
    return bool(split_folders(path for path in paths if not path.startswith("/")))


def class_notes(paths: Iterable[str], *, splits: bool) -> list[str]:
    """Return what to know where classes of these paths are folders in folders, as training says it."""
    found = (class_of(path, depth=None, splits=splits) for path in paths if not path.startswith("/"))
    classes = sorted({name for name in found if name is not None})
    notes = nesting_notes(classes)
    if inside := splits_in_classes(classes):
        place, names = inside
        notes.append(
            f"{some([f'{place}/{name}' for name in names])} are named after splits, but part of classes"
        )
    return notes


def _read_list(file: Path, notes: list[str]) -> dict[Path, str]:
    listing = read_csv(file)
    notes += listing.notes
    root, names = absolute(listing.root), listing.names
    return {
        absolute(root / path): names[label] for path, label in zip(listing.paths, listing.labels, strict=True)
    }
