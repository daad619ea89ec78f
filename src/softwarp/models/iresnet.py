"""iResNet, the network of face recognition: 112 x 112 pixels in, embeddings of 512 dimensions out.

J. Deng et al., ArcFace (2019), section 3.1; I. Duta et al., Improved Residual Networks (2020). Parameters
carry the names of insightface's `arcface_torch`, whose checkpoints (`backbone.pth`, `model.pt`)
`model.pretrained=PATH` loads as they are. Pixels are scaled to -1..1 there, which `mean` and `std` say here.

`wide_stem` is the network of the warped softmax's authors, who begin with a convolution of 7 x 7 and stride
2, which leaves 54 x 54 places, and do not stride in the first stage. Names are the same, but the first block
has no convolution beside it: weights of one network do not fit the other.

The last layers look at every place of the 7 x 7 map, so there is nothing to pool: the output is a map of one
place, and a recipe has `model: {pooling: avg, norm: none, head: none, embedding_size: 512}`.
"""

import torch
from torch import Tensor, nn

LAYERS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 14, 3), 100: (3, 13, 30, 3)}
WIDTHS = (64, 128, 256, 512)
SIDE = 112  # pixels; each of four stages halves it, or the wide stem and three stages do
PLACES = (SIDE // 16) ** 2


class Block(nn.Module):
    """Two convolutions beside a shortcut; batch norm first, and nothing after the sum."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.prelu = nn.PReLU(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            narrow = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(narrow, nn.BatchNorm2d(outputs))

    def forward(self, features: Tensor) -> Tensor:
        inner = self.prelu(self.bn2(self.conv1(self.bn1(features))))
        outer: Tensor = self.bn3(self.conv2(inner)) + self.downsample(features)
        return outer


class IResNet(nn.Module):
    """Images [N, 3, 112, 112] in RGB, normalised by `mean` and `std`, in; a map [N, 512, 1, 1] out.

    >>> IResNet(18).eval()(torch.zeros(2, 3, 112, 112)).shape
    torch.Size([2, 512, 1, 1])

    Args:
        depth: 18, 34, 50 or 100.
        wide_stem: the first convolution is 7 x 7 with stride 2, and the first stage has stride 1.
    """

    channels = 512
    in_channels = 3
    mean = (0.5, 0.5, 0.5)
    std = (0.5, 0.5, 0.5)
    classifier = ()
    native = "avg"

    def __init__(self, depth: int, *, wide_stem: bool = False) -> None:
        super().__init__()
        self.wide_stem = wide_stem
        window, stride = (7, 2) if wide_stem else (3, 1)
        self.conv1 = nn.Conv2d(3, 64, window, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.prelu = nn.PReLU(64)
        inputs = 64
        for number, (width, blocks) in enumerate(zip(WIDTHS, LAYERS[depth], strict=True), start=1):
            first = Block(inputs, width, stride=1 if wide_stem and number == 1 else 2)
            others = [Block(width, width, stride=1) for _ in range(blocks - 1)]
            self.add_module(f"layer{number}", nn.Sequential(first, *others))
            inputs = width
        self.bn2 = nn.BatchNorm2d(inputs)
        self.fc = nn.Linear(inputs * PLACES, self.channels)
        self.features = nn.BatchNorm1d(self.channels)
        self.features.weight.requires_grad = False  # it stays 1
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.normal_(layer.weight, 0, 0.1)
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[2:] != (SIDE, SIDE):
            raise ValueError(
                f"iresnet reads {SIDE} x {SIDE} pixels, but these images are {images.shape[2]} x "
                f"{images.shape[3]}; set data.resize={SIDE} data.crop={SIDE}"
            )
        features = self.prelu(self.bn1(self.conv1(images.to(memory_format=torch.channels_last))))
        for number in range(1, len(WIDTHS) + 1):
            features = self.get_submodule(f"layer{number}")(features)
        with torch.autocast(
            images.device.type, enabled=False
        ):  # half precision is too coarse for the last layers
            flat = self.bn2(features.to(self.fc.weight.dtype)).flatten(1)
            embeddings: Tensor = self.features(self.fc(flat))
        return embeddings[:, :, None, None]
