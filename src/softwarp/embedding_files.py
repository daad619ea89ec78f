"""Reading what people evaluate: embeddings, labels and verification pairs made elsewhere.

Every wrong input is a ValueError that says what is wrong and how to mend it.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Pair:
    """One line of a pairs file: two images, each a name and a number, and whether they show one person."""

    left: tuple[str, int]
    right: tuple[str, int]
    same: bool


def load_embeddings(path: Path, key: str | None = None) -> Tensor:
    """Embeddings [N, D] from .npy, .npz or .safetensors; `key` names the array where a file holds several."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    if path.suffix == ".npy":
        return torch.from_numpy(_numbers(_read_numpy(path), path))
    if path.suffix not in (".npz", ".safetensors"):
        raise ValueError(
            f"{path}: embeddings come as .npy, .npz or .safetensors, not {path.suffix or 'this'}"
        )
    if path.suffix == ".npz":
        arrays = _read_numpy(path)
        return torch.from_numpy(_numbers(arrays[_choose(list(arrays), key, path)], path))
    return _read_safetensors(path, key)


def load_labels(path: Path) -> list[str]:
    """One label a row, as text, from .npy, .txt (a line each) or .csv (column `label` or the only one)."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    if path.suffix == ".npy":
        array = _read_numpy(path)
        if array.ndim != 1 or array.dtype.kind not in "iuUS":
            raise ValueError(f"{path}: labels must be one row of whole numbers or text; got {_shape(array)}")
        labels = [str(label) for label in array.tolist()]
    elif path.suffix == ".txt":
        labels = _text(path).rstrip().splitlines()
    elif path.suffix == ".csv":
        labels = _csv_column(path)
    else:
        raise ValueError(f"{path}: labels come as .npy, .csv or .txt, not {path.suffix or 'this'}")
    labels = [label.strip() for label in labels]
    if not labels:
        raise ValueError(f"{path} holds no labels")
    if "" in labels:
        raise ValueError(f"{path}: the label of row {labels.index('')} is empty; give every row a class")
    return labels


def number_labels(*tables: list[str]) -> list[Tensor]:
    """The same label, the same number, across tables.

    >>> number_labels(["wren", "gull"], ["gull"])
    [tensor([1, 0]), tensor([0])]
    """
    names = {name: number for number, name in enumerate(sorted(set().union(*tables)))}
    return [torch.tensor([names[name] for name in table]) for table in tables]


def load_rows(path: Path, count: int) -> Tensor:
    """Row numbers, each once, of a table of `count` rows, from .npy or .txt: which embeddings are queries."""
    try:
        rows = torch.tensor([int(label) for label in load_labels(path)])
    except ValueError as error:
        raise ValueError(f"{path} must hold row numbers, one a line ({error})") from None
    wrong = rows[(rows < 0) | (rows >= count)]
    if len(wrong):
        raise ValueError(f"{path}: row {int(wrong[0])} does not exist; rows are numbered 0 to {count - 1}")
    if len(set(rows.tolist())) < len(rows):
        raise ValueError(f"{path}: a row is named twice; name each query once")
    return rows


def load_pairs(path: Path) -> list[Pair]:
    """The pairs of an LFW-style pairs.txt: `name 1 4` for one person, `name 1 other 2` for two."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    pairs = []
    for number, line in enumerate(_text(path).splitlines(), start=1):
        words = line.split("\t") if "\t" in line else line.split()
        if number == 1 and len(words) in (1, 2) and all(word.isdigit() for word in words):
            continue  # the head: number of folds, pairs a fold
        if len(words) == 3 and words[1].isdigit() and words[2].isdigit():
            pairs.append(Pair((words[0], int(words[1])), (words[0], int(words[2])), same=True))
        elif len(words) == 4 and words[1].isdigit() and words[3].isdigit():
            pairs.append(Pair((words[0], int(words[1])), (words[2], int(words[3])), same=False))
        elif line.strip():
            raise ValueError(f"{path} line {number}: expected `name 1 4` or `name 1 other 2`; got {line!r}")
    if not pairs:
        raise ValueError(f"{path} holds no pairs")
    return pairs


def _read_numpy(path: Path) -> Any:
    try:
        loaded = np.load(path, allow_pickle=False)
        return loaded if isinstance(loaded, np.ndarray) else {name: loaded[name] for name in loaded.files}
    except Exception as error:  # numpy raises half a dozen kinds for files that are not what they say
        raise ValueError(
            f"{path} cannot be read as {path.suffix} ({error}); save it again, without pickle"
        ) from None


def _read_safetensors(path: Path, key: str | None) -> Tensor:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} cannot be read as .safetensors ({error}); save it again") from None
    tensor = tensors[_choose(list(tensors), key, path)]
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return torch.from_numpy(_numbers(tensor.numpy(), path))


def _choose(names: list[str], key: str | None, path: Path) -> str:
    listed = ", ".join(sorted(names)) or "none"
    if key is not None and key not in names:
        raise ValueError(f"{path} has no array {key!r}; it has: {listed}")
    if key is None and len(names) != 1 and "embeddings" not in names:
        raise ValueError(f"{path} holds several arrays ({listed}); say which with --key")
    return key or ("embeddings" if "embeddings" in names else names[0])


def _numbers(array: NDArray[Any], path: Path) -> NDArray[Any]:
    if array.ndim != 2 or array.dtype.kind not in "fiu" or 0 in array.shape:
        raise ValueError(f"{path}: embeddings must be numbers [rows, dimensions]; got {_shape(array)}")
    return array.astype(np.float64 if array.dtype.itemsize > 4 or array.dtype.kind != "f" else np.float32)


def _shape(array: NDArray[Any]) -> str:
    return f"{array.dtype} of shape {list(array.shape)}"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text; save it as UTF-8") from None


def _csv_column(path: Path) -> list[str]:
    table = [row or [""] for row in csv.reader(_text(path).rstrip().splitlines())]
    if not table:
        raise ValueError(f"{path} holds no labels")
    head = [name.strip().lower() for name in table[0]]
    if "label" in head:
        column, table = head.index("label"), table[1:]
    elif len(head) == 1:
        column = 0
    else:
        raise ValueError(f"{path} has columns {', '.join(head)}: name the one with the classes `label`")
    short = [number for number, row in enumerate(table) if len(row) <= column]
    if short:
        raise ValueError(f"{path}: row {short[0]} has no label")
    return [row[column] for row in table]
