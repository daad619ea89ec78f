"""The run folder: recipe.yaml, environment.json, metrics.jsonl, result.json, checkpoint and embeddings.

Only this module writes there. Every file is whole or absent, whatever happens to the process.
"""

import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from softwarp.files import atomic_write, write_text
from softwarp.recipe import Recipe, dump_recipe, read_recipe

FILES = (
    "recipe.yaml",
    "environment.json",
    "metrics.jsonl",
    "result.json",
    "checkpoint.pt",
    "embeddings.safetensors",
)
PACKAGES = ("softwarp", "torch", "numpy", "faiss-cpu", "scikit-learn", "pillow", "matplotlib")


class Run:
    """A folder with all that one training run was told and found out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def create(cls, folder: Path, recipe: Recipe) -> "Run":
        """Return a run that starts anew in `folder`: files of an earlier run there are removed."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            (folder / name).unlink(missing_ok=True)
        write_text(folder / "recipe.yaml", dump_recipe(recipe))
        write_json(folder / "environment.json", environment())
        return cls(folder)

    def recipe(self) -> Recipe:
        return read_recipe(self.folder / "recipe.yaml")

    def log(self, row: Mapping[str, Any]) -> None:
        """Append one row to metrics.jsonl and bring it to the disk; a line that a crash cut short goes."""
        with (self.folder / "metrics.jsonl").open("a+b") as file:
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
            file.write(json.dumps(row).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def history(self) -> list[dict[str, Any]]:
        """Return the rows of metrics.jsonl; a last line that a crash cut short is left out."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def write_result(self, result: Mapping[str, Any]) -> None:
        write_json(self.folder / "result.json", result)

    def result(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return result

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        with atomic_write(self.folder / "checkpoint.pt") as file:
            torch.save(dict(state), file)

    def load_checkpoint(self) -> dict[str, Any]:
        path = self.folder / "checkpoint.pt"
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        return state

    def save_embeddings(self, embeddings: Tensor, labels: Tensor) -> None:
        with atomic_write(self.folder / "embeddings.safetensors") as file:
            file.write(save({"embeddings": embeddings.contiguous(), "labels": labels.contiguous()}))

    def load_embeddings(self) -> tuple[Tensor, Tensor]:
        """Return the embeddings and labels of the evaluated classes."""
        tensors = load_file(self.folder / "embeddings.safetensors")
        return tensors["embeddings"], tensors["labels"]


def environment() -> dict[str, Any]:
    """Return what else a result depends on: versions, machine and number of threads."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


def write_json(path: Path, content: Any) -> None:
    """Write `content` as readable JSON, atomically."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
