"""What one process of two does; a process that is spawned can import this file."""

import os

import torch

from softwarp import processes


def work(rank, folder):
    os.environ["LOCAL_RANK"] = str(rank)
    torch.distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    embeddings = torch.full((2, 1), float(rank + 1), requires_grad=True)
    whole, labels = processes.whole_batch(embeddings, torch.tensor([rank, rank]))
    (whole**2).sum().backward()
    calls = []
    shared = processes.from_main(lambda: calls.append(1) or {"map@r": 0.5})
    try:
        processes.from_main(lambda: 1 / 0)
    except ZeroDivisionError as error:
        refusal = str(error)
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.tensor([float(rank)])
    processes.average_gradients([parameter])
    with processes.one_first():
        seen = (folder / "first").exists()
        if processes.is_main():
            (folder / "first").touch()
    outcome = {
        "whole": whole.flatten().tolist(),
        "labels": labels.tolist(),
        "gradient": embeddings.grad.flatten().tolist(),
        "shared": shared,
        "calls": len(calls),
        "refusal": refusal,
        "averaged": parameter.grad.item(),
        "anywhere": processes.anywhere(rank == 1, torch.device("cpu")),
        "nowhere": processes.anywhere(False, torch.device("cpu")),
        "objects": processes.gather_objects(f"of {rank}"),
        "sum": processes.sum_over(torch.tensor([1.0 + rank])).item(),
        "seen": seen,
        "main": processes.is_main(),
    }
    torch.save(outcome, folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()
