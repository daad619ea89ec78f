"""Pairs of faces to verify.

They come as insightface's `.bin` (images included), as LFW's `pairs.txt`, or as a table of paths (`.tsv`,
`.csv`) with the columns `first`, `second`, `same` and, if folds are given, `fold`.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from softwarp.data.decode import SUFFIXES
from softwarp.data.pickles import read_plain_pickle
from softwarp.data.stores import FileStore, PackStore, Store

TRIED = 100  # so many files of a list are looked for before anything is embedded
YES, NO = ("1", "true", "yes", "same"), ("0", "false", "no", "different", "-1")


@dataclass(frozen=True)
class PairSet:
    """Pairs of images, each image once. Each fold is judged by the threshold that is best on the others."""

    name: str
    images: Store
    first: NDArray[np.int64]  # positions in `images`
    second: NDArray[np.int64]
    same: NDArray[np.bool_]
    folds: NDArray[np.int64] | None = None  # None: ten runs of successive pairs


class BinFile:
    """The images of a verification `.bin`: a pickle `(images, flags)`; images 2i and 2i + 1 are pair i."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            content = read_plain_pickle(path.read_bytes())
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        if not isinstance(content, tuple | list) or len(content) != 2:
            raise ValueError(f"{path}: expected images and flags; this is not a verification file")
        images, flags = content
        if not isinstance(images, list | tuple) or not all(isinstance(each, bytes) for each in images):
            raise ValueError(f"{path}: its first part is not a list of image files")
        if not isinstance(flags, list | tuple) or not all(flag in (0, 1) for flag in flags):
            raise ValueError(f"{path}: its second part is not a list of flags")
        if not flags or len(images) != 2 * len(flags):
            raise ValueError(f"{path}: {len(images)} images for {len(flags)} pairs; there must be two each")
        self.images: list[bytes] = list(images)
        self.same = np.array(flags, np.bool_)

    def __len__(self) -> int:
        return len(self.images)

    def read(self, position: int) -> bytes:
        return self.images[position]

    def name(self, position: int) -> str:
        return f"{self.path.name}/{position}"


def read_pairs(path: Path, images: Path | None = None, *, shorter_side: int | None = None) -> PairSet:
    """Return the pairs of a `.bin`, `pairs.txt`, `.tsv` or `.csv` file.

    Args:
        images: the folder that paths start from; by default `images` beside the file, or the file's own
            folder.
        shorter_side: as in `read_image`; a model's own `resize` decodes as its training did.
    """
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "does not exist"
        raise FileNotFoundError(f"{path} {problem}; give a .bin, pairs.txt, .tsv or .csv file of pairs")
    if path.suffix == ".bin":
        pack = BinFile(path)
        numbers = np.arange(len(pack))
        store = PackStore(pack, numbers.tolist(), shorter_side=shorter_side)
        return PairSet(path.stem, store, numbers[::2], numbers[1::2], pack.same)
    root = images_beside(path, images)
    if path.suffix == ".txt":
        listed = load_pairs(path)
        rows = [(_face(root, *left), _face(root, *right), same) for left, right, same in listed]
        return _pair_set(_name_of(path), root, rows, _listed_folds(path, len(rows)), shorter_side)
    table = read_rows(path, ("first", "second", "same"))
    rows = [(row["first"], row["second"], read_flag(row["same"], path, line)) for line, row in table]
    folds = [_number(row["fold"], path, line) for line, row in table] if "fold" in table[0][1] else None
    return _pair_set(path.stem, root, rows, folds, shorter_side)


def images_beside(path: Path, images: Path | None) -> Path:
    """Return the folder that the paths in a list start from."""
    if images is not None:
        if not images.is_dir():
            raise FileNotFoundError(f"{images} is not a folder; give the folder of the images with --images")
        return images
    beside = path.parent / "images"
    return beside if beside.is_dir() else path.parent


def _pair_set(
    name: str,
    root: Path,
    rows: Sequence[tuple[str, str, bool]],
    folds: Sequence[int] | None,
    shorter_side: int | None,
) -> PairSet:
    places: dict[str, int] = {}
    for first, second, _ in rows:
        places.setdefault(first, len(places))
        places.setdefault(second, len(places))
    if not any((root / path).is_file() for path in list(places)[:TRIED]):
        first = next(iter(places))
        raise FileNotFoundError(
            f"{name}: {root / first} is missing, and so are others; give the folder that paths start from "
            "with --images, which holds for every list, or verify the lists one by one"
        )
    return PairSet(
        name,
        FileStore(root, list(places), shorter_side=shorter_side),
        np.array([places[first] for first, _, _ in rows]),
        np.array([places[second] for _, second, _ in rows]),
        np.array([same for _, _, same in rows]),
        None if folds is None else np.array(folds),
    )


def _name_of(path: Path) -> str:
    """A set called pairs.txt is known by its folder."""
    return path.resolve().parent.name if path.stem == "pairs" else path.stem


def _face(root: Path, name: str, number: int) -> str:
    """The file of a person's n-th image in LFW's layout; JPEG if there is none, so that it is reported."""
    stem = f"{name}/{name}_{number:04d}"
    found = next((stem + suffix for suffix in sorted(SUFFIXES) if (root / (stem + suffix)).is_file()), None)
    return found or f"{stem}.jpg"


def load_pairs(path: Path) -> list[tuple[tuple[str, int], tuple[str, int], bool]]:
    """Return the pairs of LFW's pairs.txt: `name 1 4` for one person, `name 1 other 2` for two.

    Each is two images, a name and a number, and whether they show one person.
    """
    pairs = []
    for number, line in numbered_lines(path):
        words = line.split("\t") if "\t" in line else line.split()
        if number == 1 and len(words) in (1, 2) and all(word.isdigit() for word in words):
            continue  # the header: number of folds, pairs per fold
        if len(words) == 3:
            words.insert(2, words[0])
        if len(words) != 4 or not (words[1].isdigit() and words[3].isdigit()):
            raise ValueError(f"{path}, line {number}: expected `name 1 4` or `name 1 other 2`; got {line!r}")
        pairs.append(((words[0], int(words[1])), (words[2], int(words[3])), words[0] == words[2]))
    if not pairs:
        raise ValueError(f"{path} holds no pairs")
    return pairs


def _listed_folds(path: Path, pairs: int) -> list[int] | None:
    """The fold of each pair by the first line of pairs.txt: number of folds, pairs of each kind in one."""
    head = read_lines(path)[0].split()
    if len(head) != 2 or not all(word.isdigit() for word in head) or int(head[0]) < 2:
        return None
    folds, each = map(int, head)
    if pairs != folds * 2 * each:
        raise ValueError(
            f"{path}: its first line promises {folds} folds of {each} + {each} pairs, but there are {pairs}; "
            "mend or remove that line"
        )
    return [pair // (2 * each) for pair in range(pairs)]


def read_lines(path: Path) -> list[str]:
    """Return the lines, cut only at line ends: str.splitlines also cuts at U+2028, which a name may hold."""
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; give a list of images")
    try:
        return [line.rstrip("\r") for line in path.read_text(encoding="utf-8-sig").split("\n")]
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text; save it as UTF-8") from None


def numbered_lines(path: Path) -> list[tuple[int, str]]:
    """Return the lines that are not blank, each with its number."""
    return [(number, line) for number, line in enumerate(read_lines(path), start=1) if line.strip()]


def read_rows(path: Path, needed: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    """Return the rows of a table with a header, by column, with their line numbers."""
    head, *lines = read_lines(path)
    between = "\t" if "\t" in head else ","
    names = [word.strip().lower() for word in head.split(between)]
    missing = [name for name in needed if name not in names]
    if missing:
        raise ValueError(f"{path} has no column {missing[0]!r}; its header must name {', '.join(needed)}")
    rows = []
    try:
        found = list(csv.reader(lines, delimiter=between))
    except csv.Error as error:  # such as a quote that is never closed
        raise ValueError(f"{path} is not a table ({error})") from None
    for number, words in enumerate(found, start=2):
        if words and len(words) != len(names):
            raise ValueError(f"{path}, line {number}: {len(words)} columns where the header has {len(names)}")
        if words:
            rows.append((number, {name: word.strip() for name, word in zip(names, words, strict=True)}))
    if not rows:
        raise ValueError(f"{path} has no rows")
    return rows


def read_flag(word: str, path: Path, line: int) -> bool:
    """Return whether a word in a list says that two images show one person."""
    if word.lower() not in YES + NO:
        raise ValueError(f"{path}, line {line}: same must be 1 or 0, not {word!r}")
    return word.lower() in YES


def _number(word: str, path: Path, line: int) -> int:
    if not word.isdigit():
        raise ValueError(f"{path}, line {line}: {word!r} is not a whole number")
    return int(word)
