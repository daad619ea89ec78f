"""Images of one's own: a folder of class folders, or a CSV file, to what they list."""

import csv
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn

from softwarp.data.readers import SPLITS, Listing, by_name

SUFFIXES = frozenset(
    (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")  # in lower case
)


def read_folder(root: Path) -> Listing:
    """Return the images of root/<class>, or of root/<split>/<class> where all top folders are splits."""
    tops = _folders(root)
    aliases = {split: split for split in SPLITS} | {"val": "validation"}
    if not all(top.lower() in aliases for top in tops):
        found = [(path, name) for name in tops for path in _images(root, name)]
        return by_name(root, [path for path, _ in found], [name for _, name in found], None)
    rows = [
        (path, name, aliases[top.lower()])
        for top in tops
        for name in _folders(root / top)
        for path in _images(root, f"{top}/{name}")
    ]
    return by_name(root, *(list(column) for column in zip(*rows, strict=True)))


def read_csv(root: Path) -> Listing:
    """Return the images that a CSV file lists as `path,label[,split]`; paths start from its folder."""
    file = _csv_file(root)
    folder = file.parent.absolute()
    seen: dict[str, tuple[str, str, str | None]] = {}
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines, strict=True, skipinitialspace=True)
            _check_columns(reader.fieldnames or (), file)
            for row in reader:
                place = f"{file}, line {reader.line_num}"
                _check_row(row, place)
                image = os.path.normpath(folder / row["path"])
                if image in seen:  # retrieval would find the image itself
                    raise ValueError(f"{place}: {row['path']} is listed twice; list each image once")
                seen[image] = (row["path"], row["label"], row.get("split"))
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{file} cannot be read: {error}; save it as CSV in UTF-8") from None
    if not seen:
        raise ValueError(f"{file} lists no images; write a line `path,label` for each below the head")
    paths, labels, splits = zip(*seen.values(), strict=True)
    return by_name(file.parent, paths, labels, splits if None not in splits else None)


def _folders(root: Path) -> list[str]:
    """The names of the folders in `root`, where images may not lie beside them: they would have no class."""
    if not root.is_dir():
        raise NotADirectoryError(f"{root} is not a folder; give one that holds a folder for each class")
    with scan(root) as entries:
        seen = [(entry.name, entry.is_dir()) for entry in entries if not entry.name.startswith(".")]
    folders = sorted(name for name, is_folder in seen if is_folder)
    stray = sorted(name for name, is_folder in seen if not is_folder and _is_image(name))
    if stray:
        raise ValueError(f"{root / stray[0]} lies in no class folder ({len(stray)} such); move it into one")
    if not folders:
        raise ValueError(f"{root} holds no folders ({len(seen)} other files); make one for each class")
    return folders


def _images(root: Path, below: str) -> list[str]:
    """The images of a class folder and of the folders in it, sorted, as paths relative to `root`."""
    paths, ignored = [], 0
    for folder, inner, files in os.walk(root / below, onerror=_unreadable):
        inner[:] = [name for name in inner if not name.startswith(".")]
        images = [name for name in files if _is_image(name)]
        place = Path(folder).relative_to(root).as_posix()
        paths += [f"{place}/{name}" for name in images]
        ignored += len(files) - len(images)
    if not paths:
        raise ValueError(
            f"{root / below} holds no image ({ignored} other files); images end in "
            f"{', '.join(sorted(SUFFIXES))}; add some or remove the folder"
        )
    return sorted(paths)


def _is_image(name: str) -> bool:
    return not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES


def _csv_file(root: Path) -> Path:
    if not root.is_dir():
        return root
    with scan(root) as entries:
        files = sorted(entry.name for entry in entries if entry.name.lower().endswith(".csv"))
    if len(files) != 1:
        raise ValueError(
            f"{root} holds {len(files)} .csv files ({', '.join(files[:3])}); name the file itself"
        )
    return root / files[0]


def _check_columns(columns: Sequence[str], file: Path) -> None:
    if not {"path", "label"} <= set(columns) <= {"path", "label", "split"}:
        raise ValueError(
            f"{file}, line 1: the columns must be path,label or path,label,split; got {','.join(columns)}"
        )


def _check_row(row: dict[str | None, Any], place: str) -> None:
    if None in row or None in row.values():
        raise ValueError(f"{place}: more or fewer cells than columns; quote a cell that holds a comma")
    if not row["path"] or not row["label"]:
        raise ValueError(f"{place}: path and label must not be empty")
    if row.get("split", "train") not in SPLITS:
        raise ValueError(f"{place}: no split is called {row['split']!r}; there are {', '.join(SPLITS)}")


def scan(folder: Path) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
    try:
        return os.scandir(folder)
    except OSError as error:
        _unreadable(error)


def _unreadable(error: OSError) -> NoReturn:
    raise OSError(f"{error.filename} cannot be read ({error.strerror}); allow it with chmod") from error
