"""Backbones: normalised images in, a map of features [N, channels, height, width] out.

Every backbone says what it reads: `in_channels`, and `mean` and `std` on the scale 0..1, in RGB order.
"""

from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from softwarp.models.bn_inception import BNInception
from softwarp.models.hub import address_to_fetch, ask_hub
from softwarp.models.iresnet import LAYERS, IResNet
from softwarp.models.weights import hub_cures, load_packaged_efficientnet_lite0, load_weights
from softwarp.models.weights_folder import checked_file, find_added


class SmallConvNet(nn.Module):
    """Four convolutions for small grey images: glyphs, digits, the toy studies."""

    channels = 128
    in_channels = 1
    mean = (0.0,)
    std = (1.0,)
    classifier = ()

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


class TimmBackbone(nn.Module):
    """A timm model without pooling and classifier; its output is turned into a map [N, channels, H, W]."""

    def __init__(
        self,
        model: Any,  # timm has no types
        *,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
    ) -> None:
        super().__init__()
        self.model: nn.Module = model.to(memory_format=torch.channels_last)  # a third faster on CPUs
        config = model.pretrained_cfg
        self.mean: tuple[float, ...] = mean or tuple(config["mean"])
        self.std: tuple[float, ...] = std or tuple(config["std"])
        self.in_channels = int(config["input_size"][0])
        self.channels = int(getattr(model, "head_hidden_size", None) or model.num_features)
        names = config.get("classifier") or ()
        self.classifier: tuple[str, ...] = (names,) if isinstance(names, str) else tuple(names)
        has_class_token = getattr(model, "cls_token", None) is not None
        self.prefix_tokens = int(getattr(model, "num_prefix_tokens", has_class_token))
        self.channels_at_end = getattr(model, "output_fmt", None) == "NHWC"

    def forward(self, images: Tensor) -> Tensor:
        output: Any = self.model(images.to(memory_format=torch.channels_last))
        features = self._as_map(output, images) if isinstance(output, Tensor) else None
        if features is None or features.ndim != 4 or features.shape[1] != self.channels:
            raise ValueError(
                f"timm's {type(self.model).__name__} does not return a map of {self.channels} features"
            )
        return features

    def _as_map(self, output: Tensor, images: Tensor) -> Tensor:
        if output.ndim == 3:
            return _tokens_to_map(output[:, self.prefix_tokens :], images.shape[2] / images.shape[3])
        return output.permute(0, 3, 1, 2) if output.ndim == 4 and self.channels_at_end else output


def _tokens_to_map(tokens: Tensor, aspect: float) -> Tensor:
    """[N, T, C] as [N, C, rows, columns] for an image of that height / width; pooling needs no more."""
    count = tokens.shape[1]
    rows = max(1, round((count * aspect) ** 0.5))
    rows = rows if count % rows == 0 else 1
    return tokens.transpose(1, 2).reshape(tokens.shape[0], -1, rows, count // rows)


Backbone = SmallConvNet | BNInception | IResNet | TimmBackbone


def _efficientnet_lite0(**settings: Any) -> TimmBackbone:
    import timm

    model = timm.create_model("tf_efficientnet_lite0", num_classes=0, global_pool="", **settings)
    return TimmBackbone(model, mean=(127 / 255,) * 3, std=(128 / 255,) * 3)


BACKBONES: dict[str, Callable[..., Backbone]] = {
    "small_conv": SmallConvNet,
    "efficientnet_lite0": _efficientnet_lite0,
    "bn_inception": BNInception,
    **{f"iresnet{depth}": partial(IResNet, depth) for depth in LAYERS},
    **{f"iresnet{depth}_wide_stem": partial(IResNet, depth, wide_stem=True) for depth in LAYERS},
}


def build_backbone(name: str, *, pretrained: bool | str = False, drop_path: float = 0.0) -> Backbone:
    """Return the backbone of that name: one of `BACKBONES`, or any timm model that returns a map or tokens.

    >>> build_backbone("small_conv").channels
    128

    Args:
        pretrained: true for the weights that `softwarp weights add` was given for that name, else ImageNet
            weights (those of `efficientnet_lite0` come with the extra `weights`, timm's from a hub), or the
            path of a local .safetensors, .pth or .pt file.
        drop_path: share of residual branches that training skips in the last block, for networks of timm.
    """
    if pretrained is True and (added := find_added(name)):
        pretrained = str(checked_file(added))
    settings = {"drop_path_rate": drop_path} if drop_path else {}
    if name in BACKBONES:
        try:
            backbone = BACKBONES[name](**settings)
        except TypeError:
            raise ValueError(f"{name} has no branches to drop; omit model.drop_path") from None
        if pretrained is True:
            _load_own(name, backbone)
    else:
        backbone = _build_timm(name, download=pretrained is True, **settings)
    if isinstance(pretrained, str):
        target = backbone.model if isinstance(backbone, TimmBackbone) else backbone
        load_weights(target, Path(pretrained), classifier=backbone.classifier)
    return backbone


def _load_own(name: str, backbone: Backbone) -> None:
    if not isinstance(backbone, TimmBackbone):
        raise ValueError(
            f"no package ships weights of {name}; give a file with model.pretrained=PATH, --weights PATH or "
            f"once for all with `softwarp weights add FILE --as {name}`"
        )
    load_packaged_efficientnet_lite0(backbone.model)


def _build_timm(name: str, *, download: bool, **settings: Any) -> TimmBackbone:
    import timm

    if not timm.is_model(name):
        near = get_close_matches(name, BACKBONES, n=1) + get_close_matches(name, timm.list_models(), n=2)
        near = list(dict.fromkeys(near)) or list(BACKBONES)
        raise ValueError(f"no backbone is called {name!r}; did you mean {' or '.join(near)}?")
    address = address_to_fetch(name) if download else None
    try:
        if address:
            ask_hub(address)
        whole = timm.create_model(name, pretrained=download, num_classes=0, global_pool="", **settings)
        return TimmBackbone(whole)
    except (OSError, RuntimeError, AssertionError, TypeError) as error:  # hub, tag, or a model without a map
        reason = str(error).split("\n")[0] or "it returns no map of features"
        cures = f"; {hub_cures(name)}" if download else ""
        raise ValueError(f"timm cannot build {name}: {reason}{cures}") from None
