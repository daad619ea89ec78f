"""One process of two that normalise together; a process that is spawned can import this file."""

import torch
from torch import nn

from softwarp.models.sync_batch_norm import SyncBatchNorm, sync_batch_norm


def layers():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3),
        nn.BatchNorm2d(3),
        nn.BatchNorm2d(3, momentum=None, affine=False),
        nn.Flatten(),
        nn.BatchNorm1d(36),  # the last layer of an iResNet
    )
    nn.init.normal_(model[1].weight)
    return model


def batch():
    return torch.randn(7, 2, 6, 5, generator=torch.Generator().manual_seed(1)) * 2 + 50


def run(model, images):
    images = images.clone().requires_grad_()
    outputs = model(images)
    (outputs**3).sum().backward()
    return outputs.detach(), images.grad


def work(rank, folder):
    """One process of two: three images here, four there."""
    torch.distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    model = layers()
    sync_batch_norm(model)
    for step in (batch(), batch() + 1):
        outputs, gradient = run(model, step[:3] if rank == 0 else step[3:])
    model.eval()
    told = {
        "outputs": outputs,
        "gradient": gradient,
        "state": model.state_dict(),
        "eval": model(batch()).detach(),
    }
    torch.save(told, f"{folder}/{rank}.pt")
    coarse = SyncBatchNorm(nn.BatchNorm2d(3))(torch.randn(2, 3, 4, 4).bfloat16())
    assert coarse.dtype == torch.bfloat16
    torch.distributed.destroy_process_group()
