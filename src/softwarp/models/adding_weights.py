"""Adds a file of pretrained weights under a network's name, which is then pretrained everywhere."""

import sys
from collections import Counter
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from softwarp.models.backbones import build_backbone
from softwarp.models.timm_backbone import TimmBackbone
from softwarp.models.weights import check_file, load_tensors, read_weights
from softwarp.models.weights_folder import UNKNOWN, AddedWeights, find_added, sha256_of, store_weights


def add_weights(
    file: Path | str, name: str, *, licence: str | None = None, source: str = "", replace: bool = False
) -> AddedWeights:
    """Return the record of weights that are now softwarp's own for that network, on this machine.

    The file is a .safetensors, or a state dict as .pth or .pt, in float32, float16 or bfloat16. It is loaded
    into the network first, so that one of another network is refused.

    Args:
        name: what `build_backbone` calls the network; with a tag, as in `resnet50.tv_in1k`, it serves that
            tag alone, and without one no tag.
        licence: of the weights; by default what timm notes for them, or `unknown`.
        source: where the file came from.
        replace: put it in the place of another file that has the name.
    """
    path = Path(file)
    check_file(path)
    digest, before = sha256_of(path), find_added(name)
    same = before is not None and before.sha256 == digest
    if before and not (same or replace):
        raise ValueError(
            f"{name} already has weights, of {before.original} (SHA-256 {before.sha256[:12]}); put {path} in "
            "their place with --replace"
        )
    backbone = build_backbone(name)
    network: Any = backbone.model if isinstance(backbone, TimmBackbone) else backbone
    weights = _that_fit(network, read_weights(path), path, backbone.classifier)
    noted = getattr(network, "pretrained_cfg", {}).get("license")
    about = {
        "name": name,
        "sha256": digest,
        "original": path.name,
        "licence": licence or (before.licence if before and same else noted) or UNKNOWN,
        "source": source or (before.source if before and same else ""),
        "added": date.today().isoformat(),
    }
    return store_weights(weights, about=about)


def _that_fit(
    network: nn.Module, weights: dict[str, Tensor], path: Path, classifier: tuple[str, ...]
) -> Mapping[str, Tensor]:
    """The weights under the network's names, as they are or as timm renames those of a model's authors."""
    try:
        load_tensors(network, weights, path, classifier=classifier)
    except ValueError:
        renamed = _renamed_by_timm(network, weights)
        if renamed is None:
            raise
        load_tensors(network, renamed, path, classifier=classifier)
        return renamed
    return weights


def _renamed_by_timm(network: nn.Module, weights: dict[str, Tensor]) -> dict[str, Tensor] | None:
    """What timm makes of a file before it loads it; None if that is more than other names and shapes.

    timm also interpolates weights to another size of patch or image, which would let in other networks.
    """
    rename = getattr(sys.modules[type(network).__module__], "checkpoint_filter_fn", None)
    if rename is None:
        return None
    try:
        renamed: dict[str, Tensor] = rename(dict(weights), network)
        left = Counter(each.numel() for each in renamed.values())
    except Exception:  # timm expects the files that it knows, and checks none
        return None
    left.subtract(each.numel() for each in weights.values())
    return None if max(left.values(), default=0) > 0 else renamed
