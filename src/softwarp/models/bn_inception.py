"""BN-Inception, the backbone of many retrieval tables: GoogLeNet with batch norm.

S. Ioffe and C. Szegedy, Batch Normalization (2015), figure 5. Parameters carry the names of the usual
ImageNet checkpoint, `bn_inception-52deb4733.pth` of pretrained-models, which `model.pretrained=PATH` loads as
it is. That checkpoint came from Caffe: it reads blue, green, red with means 104, 117, 128 on 0..255. Here
images stay red, green, blue as everywhere else: `mean` is in that order, `forward` turns the channels round.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(NamedTuple):
    """Channels of the branches of one block; without `one` it halves the map and passes its input on."""

    one: int
    three_reduce: int
    three: int
    double_reduce: int
    double: int
    projection: int


BLOCKS = {
    "3a": Block(64, 64, 64, 64, 96, 32),
    "3b": Block(64, 64, 96, 64, 96, 64),
    "3c": Block(0, 128, 160, 64, 96, 0),
    "4a": Block(224, 64, 96, 96, 128, 128),
    "4b": Block(192, 96, 128, 96, 128, 128),
    "4c": Block(160, 128, 160, 128, 160, 128),
    "4d": Block(96, 128, 192, 160, 192, 128),
    "4e": Block(0, 128, 192, 192, 256, 0),
    "5a": Block(352, 192, 320, 160, 224, 128),
    "5b": Block(352, 192, 320, 192, 224, 128),
}


class BNInception(nn.Module):
    """Images [N, 3, H, W] in RGB, normalised by `mean` and `std`, in; a map [N, 1024, H / 32, W / 32] out.

    >>> BNInception()(torch.zeros(2, 3, 64, 64)).shape
    torch.Size([2, 1024, 2, 2])
    """

    channels = 1024
    in_channels = 3
    mean = (128 / 255, 117 / 255, 104 / 255)
    std = (1 / 255, 1 / 255, 1 / 255)
    classifier = ("last_linear", "fc")
    native = "max+avg"

    def __init__(self) -> None:
        super().__init__()
        self._add("conv1_7x7_s2", 3, 64, 7, stride=2)
        self._add("conv2_3x3_reduce", 64, 64, 1)
        self._add("conv2_3x3", 64, 192, 3)
        inputs = 192
        for name, block in BLOCKS.items():
            inputs = self._add_block(f"inception_{name}", inputs, block)
        self.to(memory_format=torch.channels_last)

    def _add(self, name: str, inputs: int, outputs: int, kernel: int, *, stride: int = 1) -> None:
        self.add_module(name, nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2))
        self.add_module(f"{name}_bn", nn.BatchNorm2d(outputs))

    def _add_block(self, name: str, inputs: int, block: Block) -> int:
        stride = 1 if block.one else 2
        if block.one:
            self._add(f"{name}_1x1", inputs, block.one, 1)
        self._add(f"{name}_3x3_reduce", inputs, block.three_reduce, 1)
        self._add(f"{name}_3x3", block.three_reduce, block.three, 3, stride=stride)
        self._add(f"{name}_double_3x3_reduce", inputs, block.double_reduce, 1)
        self._add(f"{name}_double_3x3_1", block.double_reduce, block.double, 3)
        self._add(f"{name}_double_3x3_2", block.double, block.double, 3, stride=stride)
        if block.projection:
            self._add(f"{name}_pool_proj", inputs, block.projection, 1)
        return block.one + block.three + block.double + (block.projection or inputs)

    def forward(self, images: Tensor) -> Tensor:
        features = images.flip(1).to(memory_format=torch.channels_last)  # the checkpoint reads BGR
        features = _halve(self._run(features, "conv1_7x7_s2"))
        features = _halve(self._run(features, "conv2_3x3_reduce", "conv2_3x3"))
        for name in BLOCKS:
            features = self._run_block(features, name)
        return features

    def _run(self, features: Tensor, *names: str) -> Tensor:
        for name in names:
            features = self.get_submodule(name)(features)
            features = F.relu(self.get_submodule(f"{name}_bn")(features), inplace=True)
        return features

    def _run_block(self, features: Tensor, name: str) -> Tensor:
        prefix = f"inception_{name}_"
        branches = [
            self._run(features, f"{prefix}3x3_reduce", f"{prefix}3x3"),
            self._run(
                features, f"{prefix}double_3x3_reduce", f"{prefix}double_3x3_1", f"{prefix}double_3x3_2"
            ),
        ]
        if not BLOCKS[name].one:
            return torch.cat([*branches, _halve(features, round_up=True)], dim=1)
        pooled = F.max_pool2d(features, 3, 1, 1) if name == "5b" else F.avg_pool2d(features, 3, 1, 1)
        one = self._run(features, f"{prefix}1x1")
        return torch.cat([one, *branches, self._run(pooled, f"{prefix}pool_proj")], dim=1)


def _halve(features: Tensor, *, round_up: bool = False) -> Tensor:
    """The maximum of 3x3 places at every second one; an odd size is rounded down or up."""
    # up beside convolutions, which round up; 224 px, the size of the checkpoint, meets no odd size there
    padding = [features.shape[2] % 2, features.shape[3] % 2] if round_up else [0, 0]
    return F.max_pool2d(features, 3, 2, padding, ceil_mode=True)
