"""A folder of class folders -> the images in it; the listing's notes say what was left out."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from softwarp.data.classes import class_of, nesting_notes, split_folders, splits_in_classes
from softwarp.data.decode import SUFFIXES
from softwarp.data.readers import SPLIT_NAMES, ImageTable, named_table
from softwarp.data.walk import Tree, folders_above, is_text, read_tree, some


def read_folder(root: Path, depth: int | None = None) -> ImageTable:
    """Return the images of root/<class>, or of root/<split>/<class>; each folder with images is a class.

    Args:
        depth: how many folders below the root, or below a split, name the class, at most: 1 for the top ones.
            None for all.
    """
    if not root.is_dir():
        raise NotADirectoryError(f"{root} is not a folder; give a folder that holds one folder per class")
    tree = read_tree(root)
    images = [path for path in tree.images if is_text(path)]
    splits = split_folders(images)
    _refuse_half_named(root, images, splits, depth)
    rows, loose, beside = [], [], []
    for path in images:
        name = class_of(path, depth=depth, splits=bool(splits))
        if name is None:
            loose.append(path)
        elif splits and _top(path) not in splits:
            beside.append(path)
        else:
            rows.append((_top(path) if splits else "", name, path))
    if not rows:
        raise ValueError(_nothing(root, tree, loose))
    rows.sort()
    tops, names, paths = (list(column) for column in zip(*rows, strict=True))
    _refuse_splits_in_classes(root, names)
    notes = _notes(tree, loose, beside, _empty(tree, images))
    if depth is None:
        notes += nesting_notes(sorted({*names}))
    return named_table(root, paths, names, [splits[top] for top in tops] if splits else None, notes)


def _refuse_half_named(
    root: Path, images: Sequence[str], splits: Mapping[str, str], depth: int | None
) -> None:
    """Stop where folders look like splits, but are not named after one; `depth` makes them classes."""
    tops = sorted({_top(path) for path in images if "/" in path})
    with_images = {_top(path) for path in images if path.count("/") == 1}
    alike = [top for top in tops if top not in {*splits, *with_images} and _words(top) & SPLIT_NAMES.keys()]
    if alike and (depth is None or splits):
        others = [top for top in tops if top.lower() not in SPLIT_NAMES]
        cure = "" if splits else "; or, if the top folders are classes, set data.depth=1 (--depth 1)"
        raise ValueError(
            f"{root}: folders look like splits ({some([*splits, *alike])}), but not all are named after one "
            f"({some(others)}). Name them train, val and test and move other folders away{cure}"
        )


def _refuse_splits_in_classes(root: Path, names: Sequence[str]) -> None:
    """Stop where train, val or test would be a part of classes."""
    found = splits_in_classes(names)
    if found is None:
        return
    place, splits = found
    if not place:
        beside = sorted({_top(name) for name in names} - {*splits})
        raise ValueError(
            f"{root}: {some(splits)} would be classes{f' beside {some(beside)}' if beside else ''}, but are "
            "named after splits. Put class folders into them, like train/CLASS/IMAGE; or rename them, if "
            "they are classes"
        )
    level = place.count("/") + 1
    raise ValueError(
        f"{root}: {some([f'{place}/{split}' for split in splits])} are named after splits, but not at the "
        f"top. Give {root / place} if it holds the data, or move them up, like train/CLASS/IMAGE; "
        f"--depth {level} takes {place} as a class"
    )


def _empty(tree: Tree, images: Sequence[str]) -> list[str]:
    """The outermost folders without images in them or below."""
    filled = {folder for path in images for folder in folders_above(path)}
    empty = [path for path in tree.folders if path not in filled and is_text(path)]
    return [path for path in empty if "/" not in path or path.rpartition("/")[0] in filled]


def _notes(tree: Tree, loose: Sequence[str], beside: Sequence[str], empty: Sequence[str]) -> list[str]:
    """What is left out, and why, one line each."""
    notes = []
    if empty:
        notes.append(f"folders without images, left out: {len(empty)} ({some(empty)})")
    if beside:
        tops = sorted({_top(path) for path in beside})
        notes.append(
            f"folders beside the splits, left out: {len(tops)} ({some(tops)}) with {len(beside):,} images"
        )
    if loose:
        notes.append(f"images in no class folder, left out: {len(loose)} ({some(loose)}); move them into one")
    odd = sorted({_not_text(path) for path in (*tree.images, *tree.folders) if not is_text(path)})
    if odd:
        notes.append(f"names that are not UTF-8, left out: {len(odd)} ({some(odd)}); rename them")
    return notes + tree.left_out()


def _nothing(root: Path, tree: Tree, loose: Sequence[str]) -> str:
    """Why there are no images to use, and what to do."""
    found = "; ".join(_notes(tree, loose, [], [path for path in tree.folders if is_text(path)]))
    return (
        f"{root} holds no class folder with images: {found or 'it is empty'}. Make one folder per class; "
        f"images end in {', '.join(sorted(SUFFIXES))}"
    )


def _top(path: str) -> str:
    return path.partition("/")[0]


def _not_text(path: str) -> str:
    """The outermost folder, or the file, whose name is not UTF-8."""
    return next(place for place in (*folders_above(path), path) if not is_text(place))


def _words(name: str) -> set[str]:
    return set(re.findall("[a-z]+", name.lower()))
