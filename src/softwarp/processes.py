"""The processes of one run: rank, gather, reduce. No other file calls torch.distributed.

Without a process group every function works for a single process.
"""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

Value = TypeVar("Value")


def together() -> bool:
    """Return whether a process group is up."""
    return dist.is_available() and dist.is_initialized()


def count() -> int:
    """Return the number of processes."""
    return dist.get_world_size() if together() else 1


def rank() -> int:
    """Return this process's number, from 0; before the group is up it comes from torchrun."""
    return dist.get_rank() if together() else int(os.environ.get("RANK", "0"))


def place() -> int:
    """Return this process's number among those that work together: 0 as long as there is no group."""
    return rank() if together() else 0


def is_main() -> bool:
    """Return whether this process writes and prints for all."""
    return rank() == 0


def wait() -> None:
    """Return when all processes have reached this point."""
    if together():
        dist.barrier()


def leave() -> None:
    """Close the process group: the last thing that a program does with it."""
    if together():
        dist.destroy_process_group()


@contextmanager
def one_first(*, per_machine: bool = False) -> Iterator[None]:
    """Let the main process, or the first on each machine, run the block before the others."""
    first = int(os.environ.get("LOCAL_RANK", "0")) == 0 if per_machine else is_main()
    if not first:
        wait()
    try:
        yield
    finally:
        if first:
            wait()


@contextmanager
def in_turn() -> Iterator[None]:
    """Let one process after another run the block: for work that takes more memory than all have at once."""
    try:
        for _ in range(place()):
            wait()
        yield
    finally:
        for _ in range(count() - place()):
            wait()


def is_lost(error: BaseException) -> bool:
    """Return whether the error says that another process has ended or cannot be reached."""
    return isinstance(error, dist.DistError) or any(
        words in str(error) for words in ("gloo/transport", "Connection closed by peer", "NCCL", "Gloo")
    )


@contextmanager
def ends_with_the_others() -> Iterator[None]:
    """Turn the error that a process meets when another one has ended into one that says so."""
    try:
        yield
    except RuntimeError as error:
        if count() == 1 or not is_lost(error):
            raise
        reason = str(error).strip().splitlines()[0]
        raise ConnectionError(
            f"process {rank()} of {count()} stops: another one has ended or cannot be reached ({reason}). "
            "The last checkpoint is kept; look for the first error, then resume with the same command"
        ) from None


def gather_objects(value: Value) -> list[Value]:
    """Return the value of every process, in the order of ranks."""
    if count() == 1:
        return [value]
    values: list[Any] = [None] * count()
    dist.all_gather_object(values, value)
    return values


def from_main(make: Callable[[], Value]) -> Value:
    """Return what `make` returns in the main process, the only one to call it; all raise its errors."""
    if count() == 1:
        return make()
    shared: list[Any] = [None, None]
    if is_main():
        try:
            shared[0] = make()
        except Exception as error:
            shared[1] = error
    dist.broadcast_object_list(shared)
    if shared[1] is not None:
        raise shared[1]
    value: Value = shared[0]
    return value


def numbers(value: int, device: torch.device) -> list[int]:
    """Return the whole number of every process, in the order of ranks."""
    values = torch.zeros(count(), dtype=torch.long, device=device)
    values[place()] = value
    return [int(each) for each in sum_over(values)]


def anywhere(flag: bool, device: torch.device) -> bool:
    """Return whether the flag is set in any process."""
    if count() == 1:
        return flag
    return bool(sum_over(torch.tensor(float(flag), device=device)) > 0)


def sum_over(values: Tensor) -> Tensor:
    """Return the sum over processes, without a gradient."""
    return _agreed(values, dist.all_reduce)


def max_over(values: Tensor) -> Tensor:
    """Return the maximum over processes, without a gradient."""
    return _agreed(values, lambda found: dist.all_reduce(found, dist.ReduceOp.MAX))


def same_everywhere(values: Tensor) -> Tensor:
    """Return the main process's values, without a gradient."""
    return _agreed(values, lambda found: dist.broadcast(found, 0))


def _agreed(values: Tensor, agree: Callable[[Tensor], Any]) -> Tensor:
    found = values.detach().clone()
    if together():
        agree(found)
    return found


def joined(rows: Tensor) -> Tensor:
    """Return the rows of all processes, in the order of ranks; each may have another number of them."""
    return torch.cat(_gather(rows.detach()))


def save_divided(folder: Path, parts: Mapping[str, Tensor], length: int) -> None:
    """Write tensors of which each process has consecutive rows, `length` in all, as safetensors files.

    Rows are divided as torch divides them: as many for each process, fewer for the last ones.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    with _errors_as_they_were():
        save(_divided(parts, length), storage_writer=writer, no_dist=not together())


def load_divided(folder: Path, length: int, rows: int, device: torch.device) -> dict[str, Tensor]:
    """Return this process's rows, so many, of all that `save_divided` wrote with any number of processes."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder))
    parts = {
        name: torch.empty(rows, *each.size[1:], dtype=each.properties.dtype, device=device)
        for name, each in reader.read_metadata().state_dict_metadata.items()
        if isinstance(each, TensorStorageMetadata)
    }
    with _errors_as_they_were():
        load(_divided(parts, length), storage_reader=reader, no_dist=not together())
    return parts


@contextmanager
def _errors_as_they_were() -> Iterator[None]:
    """Raise the error of the process that failed, in all: torch's own for it is not even an Exception.

    Its warning that there is a single process is left out.
    """
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            yield
    except CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from None


def _divided(parts: Mapping[str, Tensor], length: int) -> dict[str, Any]:
    """Return the tensors as parts of those of all processes, without copying them."""
    if not together():
        return dict(parts)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    found = {}
    for name, each in parts.items():
        mesh = init_device_mesh(each.device.type, (count(),))
        shape = torch.Size((length, *each.shape[1:]))
        stride = torch.empty(shape, device="meta").stride()
        found[name] = DTensor.from_local(
            each.detach(), mesh, [Shard(0)], run_check=False, shape=shape, stride=stride
        )
    return found


def whole_batch(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the embeddings and labels of all processes, so that the loss sees the whole batch.

    Each process may have another number of them. Only this process's embeddings carry a gradient; it is
    multiplied by the number of processes because the gradients of the model's weights are averaged over them
    afterwards.
    """
    processes = count()
    if processes == 1:
        return embeddings, labels
    parts = _gather(embeddings.detach())
    if embeddings.requires_grad:  # else only proxies train
        embeddings.register_hook(lambda gradient: gradient * processes)
    parts[rank()] = embeddings
    return torch.cat(parts), torch.cat(_gather(labels))


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Average gradients that differ between processes only by rounding, so that they do not drift apart."""
    if count() > 1:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad = sum_over(parameter.grad) / count()


def _gather(tensor: Tensor) -> list[Tensor]:
    if count() == 1:
        return [tensor]
    sizes = numbers(len(tensor), tensor.device)
    padded = tensor.new_zeros(max(sizes), *tensor.shape[1:])  # gloo and NCCL gather equal sizes alone
    padded[: len(tensor)] = tensor
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return [part[:size] for part, size in zip(parts, sizes, strict=True)]
