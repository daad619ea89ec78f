"""A model in Hugging Face form: config.json and model.safetensors in a local folder or on the hub."""

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from softwarp.models.hub import ask_hub
from softwarp.models.pooling import BEFORE
from softwarp.recipe.schema import CropMode, Interpolation, ModelPart
from softwarp.runs.result import read_json_as

CONFIG, WEIGHTS = "config.json", "model.safetensors"
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


class ModelConfig(BaseModel):
    """What config.json says: everything that embeddings depend on, except the weights.

    `mean` and `std` are on the scale 0..1. The network contains them: its input is bytes 0..255.
    """

    model_config = ConfigDict(frozen=True, populate_by_name=True)  # others may add keys
    library_name: Literal["softwarp"] = "softwarp"
    version: Literal[1] = Field(1, alias="schema")  # raise it when a key changes its meaning
    model: ModelPart
    distance: Literal["euclidean", "cosine"]
    embedding_size: int
    input: str
    channels: int
    resize: int = Field(ge=1, le=4096)
    crop: int = Field(ge=1, le=4096)
    interpolation: str
    crop_mode: CropMode = "center"  # so in folders that do not say it
    mean: tuple[float, ...]
    std: tuple[float, ...]
    pretrained_weights: str = ""  # what the backbone began with: their origin, licence and hash, if known
    untrained: bool = False  # the backbone still has these weights, so its features may be in the cache

    @property
    def resampling(self) -> Interpolation:
        """How pixels are resized; `interpolation` says it in words."""
        return "bicubic" if self.interpolation.startswith("bicubic") else "bilinear"

    @field_validator("model", mode="before")
    @classmethod
    def _pooled_as_then(cls, model: Any) -> Any:
        return {"pooling": BEFORE} | model if isinstance(model, dict) else model


def find_model_folder(name: Path | str) -> Path | None:
    """Return the local folder of a model in Hugging Face form, fetched if `name` is `user/name` on the hub.

    None if `name` is anything else, for example a run. A folder on this machine comes before the hub, and
    `runs/typo` is never asked for there if there is a folder `runs`.

    >>> find_model_folder("runs/demo/warped_softmax")
    """
    if (Path(name) / CONFIG).is_file():
        return Path(name)
    if isinstance(name, Path) or not HUB_NAME.fullmatch(name) or Path(name.split("/")[0]).exists():
        return None
    return fetch(name)


def fetch(name: str) -> Path:
    """Return the folder in the hub's cache with config and weights of `user/name`, up to date if possible."""
    from huggingface_hub import hf_hub_url, snapshot_download

    reason = ""
    try:
        ask_hub(hf_hub_url(name, CONFIG))
    except OSError as error:  # without this request the library would retry for a minute
        reason = str(error)
    try:
        kept = snapshot_download(name, allow_patterns=[CONFIG, WEIGHTS], local_files_only=bool(reason))
    except (OSError, ValueError) as error:  # the hub's errors are OSErrors; a bad name is a ValueError
        cause = reason or str(error).strip().splitlines()[0]
        raise FileNotFoundError(
            f"{name} is neither a folder here nor a model that the hub gives ({cause}); check the name, or "
            "run `hf auth login` if it is private"
        ) from None
    return Path(kept)


def read_config(folder: Path) -> ModelConfig:
    """Return the config of a folder that `softwarp export --to hf` wrote, or raise a ValueError."""
    cure = "write it again with `softwarp export --to hf`"
    if not (folder / WEIGHTS).is_file():
        raise FileNotFoundError(f"{folder} has a {CONFIG} but no {WEIGHTS}; {cure}")
    return read_json_as(ModelConfig, folder / CONFIG, cure=cure)
