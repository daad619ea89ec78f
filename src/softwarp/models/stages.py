"""A backbone's depth, from the image on: which stages stay frozen, and which stage a weight belongs to."""

from typing import Any

from torch import nn


def stage_of(backbone: nn.Module, *, blocks: bool = False) -> dict[str, int]:
    """Return the stage of each of a timm network's parameters, by name; the stem is stage 0.

    Args:
        blocks: count blocks, as rates that fall with depth do, instead of the few stages that they make up.

    Raises:
        ValueError: the network is none of timm's.
    """
    from timm.models import group_parameters

    network: Any = getattr(backbone, "model", backbone)
    if not hasattr(network, "group_matcher"):
        raise ValueError(
            f"the stages of {type(network).__name__} are not known; "
            "omit model.freeze_stages and optimizer.layer_decay, or take a network of timm"
        )
    found = group_parameters(network, network.group_matcher(coarse=not blocks), reverse=True)
    return {f"model.{name}": stage for name, stage in found.items()}


def freeze_first(backbone: nn.Module, count: int) -> list[nn.Module]:
    """Take the gradients from the first `count` stages, stem included; return the modules that they are.

    These modules belong in evaluation mode, whatever the rest is in: their batch norm keeps its statistics.
    """
    stages = stage_of(backbone)
    most = max(stages.values())
    if count > most:
        raise ValueError(
            f"freeze_stages {count} leaves nothing to train: this backbone has {most + 1} stages, "
            f"so it is at most {most}; for a head alone set freeze_backbone in each phase"
        )
    frozen = {name for name, stage in stages.items() if stage < count}
    for name, weight in backbone.named_parameters():
        if name in frozen:
            weight.requires_grad_(False)
    return _whole(backbone, "", frozen)


def _whole(module: nn.Module, name: str, frozen: set[str]) -> list[nn.Module]:
    """The largest modules whose parameters are all frozen."""
    own = {f"{name}{each}" for each, _ in module.named_parameters()}
    if own and own <= frozen:
        return [module]
    children = module.named_children()
    return [part for child, each in children for part in _whole(each, f"{name}{child}.", frozen)]
