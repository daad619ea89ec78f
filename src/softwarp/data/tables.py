"""A data set on disk -> its ImageTable.

Nothing is decoded here. Every listed file is checked: missing ones are named before training starts.
"""

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from softwarp.data.csv_file import read_csv
from softwarp.data.folders import read_folder
from softwarp.data.readers import READERS, SPLITS, ImageTable
from softwarp.data.records import read_records
from softwarp.data.shards import INDEX, read_shards
from softwarp.data.walk import entries_of, is_text, some
from softwarp.files import printable
from softwarp.names import did_you_mean

TABLES = READERS | {"folder": read_folder, "csv": read_csv, "records": read_records, "shards": read_shards}


def layout_of(root: Path) -> str:
    """Return the layout that a user's file or folder has: csv, records, shards or folder."""
    if root.suffix.lower() == ".rec" or (root / "train.rec").is_file():
        return "records"
    if (root / INDEX).is_file():
        return "shards"
    return "csv" if root.is_file() else "folder"


def find_root(name: str, root: str | None) -> Path:
    """Return where the images are; if the path is missing or wrong, the error says how to set it."""
    if root is None:
        raise ValueError(f"the recipe does not say where {name} is; add data.root=FOLDER")
    place = Path(root).expanduser()
    if not place.exists():
        raise FileNotFoundError(
            f"{root} does not exist; give the path of the images with data.root or --data"
        )
    return place


def read_table(name: str, root: Path, *, depth: int | None = None, strict: bool = False) -> ImageTable:
    """Return the table of a data set in `root` with the layout `name`, one of TABLES.

    Listed images that are missing stay in the table, are skipped like broken ones, and are named in its
    notes. It is an error if all are missing.

    Args:
        depth: depth of the class folders, as in `read_folder`.
        strict: a single missing image is an error.
    """
    if name not in TABLES:
        answer = did_you_mean(name, TABLES, f"there are {', '.join(TABLES)}", most=3)
        raise ValueError(f"no data layout is called {name!r}; {answer}")
    if not root.exists():
        raise FileNotFoundError(f"{root} does not exist; give the folder that holds the images ({name})")
    if not is_text(str(root)):
        raise ValueError(f"{printable(str(root))}: the name is not UTF-8; rename the folder")
    if depth is not None and name != "folder":
        raise ValueError(f"data.depth is for folders of class folders, but {name} has a list; omit it")
    table = read_folder(root, depth) if name == "folder" else TABLES[name](root)
    wrong = sorted(set(table.splits or ()) - set(SPLITS))
    if wrong:
        raise ValueError(f"{table.root}: no split is called {wrong[0]!r}; there are {', '.join(SPLITS)}")
    missing = _missing(table) if table.pack is None else []
    if len(missing) == len(table.paths) or (strict and missing):
        raise FileNotFoundError(f"{_some_missing(missing, table)}; unpack or copy the images again")
    skipped = [f"{_some_missing(missing, table)}; skipping them"] if missing else []
    return replace(table, notes=(*skipped, *table.notes))


def _missing(table: ImageTable) -> list[str]:
    """The listed files that are not there, by a look into each folder: 120,000 files take seconds."""
    wanted: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for path in table.paths:
        folder, name = os.path.split(path)
        wanted[folder].append((name, path))
    missing = []
    for folder, files in wanted.items():
        present = _files(table.root / folder)
        missing += [path for name, path in files if name not in present]
    return missing


def _some_missing(missing: Sequence[str], table: ImageTable) -> str:
    place = "" if Path(missing[0]).is_absolute() else f" in {table.root}"
    return f"{len(missing):,} of {len(table.paths):,} listed images are missing{place}: {some(missing)}"


def _files(folder: Path) -> set[str]:
    if not folder.is_dir():
        return set()
    with entries_of(folder) as entries:
        return {entry.name for entry in entries if _is_there(entry)}


def _is_there(entry: os.DirEntry[str]) -> bool:
    """Whether a name leads to anything but a folder; a pipe is not a missing file, but a broken image."""
    try:
        return entry.is_file() or (not entry.is_dir() and Path(entry.path).exists())
    except OSError:  # a link to itself
        return False
