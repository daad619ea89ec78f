"""A data set on disk -> Table(paths, labels, names, splits).

Nothing is decoded here. Every listed file is looked for, so that a missing one shows before training starts.
"""

import os
from collections import defaultdict
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from softwarp.data.folders import read_csv, read_folder, scan
from softwarp.data.readers import READERS, SPLITS

TABLES = READERS | {"folder": read_folder, "csv": read_csv}


@dataclass(frozen=True)
class Table:
    """The images of a data set: where they are, what they show and what they are for."""

    root: Path
    paths: tuple[str, ...]  # relative to root, with forward slashes; those of a CSV file may be absolute
    labels: NDArray[np.int64]  # the position of an image's class in `names`
    names: tuple[str, ...]
    splits: tuple[str, ...] | None  # one of SPLITS for each image; None where the source has none


def find_root(name: str, root: str | None) -> Path:
    """Return where the images are; an error says how to give the place if it is not given or not there."""
    if root is None:
        raise ValueError(f"the recipe does not say where {name} is; add data.root=FOLDER")
    place = Path(root).expanduser()
    if not place.exists():
        raise FileNotFoundError(
            f"{root} does not exist; give the place of the images, as data.root or --data"
        )
    return place


def read_table(name: str, root: Path) -> Table:
    """Return the table of a data set whose layout is `name`, one of TABLES, below `root`."""
    if name not in TABLES:
        near = get_close_matches(name, TABLES, n=3) or list(TABLES)
        raise ValueError(f"no data layout is called {name!r}; did you mean {' or '.join(near)}?")
    if not root.exists():
        raise FileNotFoundError(f"{root} does not exist; give the place of the images ({name})")
    home, paths, labels, names, splits = TABLES[name](root)
    wrong = sorted(set(splits or ()) - set(SPLITS))
    if wrong:
        raise ValueError(f"{home}: no split is called {wrong[0]!r}; there are {', '.join(SPLITS)}")
    numbers = np.array(labels, np.int64)
    table = Table(home, tuple(paths), numbers, tuple(names), None if splits is None else tuple(splits))
    _check_files(table)
    return table


def _check_files(table: Table) -> None:
    """Each folder is listed once, which takes seconds where a look at each of 120,000 files takes minutes."""
    wanted: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for path in table.paths:
        folder, name = os.path.split(path)
        wanted[folder].append((name, path))
    missing = []
    for folder, files in wanted.items():
        present = _files(table.root / folder)
        missing += [path for name, path in files if name not in present]
    if missing:
        first = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        place = "" if Path(missing[0]).is_absolute() else f" in {table.root}"
        raise FileNotFoundError(
            f"{len(missing)} of {len(table.paths)} listed images are missing{place}: {first}; "
            "unpack or copy the images anew"
        )


def _files(folder: Path) -> set[str]:
    if not folder.is_dir():
        return set()
    with scan(folder) as entries:
        return {entry.name for entry in entries if entry.is_file()}
