"""What a backbone's images look like: crop, resizing and the sizes that it takes, by its name alone."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

from softwarp.models.backbones import BACKBONES, check_name
from softwarp.models.iresnet import SIDE
from softwarp.models.timm_backbone import create, in_modules

STEPS = (1, 8, 10, 12, 14, 16, 28, 32, 64)  # sides of patches, and strides of networks that add up maps
# timm says that these take any size, but their features are those of the size in their name alone: at 128
# pixels TinyViT's windows of 7 x 7 are mostly padding.
FIXED = ("tiny_vit",)


@dataclass(frozen=True)
class Preparation:
    """How images are prepared for a network where it was pretrained, as timm notes it.

    `crop_mode` center keeps the centre of an image whose shorter side is `resize` pixels long; squash makes
    the whole image a square of that side first. `licence` is that of the weights, None if nobody says.
    """

    crop: int = 224
    resize: int = 256
    interpolation: str = "bilinear"
    crop_mode: str = "center"
    licence: str | None = None


@dataclass(frozen=True)
class Sizes:
    """Which squares a network reads: its `own`, and multiples of `step`; 0 stands for none."""

    own: int
    step: int = 1

    def fits(self, side: int) -> bool:
        """Return whether the network reads squares of that side."""
        return side == self.own or bool(self.step and side >= self.step and side % self.step == 0)

    def at_most(self, side: int) -> int:
        """Return the largest side up to this one that fits; the smallest that fits, if none does.

        >>> Sizes(518, 14).at_most(160), Sizes(224, 0).at_most(160)
        (154, 224)
        """
        if not self.step:
            return self.own
        return max(side - side % self.step, self.step)


def preparation_of(name: str) -> Preparation:
    """Return how images are prepared for a backbone by its name.

    >>> preparation_of("vit_small_patch14_dinov2")
    Preparation(crop=518, resize=518, interpolation='bicubic', crop_mode='center', licence='apache-2.0')
    """
    check_name(name)
    if name == "efficientnet_lite0":
        return Preparation(licence="apache-2.0")
    if name in BACKBONES:
        return Preparation(crop=SIDE, resize=SIDE) if name.startswith("iresnet") else Preparation()
    import timm

    try:
        found: Any = timm.get_pretrained_cfg(name)
    except RuntimeError as error:  # an unknown tag
        raise ValueError(f"timm cannot build {name}: {error}") from None
    crop = min(found.input_size[1:])
    return Preparation(
        crop=crop,
        resize=math.floor(crop / found.crop_pct),
        interpolation=found.interpolation,
        crop_mode="squash" if found.crop_mode == "squash" else "center",
        licence=found.license,
    )


@cache
def sizes_of(name: str) -> Sizes:
    """Return which squares a backbone reads; a network of timm is asked, without its weights.

    >>> sizes_of("vit_small_patch14_dinov2")
    Sizes(own=518, step=14)
    """
    own = preparation_of(name).crop
    if name in BACKBONES:
        return Sizes(own, 0 if name.startswith("iresnet") else 1)
    if in_modules(name, FIXED):
        return Sizes(own, 0)
    with _without_arithmetic():
        model = create(name, pooling="native").eval()
        if not _reads(model, own):  # a network that cannot be asked has to say so itself
            return Sizes(own)
        steps = (step for step in STEPS if all(_reads(model, side) for side in _around(own, step)))
        return Sizes(own, next(steps, 0))


@cache
def is_transformer(name: str) -> bool:
    """Return whether a backbone attends by linear layers, beside which low-rank adapters can stand.

    >>> is_transformer("vit_small_patch14_dinov2"), is_transformer("efficientnet_lite0")
    (True, False)
    """
    preparation_of(name)  # which refuses wrong names and tags
    if name in BACKBONES:
        return False
    with _without_arithmetic():
        parts = create(name, pooling="native").named_modules()
    attentions = (part for path, part in parts if path.endswith("attn"))
    return any(isinstance(layer, nn.Linear) for part in attentions for layer in part.modules())


def check_side(name: str, side: int) -> None:
    """Raise a ValueError that names sizes that would do, if a backbone does not read squares of that side.

    >>> check_side("vit_small_patch14_dinov2", 200)
    Traceback (most recent call last):
    ...
    ValueError: vit_small_patch14_dinov2 reads multiples of 14 pixels, not 200; set data.crop=196 or 210
    """
    sizes = sizes_of(name)
    if sizes.fits(side):
        return
    if not sizes.step:
        raise ValueError(
            f"{name} reads {sizes.own} x {sizes.own} pixels alone, not {side}; set data.crop={sizes.own} and "
            f"a data.resize of at least {sizes.own}"
        )
    below = side - side % sizes.step
    near = [str(each) for each in (below, below + sizes.step) if each]
    raise ValueError(
        f"{name} reads multiples of {sizes.step} pixels, not {side}; set data.crop={' or '.join(near)}"
    )


def _around(own: int, step: int) -> tuple[int, ...]:
    middle = own - own % step
    return middle - step, middle, middle + step


def _reads(model: Any, side: int) -> bool:
    try:
        model(torch.zeros(1, model.pretrained_cfg["input_size"][0], side, side))
    except (RuntimeError, AssertionError, ValueError, TypeError, IndexError):
        return False
    return True


@contextmanager
def _without_arithmetic() -> Iterator[None]:
    """Shapes alone: nothing is computed, drawn or kept."""
    with torch.random.fork_rng(devices=[]), torch.no_grad(), torch.device("meta"):
        yield
