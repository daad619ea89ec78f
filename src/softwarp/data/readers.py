"""The known data sets: cub, cars, sop, inshop; one short reader each, from a folder to what it lists."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from softwarp.data.decode import read_content

SPLITS = ("train", "validation", "test", "query", "gallery")
SPLIT_NAMES = {split: split for split in SPLITS} | {  # common names, in lower case
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "dev": "validation",
    "testing": "test",
    "eval": "test",
}
INSHOP_LIST = "list_eval_partition.txt"


class Pack(Protocol):
    """Many image files in few large ones, by position. For a damaged one `read` raises a ValueError."""

    def __len__(self) -> int: ...
    def read(self, position: int) -> bytes: ...
    def name(self, position: int) -> str: ...


@dataclass(frozen=True)
class ImageTable:
    """The images of a data set: their files, classes and splits, as a source lists them."""

    root: Path
    paths: tuple[str, ...]  # relative to root, with forward slashes; those of a CSV file may be absolute
    labels: NDArray[np.int64]  # the position of an image's class in `names`
    names: tuple[str, ...]
    splits: tuple[str, ...] | None  # one of SPLITS per image; None if the source has none
    notes: tuple[str, ...] = ()  # what was left out or is missing, one line each
    pack: Pack | None = None  # holds the images, if they are not files of their own
    shards: NDArray[np.int32] | None = None  # the file of the pack that each image is in, if there are many

    def content(self, position: int) -> bytes:
        """Return the bytes of an image file; a ValueError names it if it cannot be read."""
        if self.pack is not None:
            return self.pack.read(position)
        return read_content(self.root / self.paths[position])


def named_table(
    root: Path,
    paths: Sequence[str],
    classes: Sequence[str],
    splits: Sequence[str] | None,
    notes: Sequence[str] = (),
) -> ImageTable:
    """Return the table of images with named classes, numbered in the order of the names."""
    names = sorted(set(classes))
    numbers = {name: number for number, name in enumerate(names)}
    labels = np.array([numbers[name] for name in classes], np.int64)
    kept = None if splits is None else tuple(splits)
    return ImageTable(root, tuple(paths), labels, tuple(names), kept, tuple(notes))


def in_halves(root: Path, paths: Sequence[str], numbers: Sequence[int], names: dict[int, str]) -> ImageTable:
    """Return the table of a data set that trains on the first half of its classes, the usual rule."""
    order = {number: position for position, number in enumerate(sorted(names))}
    unknown = sorted(set(numbers) - order.keys())
    if unknown:
        raise ValueError(
            f"{root}: images of class {unknown[0]}, which has no name; unpack the annotations again"
        )
    labels = np.array([order[number] for number in numbers], np.int64)
    splits = tuple("train" if label < len(names) // 2 else "test" for label in labels.tolist())
    return ImageTable(root, tuple(paths), labels, tuple(names[number] for number in order), splits)


def read_cub(root: Path) -> ImageTable:
    """Return CUB-200-2011: classes 1 to 100 train, 101 to 200 test."""
    root = _home(root, "images.txt", ("CUB_200_2011",), "get it with `softwarp data cub --to FOLDER`")
    images = dict(_rows(root / "images.txt", 2))
    classes = dict(_rows(root / "image_class_labels.txt", 2))
    names = {int(number): name for number, name in _rows(root / "classes.txt", 2)}
    if images.keys() != classes.keys():
        raise ValueError(
            f"{root}: images.txt and image_class_labels.txt list different images; unpack them again"
        )
    numbers = [int(classes[image]) for image in images]
    return in_halves(root, [f"images/{path}" for path in images.values()], numbers, names)


def read_cars(root: Path) -> ImageTable:
    """Return Cars196: classes 1 to 98 train, 99 to 196 test, whichever folder an image is in."""
    inner = ("CARS196", "cars196", "stanford_cars")
    if any((folder / "cars_annos.mat").exists() for folder in (root, *(root / name for name in inner))):
        root = _home(root, "cars_annos.mat", inner, "")
        content = _matlab(root / "cars_annos.mat", "annotations", "class_names")
        rows, names = content["annotations"], content["class_names"]
        paths = [str(path) for path in rows["relative_im_path"]]
        numbers = [int(number) for number in rows["class"]]
    else:
        cure = "`softwarp data cars` says what to get"
        root = _home(root, "cars_train", inner, cure)
        names = _matlab(_devkit(root, "cars_meta.mat"), "class_names")["class_names"]
        paths, numbers = [], []
        for part, file in (("train", "cars_train_annos.mat"), ("test", "cars_test_annos_withlabels.mat")):
            rows = _matlab(_devkit(root, file), "annotations")["annotations"]
            folder = f"cars_{part}"
            if (root / folder / folder).is_dir():  # one more folder in the copy on Kaggle
                folder = f"{folder}/{folder}"
            paths += [f"{folder}/{name}" for name in rows["fname"]]
            numbers += [int(number) for number in rows["class"]]
    return in_halves(root, paths, numbers, {i: str(name) for i, name in enumerate(names, start=1)})


def read_sop(root: Path) -> ImageTable:
    """Return Stanford Online Products with the split of its authors; a class is one product."""
    inner = ("Stanford_Online_Products",)
    root = _home(root, "Ebay_train.txt", inner, "get it with `softwarp data sop --to FOLDER`")
    paths, classes, splits = [], [], []
    for split in ("train", "test"):
        for _, number, _, path in _rows(root / f"Ebay_{split}.txt", 4, head=1):
            paths.append(path)
            classes.append(f"{int(number):05d} {path.split('/')[0].removesuffix('_final')}")
            splits.append(split)
    return named_table(root, paths, classes, splits)


def read_inshop(root: Path) -> ImageTable:
    """Return In-Shop Clothes Retrieval: train, query and gallery; a class is one item of clothing."""
    place = next((folder for folder in ("Eval", "Anno") if (root / folder / INSHOP_LIST).exists()), ".")
    rows = _rows(root / place / INSHOP_LIST, 3, head=2)
    below = [path.split("/", 1)[-1] for path, _, _ in rows]  # the list says img/WOMEN/...
    top = below[0].split("/")[0]
    home = next((home for home in ("img", "Img/img", "Img") if (root / home / top).is_dir()), None)
    if home is None:
        raise FileNotFoundError(
            f"{root} has neither img/{top} nor Img/img/{top}; unpack img.zip into {root / 'Img'}"
        )
    return named_table(
        root, [f"{home}/{path}" for path in below], [row[1] for row in rows], [row[2] for row in rows]
    )


READERS: dict[str, Callable[[Path], ImageTable]] = {
    "cub": read_cub,
    "cars": read_cars,
    "sop": read_sop,
    "inshop": read_inshop,
}


def _home(root: Path, marker: str, inner: Iterable[str], cure: str) -> Path:
    """The folder that holds `marker`: root itself, or one inside it with the archive's name."""
    for folder in (root, *(root / name for name in inner)):
        if (folder / marker).exists():
            return folder
    raise FileNotFoundError(f"{root} holds no {marker}, and neither does {' or '.join(inner)} in it; {cure}")


def _rows(file: Path, columns: int, *, head: int = 0) -> list[list[str]]:
    """The words of each line of an annotation file; the last column takes the rest."""
    if not file.exists():
        raise FileNotFoundError(f"{file} is missing; unpack the data set's annotations there")
    # str.splitlines and str.split would also cut at U+2028 and the like, which names may contain.
    lines = ((number, line.strip()) for number, line in enumerate(_text(file).split("\n"), start=1))
    rows = [(number, re.split("[ \t]+", line, maxsplit=columns - 1)) for number, line in lines if line][head:]
    wrong = next((number for number, row in rows if len(row) != columns), None)
    if wrong is not None:
        raise ValueError(f"{file}, line {wrong}: expected {columns} columns; unpack the data set again")
    if not rows:
        raise ValueError(f"{file} is empty; unpack the data set again")
    return [[word.strip() for word in row] for _, row in rows]


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text ({error}); unpack the data set again") from None


def _devkit(root: Path, name: str) -> Path:
    for file in (root / name, root / "devkit" / name):
        if file.exists():
            return file
    # cars_test_annos.mat, which comes with the devkit, has no classes
    raise FileNotFoundError(
        f"neither {root} nor its devkit folder holds {name}; `softwarp data cars` says more"
    )


def _matlab(file: Path, *keys: str) -> dict[str, Any]:
    from scipy.io import loadmat

    try:
        content = loadmat(file, squeeze_me=True)
        return {key: np.atleast_1d(content[key]) for key in keys}
    except Exception as error:  # loadmat raises many kinds of errors for a broken file
        raise ValueError(f"{file} is not the expected MATLAB file ({error}); download it again") from error
