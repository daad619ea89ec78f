"""Backbones: images in, a map of features [N, channels, height, width] out."""

from collections.abc import Callable
from difflib import get_close_matches

import torch
from torch import Tensor, nn


class SmallConvNet(nn.Module):
    """Four convolutions for small grey images: glyphs, digits, the toy studies."""

    channels = 128

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


BACKBONES: dict[str, Callable[[], SmallConvNet]] = {"small_conv": SmallConvNet}


def build_backbone(name: str) -> SmallConvNet:
    """Return the backbone of that name; a name that is not there is answered with the nearest one."""
    if name not in BACKBONES:
        near = get_close_matches(name, BACKBONES, n=1) or list(BACKBONES)
        raise ValueError(f"no backbone is called {name!r}; did you mean {near[0]}?")
    return BACKBONES[name]()
