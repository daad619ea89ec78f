"""Backbones: normalised images in, a map of features [N, channels, height, width] out.

Every backbone says what it reads: `in_channels`, and `mean` and `std` on the scale 0..1, in RGB order. By
`native` it says how its features become one vector: which pooling, or that it does so itself.
"""

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

import torch
from torch import Tensor, nn

from softwarp.models.bn_inception import BNInception
from softwarp.models.hub import address_to_fetch, ask_hub
from softwarp.models.iresnet import LAYERS, IResNet
from softwarp.models.timm_backbone import TimmBackbone, create
from softwarp.models.weights import hub_cures, load_packaged_efficientnet_lite0, load_weights
from softwarp.models.weights_folder import checked_file, find_added


class SmallConvNet(nn.Module):
    """Four convolutions for small grey images: glyphs, digits, the toy studies."""

    channels = 128
    in_channels = 1
    mean = (0.0,)
    std = (1.0,)
    classifier = ()
    native = "max+avg"

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            _block(1, 16, stride=2), _block(16, 32, stride=2), _block(32, 64, stride=2), _block(64, 128)
        ).to(memory_format=torch.channels_last)  # a third faster on CPUs

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layers(images.to(memory_format=torch.channels_last))
        return features


def _block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


Backbone = SmallConvNet | BNInception | IResNet | TimmBackbone


def _efficientnet_lite0(pooling: str, *, drop_path: float = 0.0) -> TimmBackbone:
    """The network of the packaged weights; its frozen features are best so (results/frozen_features.json)."""
    native = "max+avg"
    pooling = native if pooling == "native" else pooling
    model = create("tf_efficientnet_lite0", pooling=pooling, drop_path=drop_path)
    mean, std = (127 / 255,) * 3, (128 / 255,) * 3
    return TimmBackbone(model, pooling=pooling, native=native, mean=mean, std=std)


def _iresnet(depth: int, *, wide_stem: bool) -> Callable[[str], IResNet]:
    return lambda _: IResNet(depth, wide_stem=wide_stem)


BACKBONES: dict[str, Callable[..., Backbone]] = {  # from the pooling and drop_path, which timm's need
    "small_conv": lambda _: SmallConvNet(),
    "efficientnet_lite0": _efficientnet_lite0,
    "bn_inception": lambda _: BNInception(),
    **{f"iresnet{depth}": _iresnet(depth, wide_stem=False) for depth in LAYERS},
    **{f"iresnet{depth}_wide_stem": _iresnet(depth, wide_stem=True) for depth in LAYERS},
}


def build_backbone(
    name: str, *, pretrained: bool | str = False, pooling: str = "max+avg", drop_path: float = 0.0
) -> Backbone:
    """Return the backbone of that name: one of `BACKBONES`, or any timm model.

    >>> build_backbone("small_conv").channels
    128

    Args:
        pretrained: true for the weights that `softwarp weights add` was given for that name, else ImageNet
            weights (those of `efficientnet_lite0` come with the extra `weights`, timm's from a hub), or the
            path of a local .safetensors, .pth or .pt file.
        pooling: what follows; a timm model does `native` and `token+mean` itself, and returns a map or
            tokens for any other.
        drop_path: share of residual branches that training skips in the last block, for networks of timm.
    """
    check_name(name)
    if pretrained is True and (added := find_added(name)):
        pretrained = str(checked_file(added))
    settings = {"drop_path": drop_path} if drop_path else {}
    if name in BACKBONES:
        try:
            backbone = BACKBONES[name](pooling, **settings)
        except TypeError:
            raise ValueError(f"{name} has no branches to drop; omit model.drop_path") from None
        if pretrained is True:
            _load_own(name, backbone)
    else:
        backbone = _build_timm(name, pooling, download=pretrained is True, **settings)
    if pooling == "token+mean" and not isinstance(backbone, TimmBackbone):
        raise ValueError(
            f"pooling token+mean needs a class token, which {name} does not have; set model.pooling=native"
        )
    if isinstance(pretrained, str):
        target = backbone.model if isinstance(backbone, TimmBackbone) else backbone
        load_weights(target, Path(pretrained), classifier=backbone.classifier)
    return backbone


def check_name(name: str) -> None:
    """Raise a ValueError that names the nearest backbones, if none is called so."""
    if name in BACKBONES:
        return
    import timm

    if not timm.is_model(name):
        near = get_close_matches(name, BACKBONES, n=1) + get_close_matches(name, timm.list_models(), n=2)
        near = list(dict.fromkeys(near)) or list(BACKBONES)
        raise ValueError(f"no backbone is called {name!r}; did you mean {' or '.join(near)}?")


def _load_own(name: str, backbone: Backbone) -> None:
    if not isinstance(backbone, TimmBackbone):
        raise ValueError(
            f"no package ships weights of {name}; give a file with model.pretrained=PATH, --weights PATH or "
            f"once for all with `softwarp weights add FILE --as {name}`"
        )
    load_packaged_efficientnet_lite0(backbone.model)


def _build_timm(name: str, pooling: str, *, download: bool, drop_path: float = 0.0) -> TimmBackbone:
    address = address_to_fetch(name) if download else None
    try:
        if address:
            ask_hub(address)
        model = create(name, pooling=pooling, download=download, drop_path=drop_path)
    except (OSError, RuntimeError, AssertionError, TypeError) as error:  # hub, tag, or a model without a map
        reason = str(error).split("\n")[0] or "it returns no map of features; set model.pooling=native"
        cures = f"; {hub_cures(name)}" if download else ""
        raise ValueError(f"timm cannot build {name}: {reason}{cures}") from None
    return TimmBackbone(model, pooling=pooling)
