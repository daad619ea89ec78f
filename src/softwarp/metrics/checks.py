"""What every metric asks of its inputs, said once."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

Array = Tensor | np.ndarray
DISTANCES = ("euclidean", "cosine")


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
    wide = tensor.dtype in (torch.float64, torch.int64, torch.int32)  # float32 cannot hold them
    tensor = tensor.double() if wide else tensor.float()
    wrong = (~torch.isfinite(tensor).all(dim=1)).nonzero().flatten().tolist()
    if wrong:
        shown = ", ".join(map(str, wrong[:5])) + (", ..." if len(wrong) > 5 else "")
        raise ValueError(
            f"{name} has NaN or infinity in {len(wrong)} row(s): {shown}; leave them out or mend them"
        )
    return tensor


def check_labels(labels: Array, rows: int, device: torch.device, name: str = "labels") -> Tensor:
    """The labels as an int64 tensor [N] on `device`, or a ValueError that says what is wrong."""
    tensor = torch.as_tensor(labels).detach()
    if tensor.ndim != 1 or len(tensor) != rows:
        raise ValueError(
            f"{name} must hold one label for each of {rows} rows; got shape {list(tensor.shape)}"
        )
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise ValueError(f"{name} must be whole numbers; got {tensor.dtype}: number the classes first")
    return tensor.to(device, torch.int64)


def check_distance(distance: str) -> None:
    """Nothing, or a ValueError naming the distances there are."""
    if distance not in DISTANCES:
        raise ValueError(f"unknown distance {distance!r}; choose one of {', '.join(DISTANCES)}")


def on_unit_sphere(embeddings: Tensor, name: str = "embeddings") -> Tensor:
    """Each row divided by its length, in float64: what turns the cosine order into the euclidean one."""
    double = embeddings.double()
    lengths = double.square().sum(dim=1, keepdim=True).sqrt()
    zero = (lengths.flatten() == 0).nonzero().flatten().tolist()
    if zero:
        raise ValueError(
            f"{name} row {zero[0]} is all zeros and has no direction; leave it out or use 'euclidean'"
        )
    return double / lengths


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
