"""The run folder: recipe.yaml, environment.json, metrics.jsonl, result.json, checkpoint and embeddings.

Only this module writes there. Every file is whole or absent, whatever happens to the process.
"""

import json
import os
import platform
import random
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from softwarp.files import atomic_write, write_text
from softwarp.recipe import Recipe, dump_recipe, read_recipe, write_out

FILES = (
    "recipe.yaml",
    "environment.json",
    "metrics.jsonl",
    "result.json",
    "checkpoint.pt",
    "model.safetensors",
    "embeddings.safetensors",
)
# What may differ when a run goes on: it does not change the outcome.
FREE = ("checkpoint_minutes", "trackers", "paper", "data.root", "data.workers")
PACKAGES = (
    "softwarp",
    "torch",
    "torchvision",
    "timm",
    "accelerate",
    "numpy",
    "faiss-cpu",
    "scikit-learn",
    "pillow",
    "matplotlib",
)


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

    def started(self) -> bool:
        """Whether there is anything to go on with: a checkpoint or a result."""
        return any((self.folder / name).exists() for name in ("checkpoint.pt", "result.json"))

    def check_recipe(self, recipe: Recipe) -> None:
        """Raise a ValueError unless the run in this folder is one of this recipe."""
        there, asked = _flat(write_out(self.recipe())), _flat(write_out(recipe))
        changed = [key for key in there | asked if there.get(key) != asked.get(key) and not _is_free(key)]
        if changed:
            key = changed[0]
            more = f" (and {len(changed) - 1} more differ)" * (len(changed) > 1)
            raise ValueError(
                f"{self.folder} holds a run of another recipe: {key} is {there.get(key)} there and "
                f"{asked.get(key)} here{more}; choose another --output, or start anew with --fresh"
            )

    def finished(self) -> bool:
        """Whether the result is there: it is what a run writes last."""
        return (self.folder / "result.json").exists()

    def what_it_is(self) -> str:
        """Return in words why this folder cannot be used as a finished run, and what to do."""
        seeds = sorted(self.folder.glob("seed-*"))
        if seeds:
            return f"{self.folder} is not a finished run but holds one for each seed: take {seeds[0]}"
        if (self.folder / "recipe.yaml").is_file():
            return f"{self.folder} is not a finished run: give its `softwarp train` again, and it goes on"
        return (
            f"{self.folder} is not a finished run, a folder that `softwarp train` or `softwarp demo` filled"
        )

    def recipe(self) -> Recipe:
        if not (self.folder / "recipe.yaml").is_file():
            raise FileNotFoundError(self.what_it_is())
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

    def cut_history(self, epochs: int) -> None:
        """Take back the rows of epochs after that one, and writes that a kill cut short: they come again."""
        for half in (path for name in FILES for path in self.folder.glob(f".{name}.*")):
            half.unlink()
        kept = [row for row in self.history() if row["epoch"] <= epochs]
        write_text(self.folder / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in kept))

    def write_result(self, result: Mapping[str, Any]) -> None:
        write_json(self.folder / "result.json", result)

    def result(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return result

    def save_checkpoint(self, state: Mapping[str, Any]) -> None:
        with atomic_write(self.folder / "checkpoint.pt") as file:
            torch.save(dict(state), file)

    def load_checkpoint(self) -> dict[str, Any] | None:
        """Return what `save_checkpoint` was given last, None when it never was."""
        path = self.folder / "checkpoint.pt"
        if not path.exists():
            return None
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        return state

    def save_model(self, state: Mapping[str, Tensor]) -> None:
        with atomic_write(self.folder / "model.safetensors") as file:
            file.write(save({name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}))

    def load_model(self) -> dict[str, Tensor]:
        if not (self.folder / "model.safetensors").is_file():
            raise FileNotFoundError(self.what_it_is())
        return load_file(self.folder / "model.safetensors")

    def save_embeddings(
        self,
        embeddings: Tensor,
        labels: Tensor,
        gallery: Tensor | None = None,
        gallery_labels: Tensor | None = None,
    ) -> None:
        tensors = {
            "embeddings": embeddings,
            "labels": labels,
            "gallery": gallery,
            "gallery_labels": gallery_labels,
        }
        with atomic_write(self.folder / "embeddings.safetensors") as file:
            file.write(save({name: t.contiguous() for name, t in tensors.items() if t is not None}))

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


def random_state() -> dict[str, Any]:
    """Return the state of every random generator that training may use, as a checkpoint can hold it."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002 - other libraries draw from it
    return {
        "torch": torch.get_rng_state(),
        "cuda": [torch.cuda.get_rng_state()]
        if torch.cuda.is_available()
        else [],  # every process draws alike
        "numpy": [kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest],
        "python": list(random.getstate()),
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Put every generator back to a state that `random_state` returned."""
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and state["cuda"]:
        torch.cuda.set_rng_state(state["cuda"][0])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))  # noqa: NPY002
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))


def _is_free(key: str) -> bool:
    return key in FREE or key.split(".")[0] in FREE


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings with dotted keys; lists stay whole."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= (
            _flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {prefix + key: value}
        )
    return flat


def write_json(path: Path, content: Any) -> None:
    """Write `content` as readable JSON, atomically."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
