"""What a checkpoint of a sharded loss holds once per class: one folder, written by all processes together.

Each process writes its rows as a safetensors file, through torch.distributed.checkpoint; any number of
processes reads them back, each the rows of its own classes. The rest of the checkpoint names the folder and
the checksums of its files, and is written last: a folder that no checkpoint names does not count.
"""

import shutil
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from softwarp import processes

PREFIX = "class-rows-"


def write_class_rows(run: Path, rows: Mapping[str, Tensor], num_classes: int) -> dict[str, Any]:
    """Write the rows of all processes into a new folder; return its name and the checksums of its files."""
    name = processes.from_main(lambda: _new_folder(run))
    try:
        processes.save_divided(run / name, rows, num_classes)
    except (OSError, RuntimeError) as error:
        if processes.is_lost(error):
            raise
        reason = str(error).strip().splitlines()[-1]
        raise OSError(f"{run / name} cannot be written ({reason}); free disk space and resume") from error
    return {"folder": name, "files": _checksums(run / name)}


def check_rows(run: Path, kept: Mapping[str, Any]) -> None:
    """Raise a ValueError, the same in every process, unless the folder is as it was written."""
    folder, found = run / kept["folder"], _checksums(run / kept["folder"])
    for name, checksum in kept["files"].items():
        if name not in found:
            raise ValueError(f"{folder / name} is missing")
        if found[name] != checksum:
            raise ValueError(f"{folder / name} is damaged: its checksum is wrong")


def copy_class_rows(run: Path, other: Path, state: Mapping[str, Any]) -> None:
    """Copy the rows that a checkpoint names, if it names any, from one run to another."""
    if "class_rows" in state:
        name = state["class_rows"]["folder"]
        shutil.copytree(run / name, other / name)


def remove_rows(run: Path, *, keep: Iterable[str] = ()) -> None:
    """Remove all folders of rows but some."""
    for folder in run.glob(f"{PREFIX}*"):
        if folder.name not in keep:
            shutil.rmtree(folder, ignore_errors=True)


def split_state(
    parts: Mapping[str, Any], loss: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the state dicts of a loss and its optimizer without the rows of classes, and these by name."""
    state, rows = _opened(parts), dict[str, Tensor]()
    for number, name, parameter in _numbered(loss, optimizer):
        rows[name] = state["loss"].pop(name)
        moments = state["optimizer"]["state"].get(number, {})
        for key in [key for key, each in moments.items() if _one_per_class(each, parameter)]:
            rows[f"{name}/{key}"] = moments.pop(key)
    return state, rows


def join_state(
    parts: Mapping[str, Any], rows: Mapping[str, Tensor], loss: nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """Return the state dicts with the rows back in them: the opposite of `split_state`."""
    state = _opened(parts)
    for number, name, _ in _numbered(loss, optimizer):
        state["loss"][name] = rows[name]
        moments = {key: each for key, each in rows.items() if key.startswith(f"{name}/")}
        if moments:
            every = state["optimizer"]["state"].setdefault(number, {})
            every |= {key.removeprefix(f"{name}/"): each for key, each in moments.items()}
    return state


def _opened(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state dicts as copies that may be changed; the tensors are the same."""
    optimizer = dict(parts["optimizer"])
    optimizer["state"] = {number: dict(each) for number, each in optimizer["state"].items()}
    return {**parts, "loss": dict(parts["loss"]), "optimizer": optimizer}


def _numbered(loss: nn.Module, optimizer: torch.optim.Optimizer) -> list[tuple[int, str, nn.Parameter]]:
    """Return the parameters of the loss with their names, and their numbers in the optimizer's state dict."""
    order = [id(each) for group in optimizer.param_groups for each in group["params"]]
    return [(order.index(id(each)), name, each) for name, each in loss.named_parameters()]


def _one_per_class(value: Any, parameter: Tensor) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0 and value.shape == parameter.shape


def _new_folder(run: Path) -> str:
    numbers = [folder.name.removeprefix(PREFIX) for folder in run.glob(f"{PREFIX}*")]
    name = f"{PREFIX}{max((int(number) for number in numbers if number.isdecimal()), default=0) + 1}"
    (run / name).mkdir()
    return name


def _checksums(folder: Path) -> dict[str, int]:
    """Return the checksum of each file; the processes divide the work."""
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    mine = {file.name: _checksum(file) for file in files[processes.place() :: processes.count()]}
    return {name: each for part in processes.gather_objects(mine) for name, each in part.items()}


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(2**22):
            checksum = zlib.crc32(block, checksum)
    return checksum
