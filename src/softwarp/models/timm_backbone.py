"""Networks of timm: how they are built, and what comes out of them as a map or as one vector per image."""

from typing import Any

import torch
from torch import Tensor, nn

from softwarp.models.pooling import VECTORS

# Of these modules every network takes images of any size that its patches divide, if it is told so.
RESIZABLE = ("vision_transformer", "eva", "deit")


def create(name: str, *, pooling: str, download: bool = False, drop_path: float = 0.0) -> Any:
    """Return timm's model without its classifier, pooled by itself or, for a pooling of ours, not at all."""
    import timm

    options: dict[str, Any] = {} if pooling in VECTORS else {"global_pool": ""}
    if in_modules(name, RESIZABLE):
        options["dynamic_img_size"] = True
    if drop_path:
        options["drop_path_rate"] = drop_path
    return timm.create_model(name, pretrained=download, num_classes=0, **options)


def in_modules(name: str, modules: tuple[str, ...]) -> bool:
    """Return whether timm has the network in one of these modules.

    >>> in_modules("vit_small_patch14_dinov2.lvd142m", RESIZABLE)
    True
    """
    from timm.models import is_model_in_modules

    return bool(is_model_in_modules(name.partition(".")[0], modules))


class TimmBackbone(nn.Module):
    """A timm model without classifier; its output is a map [N, channels, H, W] or vectors [N, channels].

    Args:
        model: from `create` with the same pooling.
        pooling: `native` is timm's own: the class token, attention or the average. `token+mean` puts the
            class token and the mean of the patches side by side. Any other is ours, and needs a map, without
            class token and registers.
    """

    def __init__(
        self,
        model: Any,  # timm has no types
        *,
        pooling: str = "max+avg",
        native: str = "native",
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
    ) -> None:
        super().__init__()
        self.model: nn.Module = model.to(memory_format=torch.channels_last)  # a third faster on CPUs
        config = model.pretrained_cfg
        self.pooling, self.native = pooling, native
        self.mean: tuple[float, ...] = mean or tuple(config["mean"])
        self.std: tuple[float, ...] = std or tuple(config["std"])
        self.in_channels = int(config["input_size"][0])
        names = config.get("classifier") or ()
        self.classifier: tuple[str, ...] = (names,) if isinstance(names, str) else tuple(names)
        if pooling not in VECTORS:
            self.classifier = (*self.classifier, "attn_pool")  # a file has it, a map does not need it
        has_class_token = getattr(model, "cls_token", None) is not None
        if pooling == "token+mean" and not has_class_token:
            raise ValueError(
                f"pooling token+mean needs a class token, which {config['architecture']} does not have; "
                "set model.pooling=native"
            )
        width = int(getattr(model, "head_hidden_size", None) or model.num_features)
        self.channels = 2 * int(model.num_features) if pooling == "token+mean" else width
        self.prefix_tokens = int(getattr(model, "num_prefix_tokens", has_class_token))
        self.channels_at_end = getattr(model, "output_fmt", None) == "NHWC"

    def forward(self, images: Tensor) -> Tensor:
        images = images.to(memory_format=torch.channels_last)
        output = self._vectors(images) if self.pooling in VECTORS else self._map(images)
        if output is None or output.shape[1] != self.channels:
            what = "vectors" if self.pooling in VECTORS else "a map"
            raise ValueError(
                f"timm's {type(self.model).__name__} does not return {what} of {self.channels} features"
            )
        return output

    def _vectors(self, images: Tensor) -> Tensor | None:
        model: Any = self.model
        features = model.forward_features(images)
        if self.pooling == "token+mean":
            both = torch.stack([features[:, 0], features[:, self.prefix_tokens :].mean(1)], dim=1)
            return getattr(model, "fc_norm", nn.Identity())(both).flatten(1)  # type: ignore[no-any-return]
        pooled = model.forward_head(features, pre_logits=True)
        return pooled if isinstance(pooled, Tensor) and pooled.ndim == 2 else None

    def _map(self, images: Tensor) -> Tensor | None:
        output: Any = self.model(images)
        if not isinstance(output, Tensor) or output.ndim not in (3, 4):
            return None
        if output.ndim == 3:
            return _tokens_to_map(output[:, self.prefix_tokens :], images.shape[2] / images.shape[3])
        return output.permute(0, 3, 1, 2) if self.channels_at_end else output


def _tokens_to_map(tokens: Tensor, aspect: float) -> Tensor:
    """[N, T, C] as [N, C, rows, columns] for an image of that height / width; pooling needs no more."""
    count = tokens.shape[1]
    rows = max(1, round((count * aspect) ** 0.5))
    rows = rows if count % rows == 0 else 1
    return tokens.transpose(1, 2).reshape(tokens.shape[0], -1, rows, count // rows)
