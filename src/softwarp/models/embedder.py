"""The embedding model: backbone -> pooling -> layer norm without affine -> linear, perhaps of unit length."""

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from softwarp.models.adapters import add_adapters
from softwarp.models.backbones import build_backbone
from softwarp.models.pooling import POOLINGS, VECTORS
from softwarp.models.stages import freeze_first

NORMS = ("before", "after", "none")
HEADS = ("linear", "none")
HEAD_INITS = ("kaiming", "default", "pca", "whitened")
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # mean and deviation on 0..1
TRAIN_NORMALIZATIONS = ("same", "imagenet")


class Embedder(nn.Module):
    """Images [N, channels, H, W] of bytes or floats 0..255 in, embeddings [N, embedding_size] out.

    >>> Embedder("small_conv", 16)(torch.zeros(2, 1, 32, 32)).shape
    torch.Size([2, 16])

    Args:
        backbone: a name that `build_backbone` knows; it also determines how images are normalised.
        embedding_size: None for as many as the backbone has features.
        pretrained: true for ImageNet weights, or the path of a local file.
        pooling: `native`, the backbone's own; `token+mean`, class token and mean of the patches side by side;
            or of the map or the patches `max+avg`, `avg`, `max` or `gem`, whose power is learned with the
            head.
        norm: layer norm without affine `before` the linear layer (the paper's authors, ProxyNCA++), `after`
            it (HIST) or `none`.
        head: `linear`, or `none`: pooled features are the embeddings (cross entropy, Boudiaf et al. 2020).
        head_init: `kaiming` (normal, fan out, zero bias), `default`, torch's own (the authors on SOP), or
            `pca` and `whitened`: training sets it to principal directions of its images, or to a whitening
            within their classes; until then it is `kaiming`.
        unit_length: embeddings have length 1, so that Euclidean and cosine neighbours are the same.
        freeze_batch_norm: the backbone's BatchNorm layers keep their statistics, `train()` or not, and their
            scale and shift get no gradient.
        freeze_stages: the first stages of the backbone that stay as they are.
        drop_path: share of residual branches that training skips in the last block; less in earlier ones.
        adapter: rank, alpha and dropout of adapters that are trained instead of the backbone's weights.
        train_normalization: `same`, the backbone's own mean and deviation of pixels, or `imagenet`: those of
            ImageNet in training mode, the backbone's own in evaluation mode (the authors' code for faces).
    """

    def __init__(
        self,
        backbone: str,
        embedding_size: int | None,
        *,
        pretrained: bool | str = False,
        pooling: str = "native",
        norm: str = "before",
        head: str = "linear",
        head_init: str = "kaiming",
        unit_length: bool = False,
        freeze_batch_norm: bool = False,
        freeze_stages: int = 0,
        drop_path: float = 0.0,
        adapter: Mapping[str, Any] | None = None,
        train_normalization: str = "same",
    ) -> None:
        super().__init__()
        _check_choice("pooling", pooling, (*VECTORS, *POOLINGS))
        _check_choice("norm", norm, NORMS)
        _check_choice("head", head, HEADS)
        _check_choice("head_init", head_init, HEAD_INITS)
        _check_choice("train_normalization", train_normalization, TRAIN_NORMALIZATIONS)
        self.name = backbone
        self.backbone = build_backbone(backbone, pretrained=pretrained, pooling=pooling, drop_path=drop_path)
        self.pooling = self.backbone.native if pooling == "native" else pooling
        if train_normalization == "imagenet" and self.backbone.in_channels != 3:
            raise ValueError(
                f"train_normalization imagenet is for RGB, but {backbone} reads {self.backbone.in_channels} "
                "channels; omit it"
            )
        self.pool = POOLINGS[self.pooling]() if self.pooling in POOLINGS else nn.Identity()
        self.norm = _layer_norm(self.backbone.channels) if norm == "before" else nn.Identity()
        self.embedding_size = self.backbone.channels if embedding_size is None else embedding_size
        self.head = _build_head(head, self.backbone.channels, self.embedding_size)
        self.last_norm = _layer_norm(self.embedding_size) if norm == "after" else nn.Identity()
        self.unit_length = unit_length
        if head_init != "default" and isinstance(self.head, nn.Linear):
            nn.init.kaiming_normal_(self.head.weight, mode="fan_out")
            nn.init.zeros_(self.head.bias)
        self.mean: Tensor
        self.std: Tensor
        self.train_mean: Tensor
        self.train_std: Tensor
        own = self.backbone.mean, self.backbone.std
        for prefix, values in (("", own), ("train_", IMAGENET if train_normalization == "imagenet" else own)):
            for name, value in zip(("mean", "std"), values, strict=True):
                # scaled to 0..255, so that normalising is one subtraction and one division
                scale = torch.tensor(value).mul(255).view(1, -1, 1, 1)
                self.register_buffer(prefix + name, scale, persistent=False)
        self.freeze_batch_norm = freeze_batch_norm or adapter is not None
        if self.freeze_batch_norm:
            for layer in self._batch_norms():
                layer.requires_grad_(False)
        self.frozen = freeze_first(self.backbone, freeze_stages) if freeze_stages else []
        if adapter is not None:
            rank, alpha = adapter["rank"], adapter.get("alpha")
            add_adapters(self.backbone, rank=rank, alpha=alpha or 2 * rank, dropout=adapter["dropout"])
        self.train(self.training)

    def forward(self, images: Tensor, *, freeze_backbone: bool = False) -> Tensor:
        """Return the embeddings; with `freeze_backbone` no gradient reaches the backbone."""
        return self.from_head_input(self.head_input(images, freeze_backbone=freeze_backbone))

    def head_input(self, images: Tensor, *, freeze_backbone: bool = False) -> Tensor:
        """Return what the head sees, [N, channels]."""
        seen: Tensor = self.norm(self.pooled(images, freeze_backbone=freeze_backbone))
        return seen

    def from_pooled(self, pooled: Tensor) -> Tensor:
        """Return the embeddings of pooled features."""
        return self.from_head_input(self.norm(pooled))

    def from_head_input(self, seen: Tensor) -> Tensor:
        """Return the embeddings of what the head sees."""
        embeddings: Tensor = self.last_norm(self.head(seen))
        return F.normalize(embeddings) if self.unit_length else embeddings

    def features(self, images: Tensor) -> Tensor:
        """Return pooled features [N, channels] after layer norm, whatever `norm` is: the baseline from the
        backbone alone, which training has to beat."""
        return plain_norm(self.pooled(images))

    def pooled(self, images: Tensor, *, freeze_backbone: bool = False) -> Tensor:
        """Return the backbone's features, one vector per image [N, channels], before any layer norm."""
        wanted = self.backbone.in_channels
        if images.shape[1] not in (1, wanted):
            raise ValueError(
                f"the backbone reads {wanted} channels, but these images have {images.shape[1]}; "
                "convert them to grey or use a backbone for RGB"
            )
        if images.is_floating_point() and not torch.compiler.is_compiling() and 0 < images.max() <= 1:
            raise ValueError(
                "images must be bytes or floats 0..255, but these are floats 0..1; multiply by 255"
            )
        images = images.expand(-1, wanted, -1, -1).to(self.mean.dtype)
        mean, std = (self.train_mean, self.train_std) if self.training else (self.mean, self.std)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not freeze_backbone):
            features = self.backbone((images - mean) / std)
        return self.pool(features)

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode; what is frozen stays in evaluation mode."""
        super().train(mode)
        for module in (*(self._batch_norms() if self.freeze_batch_norm else ()), *self.frozen):
            module.eval()
        return self

    def _batch_norms(self) -> list[nn.Module]:
        return [layer for layer in self.backbone.modules() if isinstance(layer, _BatchNorm)]

    def backbone_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the backbone, frozen ones included."""
        return list(self.backbone.parameters())

    def head_parameters(self) -> list[nn.Parameter]:
        """Return all other parameters: the linear layer, and the power of `gem`."""
        return [value for name, value in self.named_parameters() if not name.startswith("backbone.")]


def _build_head(head: str, channels: int, embedding_size: int) -> nn.Module:
    if head == "linear":
        return nn.Linear(channels, embedding_size)
    if embedding_size != channels:
        raise ValueError(
            f"without a head, embeddings are the backbone's {channels} features, not {embedding_size}; "
            f"set model.embedding_size={channels}"
        )
    return nn.Identity()


def plain_norm(pooled: Tensor) -> Tensor:
    """Return pooled features after a layer norm without affine."""
    return F.layer_norm(pooled, pooled.shape[1:])


def _layer_norm(size: int) -> nn.LayerNorm:
    return nn.LayerNorm(size, elementwise_affine=False)


def _check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, not {value!r}")
