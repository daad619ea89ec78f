"""Which networks have pretrained weights on this machine, and what is known of those that have none yet."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from softwarp.models.backbones import BACKBONES, build_backbone
from softwarp.models.hub import cached_file, hub_address
from softwarp.models.iresnet import SIDE, IResNet
from softwarp.models.timm_backbone import TimmBackbone
from softwarp.models.weights import packaged_efficientnet_lite0
from softwarp.models.weights_folder import UNKNOWN, added_weights
from softwarp.models.weights_origin import WeightsOrigin, origin_of, timm_licence

PACKAGED = "efficientnet_lite0"


@dataclass(frozen=True)
class WeightsHere:
    """Weights on this machine: a row of `softwarp weights`."""

    origin: WeightsOrigin
    size: int  # bytes of the file


@dataclass(frozen=True)
class Network:
    """A network, and where `pretrained=True` takes its weights from."""

    name: str
    architecture: str
    channels: int  # of an image
    side: int | None  # of an image, as its weights expect it; None if any will do
    size: int  # bytes of its parameters and buffers in float32, with timm's classifier
    address: str | None  # on the hub
    licence: str  # of what the hub has
    here: WeightsOrigin | None  # what is loaded without a hub; None if nothing is on this machine


def weights_here() -> list[WeightsHere]:
    """Return all weights on this machine: those added, that of the package, and those in the hub's cache."""
    added = {each.name: each.path for each in added_weights()}
    packaged = packaged_efficientnet_lite0()
    others = {PACKAGED: packaged} | {name: cached_file(name) for name in _in_cache()}
    files = added | {name: path for name, path in others.items() if path and name not in added}
    return [
        WeightsHere(origin, _size(path)) for name, path in files.items() if (origin := origin_of(name, True))
    ]


def only_from_files() -> list[str]:
    """Return the networks whose weights no package and no hub has."""
    return [name for name in BACKBONES if name not in (PACKAGED, "small_conv")]


def describe_network(name: str) -> Network:
    """Return what is known of a network, without fetching anything; a ValueError if nobody knows the name."""
    import timm

    ours = name in BACKBONES
    with torch.device("meta"):  # sizes without memory
        backbone = build_backbone(name)
        whole: Any = backbone if ours else timm.create_model(name)
    inner: Any = backbone.model if isinstance(backbone, TimmBackbone) else backbone
    size = getattr(inner, "pretrained_cfg", {}).get("input_size")
    origin = origin_of(name, True)
    return Network(
        name=name,
        architecture=type(inner).__name__,
        channels=backbone.in_channels,
        side=SIDE if isinstance(backbone, IResNet) else size and size[-1],
        size=sum(each.numel() * each.element_size() for each in whole.state_dict().values()),
        address=None if ours else hub_address(name),
        licence=UNKNOWN if ours else timm_licence(name),
        here=origin if origin and origin.sha256 else None,
    )


def _in_cache() -> list[str]:
    """The timm names, with their tags, whose weights the hub's cache holds."""
    import timm

    return [name for name in timm.list_pretrained() if cached_file(name)]


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
