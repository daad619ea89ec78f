"""Reads embeddings and labels made elsewhere.

Every wrong input is a ValueError that says what is wrong and how to fix it.
"""

from __future__ import annotations

import csv
import io
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from zipfile import BadZipFile, ZipFile, is_zipfile
from zlib import error as DeflateError

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Tables = tuple[Tensor, Tensor, Tensor | None, Tensor | None]


@dataclass(frozen=True)
class LabelFile:
    """The class of each row, as text, and whether that is a name or only a number counted in one file."""

    path: Path
    classes: list[str]
    named: bool


def load_tables(
    source: Path,
    labels: Path | None,
    gallery: Path | None,
    gallery_labels: Path | None,
    queries: Path | None,
    key: str | None,
) -> Tables:
    """Return embeddings, labels, gallery and its labels from the files that a user names."""
    if queries is not None and gallery is not None:
        raise ValueError("--queries splits one table into queries and gallery; omit --gallery or --queries")
    if gallery is None and gallery_labels is not None:
        raise ValueError("--gallery-labels needs --gallery")
    points, own = load_embeddings(source, key), read_labels(labels or _holder(source, "--labels"))
    _check_length(own, points)
    if gallery is not None:
        items = load_embeddings(gallery, key)
        theirs = read_labels(gallery_labels or _holder(gallery, "--gallery-labels"))
        _check_length(theirs, items)
        check_same_names(own, theirs)
        numbers, item_numbers = number_labels(own.classes, theirs.classes)
        return points, numbers, items, item_numbers
    (numbers,) = number_labels(own.classes)
    if queries is None:
        return points, numbers, None, None
    asked = torch.zeros(len(points), dtype=torch.bool)
    asked[load_rows(queries, len(points))] = True
    if asked.all():
        raise ValueError(f"{queries} names every row of {source}, which leaves no gallery; omit --queries")
    return points[asked], numbers[asked], points[~asked], numbers[~asked]


def _holder(path: Path, option: str) -> Path:
    if path.suffix not in (".npz", ".safetensors"):
        raise ValueError(f"{path} holds no labels; give them with {option}")
    return path


def _check_length(labels: LabelFile, points: Tensor) -> None:
    if len(labels.classes) != len(points):
        raise ValueError(
            f"{labels.path} has {len(labels.classes)} labels for {len(points)} embeddings; "
            "give one label per embedding"
        )


def check_same_names(queries: LabelFile, gallery: LabelFile) -> None:
    """Raise a ValueError if the classes of two files cannot be known to be the same.

    Names mean the same in every file. Numbers without names were counted in one file; only if both files
    have the same numbers are these taken to mean the same.
    """
    if (queries.named and gallery.named) or set(queries.classes) == set(gallery.classes):
        return
    options = {queries.path: "--labels", gallery.path: "--gallery-labels"}
    numbered = [each for each in (queries, gallery) if not each.named]
    if len(numbered) == 2:
        counts = " and ".join(str(len(set(each.classes))) for each in numbered)
        why = f"{queries.path} and {gallery.path} have other numbers of classes ({counts}) without names"
    else:
        (named,) = (each for each in (queries, gallery) if each.named)
        why = f"{numbered[0].path} numbers its classes, and {named.path} names them"
    cure = " and ".join(f"{options[each.path]} FILE" for each in numbered)
    raise ValueError(f"{why}, so they cannot be matched; give the names, .txt or .csv, with {cure}")


def load_embeddings(path: Path, key: str | None = None) -> Tensor:
    """Return embeddings [N, D] of .npy, .npz or .safetensors; `key` names the array if there are several."""
    _check_file(path, (".npy", ".npz", ".safetensors"), "embeddings")
    if path.suffix == ".npy":
        array = _read_array(path)
    else:
        arrays = _read_arrays(path)
        array = arrays[_choose(list(arrays), key, path)]
    if array.ndim != 2 or array.dtype.kind not in "fiu" or 0 in array.shape:
        raise ValueError(f"{path}: embeddings must be numbers [rows, dimensions]; got {_shape(array)}")
    exact = np.can_cast(array.dtype, np.float32)  # float32 cannot hold every int32
    return torch.from_numpy(array.astype(np.float32 if exact else np.float64))


def read_labels(path: Path) -> LabelFile:
    """Return one label per row, as text: .npy, .txt (one per line), .csv (column `label` or the only one).

    An .npz or .safetensors file of embeddings may hold them as its array `labels`; if these are numbers, its
    array `classes` may name them, as in the files of `softwarp embed`.
    """
    _check_file(path, (".npy", ".csv", ".txt", ".npz", ".safetensors"), "labels")
    named = path.suffix in (".txt", ".csv")
    if named:
        classes = _lines(path) if path.suffix == ".txt" else _csv_column(path)
    else:
        array, names = _label_arrays(path)
        named = array.dtype.kind == "U" or bool(names)
        classes = [names[label] if names else str(label) for label in array.tolist()]
    classes = [label.strip() for label in classes]
    if not classes:
        raise ValueError(f"{path} holds no labels")
    if "" in classes:
        raise ValueError(f"{path}: the label of row {classes.index('')} is empty; give every row a class")
    return LabelFile(path, classes, named)


def number_labels(*tables: list[str]) -> list[Tensor]:
    """Return numbers for labels: the same one for the same label in any of the tables.

    >>> number_labels(["wren", "gull"], ["gull"])
    [tensor([1, 0]), tensor([0])]
    """
    names = {name: number for number, name in enumerate(sorted(set().union(*tables)))}
    return [torch.tensor([names[name] for name in table]) for table in tables]


def load_rows(path: Path, count: int) -> Tensor:
    """Return the row numbers in an .npy or .txt file, each once and below `count`: the queries."""
    try:
        rows = torch.tensor([int(label) for label in read_labels(path).classes])
    except ValueError as error:
        raise ValueError(f"{path} must hold row numbers, one per line ({error})") from None
    wrong = rows[(rows < 0) | (rows >= count)]
    if len(wrong):
        raise ValueError(f"{path}: row {int(wrong[0])} does not exist; rows are numbered 0 to {count - 1}")
    if len(set(rows.tolist())) < len(rows):
        raise ValueError(f"{path}: a row is listed twice; list each query once")
    return rows


def _check_file(path: Path, suffixes: tuple[str, ...], what: str) -> None:
    if not path.is_file():
        raise ValueError(f"{path} does not exist; give a run folder or a file of {what}")
    if path.suffix not in suffixes:
        raise ValueError(f"{path}: {what} must be {', '.join(suffixes)}; save them as one of these")


def _read_numpy(path: Path) -> Any:
    try:
        _check_promises(path)
        loaded = np.load(path, allow_pickle=False)
        return loaded if isinstance(loaded, np.ndarray) else {name: loaded[name] for name in loaded.files}
    except (ValueError, OSError, EOFError, BadZipFile, DeflateError) as error:
        raise ValueError(
            f"{path} cannot be read ({error}); save it again as {path.suffix}, without pickle"
        ) from None


def _check_promises(path: Path) -> None:
    """Raise a ValueError if a header promises more than follows: NumPy would make room for it."""
    if not is_zipfile(path):
        with path.open("rb") as stream:
            _check_promise(stream, path.stat().st_size)
        return
    with ZipFile(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as stream:
                _check_promise(stream, member.file_size)


def _check_promise(stream: IO[bytes], size: int) -> None:
    if stream.read(len(np.lib.format.MAGIC_PREFIX)) != np.lib.format.MAGIC_PREFIX:
        return  # NumPy says what it is
    stream.seek(0)
    first = np.lib.format.read_magic(stream) == (1, 0)
    read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(stream)
    promised = math.prod(shape) * dtype.itemsize
    if promised > size - stream.tell():
        raise ValueError(
            f"its header promises {list(shape)} of {dtype}, and {size - stream.tell()} bytes follow"
        )


def _read_array(path: Path) -> NDArray[Any]:
    """The one array of an .npy file."""
    array = _read_numpy(path)
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{path} holds named arrays; rename it to .npz")
    return array


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The named arrays of an .npz or .safetensors file."""
    if path.suffix == ".npz":
        loaded = _read_numpy(path)
        if not isinstance(loaded, dict):
            raise ValueError(f"{path} holds a single array; save it as .npy")
        return loaded
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} cannot be read ({error}); save it again as .safetensors") from None
    # NumPy knows neither bfloat16 nor the floats of 8 bits.
    small = {name for name, each in tensors.items() if each.is_floating_point() and each.itemsize < 4}
    return {name: (each.float() if name in small else each).numpy() for name, each in tensors.items()}


def _label_arrays(path: Path) -> tuple[NDArray[Any], list[str]]:
    """The labels of a file, and the names of the classes if the labels are numbers that it names."""
    arrays = {"labels": _read_array(path)} if path.suffix == ".npy" else _read_arrays(path)
    if "labels" not in arrays:
        raise ValueError(f"{path} has no array `labels`; give the labels with --labels")
    labels = arrays["labels"]
    if labels.ndim != 1 or labels.dtype.kind not in "iuU":
        raise ValueError(f"{path}: labels must be a row of whole numbers or text; got {_shape(labels)}")
    if labels.dtype.kind == "U":
        return labels, []
    if path.name == "embeddings.safetensors" and (path.parent / "items.csv").is_file():
        return np.array(_classes_of_a_run(path.parent / "items.csv") or labels), []
    names = _class_names(arrays.get("classes", np.empty(0)))
    if names and len(labels) and not 0 <= labels.min() <= labels.max() < len(names):
        raise ValueError(
            f"{path}: a label is {int(labels.max())}, but `classes` names {len(names)}; save it again"
        )
    return labels, names


def _classes_of_a_run(items: Path) -> list[str]:
    """The class of each row of a run's embeddings, from the list of images beside them."""
    with items.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return [row["class"] for row in csv.DictReader(file) if row["row"] and row["split"] != "gallery"]


def _class_names(table: NDArray[Any]) -> list[str]:
    """Names of classes: text, or bytes that each end in a zero; none if the array is something else."""
    if table.ndim == 1 and table.dtype.kind == "U":
        return [str(name) for name in table.tolist()]
    if table.ndim == 1 and table.dtype == np.uint8 and table.size and not table[-1]:
        return [os.fsdecode(name) for name in table.tobytes().split(b"\0")[:-1]]
    return []


def _choose(names: list[str], key: str | None, path: Path) -> str:
    listed = ", ".join(sorted(names)) or "none"
    if key is not None and key not in names:
        raise ValueError(f"{path} has no array {key!r}; it has: {listed}")
    if key is None and len(names) != 1 and "embeddings" not in names:
        raise ValueError(f"{path} holds several arrays ({listed}); choose one with --key")
    return key or ("embeddings" if "embeddings" in names else names[0])


def _shape(array: NDArray[Any]) -> str:
    return f"{array.dtype} of shape {list(array.shape)}"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text; save it as UTF-8") from None


def _lines(path: Path) -> list[str]:
    """The lines, cut only at line ends: str.splitlines would also cut at U+2028, which a name may contain."""
    text = _text(path).rstrip()
    return text.split("\n") if text else []


def _csv_column(path: Path) -> list[str]:
    try:
        table = [row or [""] for row in csv.reader(io.StringIO(_text(path).rstrip()))]
    except csv.Error as error:
        raise ValueError(
            f"{path} cannot be read: {error}; close every quote and save it as CSV in UTF-8"
        ) from None
    if not table:
        raise ValueError(f"{path} holds no labels")
    head = [name.strip().lower() for name in table[0]]
    if "label" in head:
        column, table = head.index("label"), table[1:]
    elif len(head) == 1:
        column = 0
    else:
        raise ValueError(f"{path} has columns {', '.join(head)}; rename the one with the classes to `label`")
    short = [number for number, row in enumerate(table) if len(row) <= column]
    if short:
        raise ValueError(f"{path}: row {short[0]} has no label")
    return [row[column] for row in table]
