"""Batch norm over the batches of all processes, on CPUs too, where torch's SyncBatchNorm refuses to work."""

from typing import Any

import torch
from torch import Tensor, nn

from softwarp import processes


def sync_batch_norm(model: nn.Module) -> None:
    """Make every BatchNorm1d and 2d in `model` compute its statistics over all processes, in place.

    Parameters, buffers and names in the state dict stay; an existing optimizer keeps working. Call it when
    the model is on its device. Without a process group the layers work as before.
    """
    if next(model.parameters()).device.type != "cpu":
        # torch's own converter drops the activation that timm's BatchNormAct2d carries; timm's keeps it
        from timm.layers.norm_act import convert_sync_batchnorm

        convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        return
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d):
                setattr(parent, name, SyncBatchNorm(child))


class SyncBatchNorm(nn.BatchNorm2d):
    """A batch norm, also timm's BatchNormAct2d, that takes over the tensors of the layer it replaces."""

    def __init__(self, layer: nn.BatchNorm1d | nn.BatchNorm2d) -> None:
        super().__init__(
            layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats
        )
        for name, tensor in [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]:
            setattr(self, name, tensor)
        self.drop = getattr(layer, "drop", nn.Identity())
        self.act = getattr(layer, "act", nn.Identity())
        self.train(layer.training)

    def forward(self, input: Tensor) -> Tensor:
        normed = (
            super().forward(input) if not (processes.together() and self.training) else self._normalise(input)
        )
        activated: Tensor = self.act(self.drop(normed))
        return activated

    def _check_input_dim(self, input: Tensor) -> None:
        """Take as many dimensions as the replaced layer did."""

    def _normalise(self, features: Tensor) -> Tensor:
        exact = features.to(torch.promote_types(features.dtype, torch.float32))
        others = [0, *range(2, exact.ndim)]
        shape = (1, -1, *[1] * (exact.ndim - 2))
        count = exact.new_tensor([exact.numel() / self.num_features])
        sums: Tensor = _Sum.apply(torch.cat([exact.sum(dim=others), count]))
        total = sums[-1].detach()
        mean = sums[:-1] / total
        centred = exact - mean.view(shape)  # a second reduction, because E[x^2] - E[x]^2 loses digits
        variance: Tensor = _Sum.apply(centred.square().sum(dim=others)) / total
        self._update(mean.detach(), variance.detach() * total / (total - 1).clamp(min=1))
        scale = (variance + self.eps).rsqrt() * (self.weight if self.affine else 1)
        normed = centred * scale.view(shape)
        return (normed + self.bias.view(shape) if self.affine else normed).to(features.dtype)

    def _update(self, mean: Tensor, variance: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        share = 1 / self.num_batches_tracked.item() if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance, share)


class _Sum(torch.autograd.Function):
    """The sum over processes, of values and of gradients."""

    @staticmethod
    def forward(_: Any, values: Tensor) -> Tensor:
        return processes.sum_over(values)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return _Sum.forward(_, gradient)
