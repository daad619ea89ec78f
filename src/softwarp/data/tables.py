"""A data set on disk -> Table(paths, labels, names, splits); one short reader for each layout.

Nothing is decoded here. Every listed file is looked for, so that a missing one shows before training starts.
"""

import csv
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

SPLITS = ("train", "validation", "test", "query", "gallery")
SUFFIXES = frozenset(
    (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")  # in lower case
)


@dataclass(frozen=True)
class Table:
    """The images of a data set: where they are, what they show and what they are for."""

    root: Path
    paths: tuple[str, ...]  # relative to root, with forward slashes; those of a CSV file may be absolute
    labels: Tensor  # int64, the position of an image's class in `names`
    names: tuple[str, ...]
    splits: tuple[str, ...] | None  # one of SPLITS for each image; None where the source has none


def read_table(name: str, root: Path) -> Table:
    """Return the table of a data set whose layout is `name`, one of TABLES, below `root`."""
    if name not in TABLES:
        near = get_close_matches(name, TABLES, n=3) or list(TABLES)
        raise ValueError(f"no data layout is called {name!r}; did you mean {' or '.join(near)}?")
    if not root.exists():
        raise FileNotFoundError(f"{root} does not exist; give the place of the images ({name})")
    table = TABLES[name](root)
    _check_files(table)
    return table


def read_cub(root: Path) -> Table:
    """Return CUB-200-2011: classes 1 to 100 train, 101 to 200 test."""
    root = _home(root, "images.txt", ("CUB_200_2011",), "get it with `softwarp data cub --to FOLDER`")
    images = dict(_rows(root / "images.txt", 2))
    classes = dict(_rows(root / "image_class_labels.txt", 2))
    names = {int(number): name for number, name in _rows(root / "classes.txt", 2)}
    if images.keys() != classes.keys():
        raise ValueError(f"{root}: images.txt and image_class_labels.txt list different images; unpack anew")
    numbers = [int(classes[image]) for image in images]
    return _in_halves(root, [f"images/{path}" for path in images.values()], numbers, names)


def read_cars(root: Path) -> Table:
    """Return Cars196: classes 1 to 98 train, 99 to 196 test, whatever folder an image lies in."""
    inner = ("CARS196", "cars196", "stanford_cars")
    if any((folder / "cars_annos.mat").exists() for folder in (root, *(root / name for name in inner))):
        root = _home(root, "cars_annos.mat", inner, "")
        content = _matlab(root / "cars_annos.mat", "annotations", "class_names")
        rows, names = content["annotations"], content["class_names"]
        paths = [str(path) for path in rows["relative_im_path"]]
        numbers = [int(number) for number in rows["class"]]
    else:
        cure = "`softwarp data cars` says what to fetch"
        root = _home(root, "cars_train", inner, cure)
        names = _matlab(_devkit(root, "cars_meta.mat"), "class_names")["class_names"]
        paths, numbers = [], []
        for part, file in (("train", "cars_train_annos.mat"), ("test", "cars_test_annos_withlabels.mat")):
            rows = _matlab(_devkit(root, file), "annotations")["annotations"]
            folder = f"cars_{part}"
            if (root / folder / folder).is_dir():  # one folder more in the copy on Kaggle
                folder = f"{folder}/{folder}"
            paths += [f"{folder}/{name}" for name in rows["fname"]]
            numbers += [int(number) for number in rows["class"]]
    return _in_halves(root, paths, numbers, {i: str(name) for i, name in enumerate(names, start=1)})


def read_sop(root: Path) -> Table:
    """Return Stanford Online Products with the split of its authors; a class is one product."""
    inner = ("Stanford_Online_Products",)
    root = _home(root, "Ebay_train.txt", inner, "get it with `softwarp data sop --to FOLDER`")
    paths, classes, splits = [], [], []
    for split in ("train", "test"):
        for _, number, _, path in _rows(root / f"Ebay_{split}.txt", 4, head=1):
            paths.append(path)
            classes.append(f"{int(number):05d} {path.split('/')[0].removesuffix('_final')}")
            splits.append(split)
    return _table(root, paths, classes, splits)


def read_inshop(root: Path) -> Table:
    """Return In-Shop Clothes Retrieval: train, query and gallery; a class is one item of clothing."""
    place = next((folder for folder in ("Eval", "Anno") if (root / folder / INSHOP_LIST).exists()), ".")
    rows = _rows(root / place / INSHOP_LIST, 3, head=2)
    below = [path.split("/", 1)[-1] for path, _, _ in rows]  # the list says img/WOMEN/...
    top = below[0].split("/")[0]
    home = next((home for home in ("img", "Img/img", "Img") if (root / home / top).is_dir()), None)
    if home is None:
        raise FileNotFoundError(
            f"{root} has no img/{top} nor Img/img/{top}; unpack img.zip into {root / 'Img'}"
        )
    return _table(
        root, [f"{home}/{path}" for path in below], [row[1] for row in rows], [row[2] for row in rows]
    )


def read_folder(root: Path) -> Table:
    """Return the images of root/<class>, or of root/<split>/<class> where all top folders are splits."""
    tops = _folders(root)
    aliases = {split: split for split in SPLITS} | {"val": "validation"}
    if not all(top.lower() in aliases for top in tops):
        found = [(path, name) for name in tops for path in _images(root, name)]
        return _table(root, [path for path, _ in found], [name for _, name in found], None)
    rows = [
        (path, name, aliases[top.lower()])
        for top in tops
        for name in _folders(root / top)
        for path in _images(root, f"{top}/{name}")
    ]
    return _table(root, *(list(column) for column in zip(*rows, strict=True)))


def read_csv(root: Path) -> Table:
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
    return _table(file.parent, paths, labels, splits if None not in splits else None)


TABLES: dict[str, Callable[[Path], Table]] = {
    "cub": read_cub,
    "cars": read_cars,
    "sop": read_sop,
    "inshop": read_inshop,
    "folder": read_folder,
    "csv": read_csv,
}
INSHOP_LIST = "list_eval_partition.txt"


def _table(root: Path, paths: Sequence[str], classes: Sequence[str], splits: Sequence[str] | None) -> Table:
    """The table of images whose classes are known by name; classes are numbered in the names' order."""
    names = sorted(set(classes))
    numbers = {name: number for number, name in enumerate(names)}
    labels = torch.tensor([numbers[name] for name in classes])
    wrong = sorted(set(splits or ()) - set(SPLITS))
    if wrong:
        raise ValueError(f"{root}: no split is called {wrong[0]!r}; there are {', '.join(SPLITS)}")
    return Table(root, tuple(paths), labels, tuple(names), None if splits is None else tuple(splits))


def _in_halves(root: Path, paths: Sequence[str], numbers: Sequence[int], names: dict[int, str]) -> Table:
    """The table of a data set whose first half of classes is for training, the field's rule."""
    order = {number: position for position, number in enumerate(sorted(names))}
    unknown = sorted(set(numbers) - order.keys())
    if unknown:
        raise ValueError(
            f"{root}: images of class {unknown[0]}, which has no name; the annotations are broken"
        )
    labels = [order[number] for number in numbers]
    splits = tuple("train" if label < len(names) // 2 else "test" for label in labels)
    return Table(root, tuple(paths), torch.tensor(labels), tuple(names[n] for n in order), splits)


def _home(root: Path, marker: str, inner: Iterable[str], cure: str) -> Path:
    """The folder that holds `marker`: root itself, or one inside it that is called as the archive has it."""
    for folder in (root, *(root / name for name in inner)):
        if (folder / marker).exists():
            return folder
    raise FileNotFoundError(f"{root} holds no {marker}, nor does {' or '.join(inner)} in it; {cure}")


def _rows(file: Path, columns: int, *, head: int = 0) -> list[list[str]]:
    """The words of each line of an annotation file, the last column taking what is left."""
    if not file.exists():
        raise FileNotFoundError(f"{file} is missing; unpack the data set's annotations there")
    lines = enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
    rows = [(number, line.split(maxsplit=columns - 1)) for number, line in lines if line.strip()][head:]
    wrong = next((number for number, row in rows if len(row) != columns), None)
    if wrong is not None:
        raise ValueError(f"{file}, line {wrong}: expected {columns} columns; unpack the data set anew")
    if not rows:
        raise ValueError(f"{file} lists nothing; unpack the data set anew")
    return [[word.strip() for word in row] for _, row in rows]


def _devkit(root: Path, name: str) -> Path:
    for file in (root / name, root / "devkit" / name):
        if file.exists():
            return file
    # cars_test_annos.mat, which comes with the devkit, has no classes
    raise FileNotFoundError(f"{root} holds no {name}, nor does devkit in it; `softwarp data cars` says more")


def _matlab(file: Path, *keys: str) -> dict[str, Any]:
    from scipy.io import loadmat

    try:
        content = loadmat(file, squeeze_me=True)
        return {key: np.atleast_1d(content[key]) for key in keys}
    except Exception as error:  # loadmat meets a broken file with errors of many kinds
        raise ValueError(f"{file} is not the MATLAB file it should be ({error}); fetch it again") from error


def _folders(root: Path) -> list[str]:
    """The names of the folders in `root`, where images may not lie beside them: they would have no class."""
    if not root.is_dir():
        raise NotADirectoryError(f"{root} is not a folder; give one that holds a folder for each class")
    with _scan(root) as entries:
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
    with _scan(root) as entries:
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
    with _scan(folder) as entries:
        return {entry.name for entry in entries if entry.is_file()}


def _scan(folder: Path) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
    try:
        return os.scandir(folder)
    except OSError as error:
        _unreadable(error)


def _unreadable(error: OSError) -> NoReturn:
    raise OSError(f"{error.filename} cannot be read ({error.strerror}); allow it with chmod") from error
