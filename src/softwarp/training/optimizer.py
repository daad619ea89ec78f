"""The optimizer of a run: one group of weights per part of the network, of the head and of the loss."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from softwarp.models.embedder import Embedder
from softwarp.models.stages import stage_of
from softwarp.recipe.phases import OptimizerPart


@dataclass(frozen=True)
class Group:
    """What a group of the optimizer belongs to, and the factor of its learning rate."""

    part: Literal["backbone", "head", "loss", "network"]
    factor: float = 1.0


def build_optimizer(
    settings: OptimizerPart, model: Embedder, loss: nn.Module
) -> tuple[torch.optim.Optimizer, list[Group]]:
    """Return the optimizer by name, and what its groups are: backbone, head and loss; rates are set later.

    With `layer_decay` each block of the backbone is a group. A network that the loss trains is the last one.
    """
    networks = loss_networks(loss)
    rest = [each for name, each in loss.named_parameters() if name not in networks]
    owned = [*_backbone_groups(settings, model), (Group("head"), model.head_parameters())]
    owned += [(Group("loss"), rest)] + ([(Group("network"), list(networks.values()))] if networks else [])
    groups: list[dict[str, Any]] = [{"params": parameters} for _, parameters in owned]
    if settings.proxy_weight_decay is not None:
        groups[[each.part for each, _ in owned].index("loss")]["weight_decay"] = settings.proxy_weight_decay
    return _optimizer(settings, groups), [each for each, _ in owned]


def _backbone_groups(settings: OptimizerPart, model: Embedder) -> list[tuple[Group, list[nn.Parameter]]]:
    """The backbone as one group, or a group for each of its blocks, whose rates fall towards the image."""
    if settings.layer_decay is None:
        return [(Group("backbone"), model.backbone_parameters())]
    stages, blocks = stage_of(model.backbone, blocks=True), dict[int, list[nn.Parameter]]()
    for name, weight in model.backbone.named_parameters():
        blocks.setdefault(stages[name], []).append(weight)
    last = max(blocks)
    return [
        (Group("backbone", settings.layer_decay ** (last - stage)), blocks[stage]) for stage in sorted(blocks)
    ]


def _optimizer(settings: OptimizerPart, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    decay = settings.weight_decay
    if settings.name == "sgd":
        return torch.optim.SGD(
            groups, lr=0.0, momentum=settings.momentum, nesterov=settings.nesterov, weight_decay=decay
        )
    if settings.name == "rmsprop":
        return torch.optim.RMSprop(
            groups, lr=0.0, eps=settings.eps, momentum=settings.momentum, weight_decay=decay
        )
    if settings.name == "radam":  # decoupled decay, as in its authors' code
        return torch.optim.RAdam(
            groups, lr=0.0, eps=settings.eps, weight_decay=decay, decoupled_weight_decay=True
        )
    kind = torch.optim.Adam if settings.name == "adam" else torch.optim.AdamW
    return kind(groups, lr=0.0, eps=settings.eps, weight_decay=decay)


def loss_networks(loss: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of the network that the loss trains alongside its proxies, by name."""
    return {name: each for name, each in loss.named_parameters() if name.startswith("network.")}
