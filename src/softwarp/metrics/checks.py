"""What every metric asks of its inputs, said once."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from softwarp.metrics.scaling import power_of_two

Array = Tensor | np.ndarray
Labels = Array | Sequence[int] | Sequence[str]  # numbers or text
DISTANCES = ("euclidean", "cosine")
LARGEST = 1e300  # beyond it, sums and distances of many numbers leave float64
ROWS_AT_ONCE = 256  # float64 copies are made of so many rows at a time, never of all


def check_embeddings(embeddings: Array, name: str = "embeddings") -> Tensor:
    """The embeddings as a detached float32 or float64 tensor [N, D], or a ValueError that says what is wrong.

    >>> check_embeddings(np.zeros((2, 3), dtype=np.float16)).dtype
    torch.float32
    """
    tensor = torch.as_tensor(embeddings).detach()
    if tensor.ndim != 2 or 0 in tensor.shape:
        raise ValueError(
            f"{name} must be a table [rows, dimensions] with at least one row; got {list(tensor.shape)}"
        )
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise ValueError(f"{name} must be real numbers; got {tensor.dtype}")
    wide = tensor.dtype in (torch.float64, torch.int64, torch.int32)  # float32 cannot hold these numbers
    tensor = tensor.double() if wide else tensor.float()
    low, high = torch.aminmax(tensor, dim=1)  # minima and maxima pass NaN on, and need no table of flags
    wrong = (~(low.isfinite() & high.isfinite())).nonzero().flatten().tolist()
    if wrong:
        shown = ", ".join(map(str, wrong[:5])) + (", ..." if len(wrong) > 5 else "")
        raise ValueError(
            f"{name} has NaN or infinity in {len(wrong)} row(s): {shown}; leave them out or mend them"
        )
    if max(-float(low.min()), float(high.max())) > LARGEST:
        raise ValueError(
            f"{name} has numbers beyond {LARGEST:g}, too large to measure distances; scale them down"
        )
    return tensor


def numbered(labels: Labels, *others: Labels) -> list[Array]:
    """Labels as numbers; text gets a number that is the same in all tables, numbers stay as they are.

    >>> [table.tolist() for table in numbered(["wren", "gull"], ["gull"])]
    [[1, 0], [0]]
    """
    texts = [_as_text(table) for table in (labels, *others)]
    found = [text for text in texts if text is not None]
    if not found:
        return [table if isinstance(table, Tensor) else np.asarray(table) for table in (labels, *others)]
    if len(found) < len(texts):
        raise ValueError("labels are text on one side and numbers on the other; give names on both")
    names = np.unique(np.concatenate(found))
    return [np.searchsorted(names, text) for text in found]


def _as_text(labels: Labels) -> np.ndarray | None:
    """Labels as an array of text; None if they are something else."""
    if isinstance(labels, Tensor):
        return None
    array = np.asarray(labels)
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8", "surrogateescape")
    if array.dtype.kind == "O" and array.size and all(isinstance(each, str) for each in array.flat):
        return array.astype(str)
    return array if array.dtype.kind == "U" else None


def check_labels(labels: Labels, rows: int, device: torch.device, name: str = "labels") -> Tensor:
    """The labels as an int64 tensor [N] on `device`, or a ValueError that says what is wrong."""
    if _as_text(labels) is not None:
        raise ValueError(f"{name} must be whole numbers; got text")
    tensor = torch.as_tensor(labels).detach()
    if tensor.ndim != 1 or len(tensor) != rows:
        raise ValueError(
            f"{name} must hold one label for each of {rows} rows; got shape {list(tensor.shape)}"
        )
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise ValueError(f"{name} must be whole numbers; got {tensor.dtype}: number the classes first")
    return tensor.to(device, torch.int64)


def check_label_sides(
    labels: Labels, gallery_labels: Labels | None, queries: Tensor, items: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The labels of queries and gallery, checked, on one device; the same ones twice without a gallery."""
    if (items is None) != (gallery_labels is None):
        raise ValueError("gallery and gallery_labels go together: give both or neither")
    sides = numbered(labels) if gallery_labels is None else numbered(labels, gallery_labels)
    asked = check_labels(sides[0], len(queries), queries.device)
    if items is None:
        return asked, asked
    return asked, check_labels(sides[1], len(items), queries.device, "gallery_labels")


def check_distance(distance: str) -> None:
    """Raise a ValueError that lists the distances, unless this is one of them."""
    if distance not in DISTANCES:
        raise ValueError(f"unknown distance {distance!r}; choose one of {', '.join(DISTANCES)}")


def on_unit_sphere(embeddings: Tensor, name: str = "embeddings") -> Tensor:
    """Each row divided by its length, in float64: what turns the cosine order into the euclidean one."""
    largest = torch.linalg.vector_norm(embeddings, torch.inf, dim=1, keepdim=True)
    zero = (largest.flatten() == 0).nonzero().flatten().tolist()
    if zero:
        raise ValueError(
            f"{name} row {zero[0]} is all zeros and has no direction; leave it out or use 'euclidean'"
        )
    units = power_of_two(largest.double())
    unit_rows = torch.empty_like(embeddings, dtype=torch.float64)
    for start in range(0, len(embeddings), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        rows = embeddings[part].double() / units[part]
        unit_rows[part] = rows / rows.square().sum(dim=1, keepdim=True).sqrt()
    return unit_rows


def check_sides(
    embeddings: Array, gallery: Array | None, distance: str, device: torch.device | str | None = None
) -> tuple[Tensor, Tensor | None]:
    """Queries and gallery, checked, on one device, on the unit sphere where the distance is the cosine."""
    check_distance(distance)
    queries = check_embeddings(embeddings)
    queries = queries if device is None else queries.to(device)
    items = None if gallery is None else check_embeddings(gallery, "gallery").to(queries.device)
    if items is not None and items.shape[1] != queries.shape[1]:
        raise ValueError(f"embeddings have {queries.shape[1]} dimensions and gallery {items.shape[1]}")
    if distance == "cosine":
        return on_unit_sphere(queries), None if items is None else on_unit_sphere(items, "gallery")
    return queries, items
