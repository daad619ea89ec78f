"""Where a network's pretrained weights come from, with licence and hash, for runs, cards and exports."""

import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from softwarp.models.hub import cached_file, repository_of
from softwarp.models.weights import PACKAGE, packaged_efficientnet_lite0
from softwarp.models.weights_folder import UNKNOWN, find_added, sha256_of


class WeightsOrigin(BaseModel):
    """Where pretrained weights come from; it names no path of this machine."""

    model_config = ConfigDict(frozen=True)
    name: str  # of the network
    where: str
    licence: str = UNKNOWN
    sha256: str = ""  # of the file; empty if there is none on this machine

    def __str__(self) -> str:
        sha256 = f", SHA-256 {self.sha256}" if self.sha256 else ""
        return f"{self.name} from {self.where}, licence {self.licence}{sha256}"


def origin_of(name: str, pretrained: bool | str) -> WeightsOrigin | None:
    """Return where `build_backbone(name, pretrained=pretrained)` takes weights from; None if from nowhere."""
    import timm

    if pretrained is False:
        return None
    if isinstance(pretrained, str):
        path = Path(pretrained)
        digest = sha256_of(path) if path.is_file() else ""
        return WeightsOrigin(name=name, where=f"the file {path.name}", sha256=digest)
    if added := find_added(name):
        where = " ".join(filter(None, (f"the file {added.original}", added.source and f"({added.source})")))
        return WeightsOrigin(name=name, where=where, licence=added.licence, sha256=added.sha256)
    if name == "efficientnet_lite0":
        return packaged_origin()
    if not timm.is_model(name):
        return None
    repository = repository_of(name)
    where = f"the hub's {repository}" if repository else "timm"
    return WeightsOrigin(name=name, where=where, licence=timm_licence(name), sha256=_cached_sha256(name))


def packaged_origin() -> WeightsOrigin | None:
    """Return where the packaged weights of efficientnet_lite0 come from; None without the package."""
    path = packaged_efficientnet_lite0()
    if path is None:
        return None
    return WeightsOrigin(
        name="efficientnet_lite0",
        where=f"the package {PACKAGE} {version(PACKAGE)}",
        licence="Apache-2.0",
        sha256=sha256_of(path),
    )


def timm_licence(name: str) -> str:
    """Return the licence that timm notes for a model's weights.

    >>> timm_licence("vit_small_patch14_dinov2"), timm_licence("iresnet50")
    ('apache-2.0', 'unknown')
    """
    import timm

    config: Any = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
    return str(config.license) if config and config.license else UNKNOWN


def _cached_sha256(name: str) -> str:
    path = cached_file(name)
    if path is None:
        return ""
    stored = path.resolve().name  # the hub's library calls large files by their SHA-256
    return stored if re.fullmatch("[0-9a-f]{64}", stored) else sha256_of(path)
