"""The class that a path names: the folder it is in. One rule for training, `data check`, index and embed."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from softwarp.data.readers import SPLIT_NAMES
from softwarp.data.walk import folders_above, some
from softwarp.files import printable

DEEPEST = 3  # levels that a note offers


def class_of(path: str, *, depth: int | None, splits: bool) -> str | None:
    """Return the class of an image: the path of its folder, below a split; None directly in the root.

    >>> class_of("birds/wren/1.jpg", depth=None, splits=False), class_of("1.jpg", depth=None, splits=False)
    ('birds/wren', None)
    >>> class_of("train/wren/day/1.jpg", depth=1, splits=True)
    'wren'

    Args:
        depth: how many folders name the class, at most; None for all.
        splits: whether top folders named train, val or test are splits, which do not belong to the class.
    """
    if path.startswith("/"):
        return PurePosixPath(path).parent.name or None  # the file lies outside of the root
    folders = path.split("/")[:-1]
    if splits and folders and folders[0].lower() in SPLIT_NAMES:
        del folders[0]
    return "/".join(folders[:depth]) or None


def split_folders(paths: Iterable[str]) -> dict[str, str]:
    """Return the split of each top folder that is one; nothing if the top folders are classes.

    They are splits if all of them are named after one; or if two different ones are, with class folders
    inside. Other folders are then beside the splits.

    >>> split_folders(["train/wren/1.jpg", "Val/gull/1.jpg", "icons/1.png"])
    {'Val': 'validation', 'train': 'train'}
    >>> split_folders(["train/1.jpg", "car/1.jpg"])
    {}
    """
    depths: dict[str, set[int]] = defaultdict(set)
    for path in paths:
        if "/" in path:
            depths[path.partition("/")[0]].add(path.count("/"))
    named = {top: SPLIT_NAMES[top.lower()] for top in sorted(depths) if top.lower() in SPLIT_NAMES}
    nested = all(1 not in depths[top] for top in named)
    if len(named) == len(depths) or (nested and len({*named.values()}) > 1):
        return named
    return {}


def splits_in_classes(classes: Iterable[str]) -> tuple[str, list[str]] | None:
    """Return a folder, and the folders in it that are named after splits but part of a class.

    >>> splits_in_classes(["photos/train/wren", "photos/test/wren"])
    ('photos', ['test', 'train'])
    """
    inside: dict[str, set[str]] = defaultdict(set)
    for name in classes:
        folders = name.split("/")
        for place, folder in enumerate(folders):
            if folder.lower() in SPLIT_NAMES:
                inside["/".join(folders[:place])].add(folder)
    several = {
        place: sorted(names)
        for place, names in inside.items()
        if len({SPLIT_NAMES[name.lower()] for name in names}) > 1
    }
    return min(several.items()) if several else None


def nesting_notes(classes: Sequence[str]) -> list[str]:
    """Return what to know where classes are folders in folders: the other choices, and what looks wrong.

    Args:
        classes: the names, each once, with all their folders.
    """
    deepest = max((name.count("/") for name in classes), default=0)
    if not deepest:
        return []
    example = next(name for name in classes if name.count("/") == deepest)
    others = [len({"/".join(name.split("/")[:level]) for name in classes}) for level in range(1, deepest + 1)]
    offers = [f"--depth 1 takes the top ones: {others[0]:,} class{'es' * (others[0] != 1)}"]
    offers += [f"--depth {level}: {count:,}" for level, count in enumerate(others[1:DEEPEST], start=2)]
    notes = [
        f"classes are the innermost folders, {len(classes):,} like {printable(example)}; {', '.join(offers)}"
    ]
    leaf, count = Counter(name.rpartition("/")[2] for name in classes).most_common(1)[0]
    if count > 1:
        notes.append(
            f"{count:,} classes end in the same name, {printable(leaf)}; if that is not a class of its own, "
            "but a camera, a day or the like, choose a --depth above it"
        )
    known = {*classes}
    mixed = sorted({up for name in classes for up in folders_above(name) if up in known})
    if mixed:
        notes.append(
            f"folders with images and with classes inside, each a class of its own: {len(mixed):,} "
            f"({some(mixed)})"
        )
    return notes
