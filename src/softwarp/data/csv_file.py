"""A CSV file -> the images that it lists, as path, label and, optionally, split."""

import csv
import os
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Any

from softwarp.data.readers import SPLIT_NAMES, ImageTable, named_table
from softwarp.data.walk import entries_of
from softwarp.files import printable

COLUMNS = {"path": ("path", "image", "file", "filename"), "label": ("label",), "split": ("split",)}


def read_csv(root: Path) -> ImageTable:
    """Return the images that a CSV file lists; paths start from its folder."""
    file = find_csv(root)
    folder = file.parent.absolute()
    seen: dict[str, tuple[str, str, str | None]] = {}
    number = 1
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            head = lines.readline()
            separator = ";" if head.count(";") > head.count(",") else ","
            reader = csv.DictReader(
                chain([head], lines), delimiter=separator, strict=True, skipinitialspace=True
            )
            columns, notes = _columns(reader.fieldnames or (), file)
            for row in reader:
                number = reader.line_num
                path, label, split = _cells(row, columns, f"{file}, line {number}")
                image = os.path.normpath(folder / path)
                if image in seen:  # retrieval would find the image itself
                    raise ValueError(f"{file}, line {number}: {path} is listed twice; list each image once")
                seen[image] = (path, label, split)
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(
            f"{file} cannot be read after line {number}: {error}; close every quote and save it as UTF-8"
        ) from None
    if not seen:
        raise ValueError(f"{file} lists no images; write one line `path,label` per image below the header")
    paths, labels, splits = zip(*seen.values(), strict=True)
    return named_table(file.parent, paths, labels, splits if "split" in columns else None, notes)


def find_csv(root: Path) -> Path:
    """Return a CSV file, given itself or by the folder that holds no other."""
    if not root.is_dir():
        return root
    with entries_of(root) as entries:
        named = (entry for entry in entries if entry.name.lower().endswith(".csv"))
        files = sorted(entry.name for entry in named if entry.is_file())  # a pipe would be waited for
    if len(files) != 1:
        raise ValueError(
            f"{root} holds {len(files)} .csv files ({', '.join(files[:3])}); give the path of one of them"
        )
    return root / files[0]


def _columns(head: Sequence[str], file: Path) -> tuple[dict[str, str], list[str]]:
    """The columns with path, label and split, and a note on unused ones."""
    there = {name.strip().lower(): name for name in reversed(head)}
    known = ((role, name) for role, names in COLUMNS.items() for name in reversed(names) if name in there)
    columns = {role: there[name] for role, name in known}
    twice = [name for name in columns.values() if head.count(name) > 1]
    if twice:
        raise ValueError(f"{file}, line 1: column {twice[0]!r} appears twice; keep one")
    unused = [name for name in head if name not in columns.values()]
    if not {"path", "label"} <= columns.keys():
        raise ValueError(
            f"{file}, line 1: the columns must be path,label or path,label,split; got {','.join(head)}"
        )
    near = get_close_matches("split", [name.strip().lower() for name in unused], n=1, cutoff=0.8)
    if near and "split" not in columns:
        raise ValueError(f"{file}, line 1: a column is called {near[0]!r}; did you mean split?")
    return columns, [f"unused columns: {', '.join(map(printable, unused))}"] if unused else []


def _cells(row: dict[str | Any, Any], columns: dict[str, str], place: str) -> tuple[str, str, str | None]:
    """The path, label and split of a row."""
    if None in row or None in row.values():
        raise ValueError(f"{place}: more or fewer cells than columns; quote a cell that contains a separator")
    path, label = row[columns["path"]], row[columns["label"]].strip()
    if not path or not label:
        raise ValueError(f"{place}: path and label must not be empty")
    if "\0" in path + label:
        raise ValueError(f"{place}: path and label must not hold a zero byte; save the file as UTF-8")
    if "split" not in columns:
        return path, label, None
    word = row[columns["split"]].strip()
    if word.lower() not in SPLIT_NAMES:
        raise ValueError(f"{place}: no split is called {word!r}; there are {', '.join(SPLIT_NAMES)}")
    return path, label, SPLIT_NAMES[word.lower()]
