"""The run folder: recipe.yaml, environment.json, metrics.jsonl, result.json, checkpoint, model, embeddings.

Only this module writes there. Every file is whole or absent, whatever happens to the process.
"""

import csv
import json
import os
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from softwarp import processes
from softwarp.files import atomic_write, locked_folder, write_csv, write_json, write_text
from softwarp.models.pooling import BEFORE
from softwarp.models.weights_origin import WeightsOrigin, origin_of
from softwarp.recipe.files import read_settings
from softwarp.recipe.overrides import difference_of, dump_recipe, write_out
from softwarp.recipe.schema import Recipe, parse_recipe
from softwarp.runs.class_rows import check_rows, copy_class_rows, remove_rows, write_class_rows
from softwarp.runs.provenance import OF_RUNS, check_rules, environment, outdated
from softwarp.runs.result import Result, read_json_as

CHECKPOINTS = ("checkpoint.pt", "checkpoint-before.pt")
FILES = (  # in the order in which they are removed: what can be resumed has a recipe at every moment
    "result.json",
    *CHECKPOINTS,
    "environment.json",
    "metrics.jsonl",
    "model.safetensors",
    "embeddings.safetensors",
    "items.csv",
    "seeds.json",
    "recipe.yaml",
)


class EvaluatedImage(NamedTuple):
    """An evaluated image: its file, its class, and its row of the embeddings."""

    file: str  # relative to the data's root, or the name of a glyph
    class_name: str
    split: str  # validation, test, query or gallery
    row: int | None  # None if it could not be read


class Run:
    """A folder with the input and output of one training run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows_before = ""  # the folder of class rows that the last checkpoint names

    @classmethod
    def create(cls, folder: Path, recipe: Recipe) -> "Run":
        """Return a new run in `folder`; files of an earlier run there are removed."""
        folder.mkdir(parents=True, exist_ok=True)
        run = cls(folder)
        run.clear()
        write_text(folder / "recipe.yaml", dump_recipe(recipe))
        origin = origin_of(recipe.model.backbone, recipe.model.pretrained)
        weights = {"weights": origin.model_dump() if origin else None}
        write_json(folder / "environment.json", environment() | weights)
        return run

    def clear(self) -> None:
        """Remove the files of the run."""
        self._remove(FILES)

    def _remove(self, names: Iterable[str]) -> None:
        """Remove these files, and the rows of classes that belong to a checkpoint."""
        for name in names:
            (self.folder / name).unlink(missing_ok=True)
        remove_rows(self.folder)

    def take(self, other: "Run") -> None:
        """Become a finished run: this folder is without a result only while files are copied.

        What only an unfinished run needs is left behind.
        """
        with self.locked():
            self.clear()
            for name in FILES:
                if name not in (*CHECKPOINTS, "result.json") and (other.folder / name).is_file():
                    shutil.copyfile(other.folder / name, self.folder / name)
            self.write_result(other.result())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out of the folder, which is created if needed."""
        made = not self.folder.exists()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = error.strerror or "unknown"
            raise OSError(f"{self.folder} cannot be created ({reason}); choose another folder") from None
        with ExitStack() as stack:
            try:
                stack.enter_context(locked_folder(self.folder))
            except ValueError as error:
                raise ValueError(f"{error}; wait for it, or choose another folder") from None
            try:
                yield
            finally:
                if made and not any(self.folder.iterdir()):  # the run was refused
                    self.folder.rmdir()

    def started(self) -> bool:
        """Return whether there is anything to resume: a checkpoint or a result."""
        return any((self.folder / name).exists() for name in (*CHECKPOINTS, "result.json"))

    def finished(self) -> bool:
        """Return whether the result is there; a run writes it last."""
        return (self.folder / "result.json").exists()

    def check_recipe(self, recipe: Recipe, *, but: Sequence[str] = ()) -> None:
        """Raise a ValueError unless the run has this recipe and, if it is to go on, today's rules.

        Args:
            but: keys, or parts, that may differ.
        """
        if difference := difference_of(write_out(self.recipe()), write_out(recipe), but=but):
            raise ValueError(
                f"{self.folder} holds a run of another recipe: {difference}; choose another folder, "
                "or start afresh (--fresh, fresh=True)"
            )
        if not self.finished():
            check_rules(self.folder, self._rules(), OF_RUNS)

    def older(self) -> str:
        """Return a sentence that names the rules that have changed since the run; empty if there are none."""
        changed = ", ".join(outdated(self._rules(), OF_RUNS))
        return changed and (
            f"{self.folder} was made before a change of {changed} (CHANGELOG.md); to make it again, start "
            "afresh (--fresh, fresh=True)"
        )

    def _rules(self) -> dict[str, int]:
        rules: dict[str, int] = self.environment().get("code", {}).get("rules", {})
        return rules

    def check_data(self, sha256: str, present: str) -> None:
        """Raise a ValueError unless the run used the images that are there now."""
        if sha256 != present:
            raise ValueError(
                f"{self.folder} holds a run on other images, or their files or labels have changed; choose "
                "another folder, or start afresh (--fresh, fresh=True)"
            )

    def what_it_is(self) -> str:
        """Return why this folder cannot be used as a finished run, and what to do."""
        seeds = sorted(self.folder.glob("seed-*"))
        if seeds:
            return f"{self.folder} is not a finished run but holds one per seed; use {seeds[0]}"
        if (self.folder / "recipe.yaml").is_file():
            return f"{self.folder} is not a finished run; resume it with the same `softwarp train` command"
        return f"{self.folder} is not a finished run, a folder written by `softwarp train` or `softwarp demo`"

    def _file(self, name: str) -> Path:
        """A file that every finished run has; an error if this folder has none."""
        if not (self.folder / name).is_file():
            raise FileNotFoundError(self.what_it_is())
        return self.folder / name

    def recipe(self) -> Recipe:
        file = self._file("recipe.yaml")
        try:
            settings = read_settings(file)
            settings["model"] = {"pooling": BEFORE} | settings.get("model", {})
            return parse_recipe(settings, file.name)
        except ValueError as error:
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"{self.folder} holds a run that this version cannot read ({reason}); choose "
                "another folder, or start afresh (--fresh, fresh=True)"
            ) from None

    def environment(self) -> dict[str, Any]:
        """Return where the run was started: versions, machine, threads, and whose weights it began with."""
        found: dict[str, Any] = json.loads((self.folder / "environment.json").read_text())
        return found

    def weights(self) -> WeightsOrigin | None:
        """Return where the pretrained weights came from; None if there were none, or nobody noted it."""
        noted = (self.folder / "environment.json").is_file() and self.environment().get("weights")
        return WeightsOrigin.model_validate(noted) if noted else None

    def log(self, row: Mapping[str, Any]) -> None:
        """Append one row to metrics.jsonl and sync it; a line that a crash cut short is removed."""
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

    def rewind(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Reset metrics.jsonl to these rows, and remove what killed writes left behind."""
        for half in (path for name in FILES for path in self.folder.glob(f".{name}.*")):
            half.unlink()
        write_text(self.folder / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))

    def write_result(self, result: Result) -> None:
        write_json(self.folder / "result.json", result.model_dump(mode="json", by_alias=True))

    def result(self) -> Result:
        """Return the contents of result.json; raise a ValueError if this version cannot read it."""
        return read_json_as(Result, self._file("result.json"))

    def save_checkpoint(
        self, state: Mapping[str, Any], *, rows: Mapping[str, Tensor] | None = None, num_classes: int = 0
    ) -> None:
        """Write the checkpoint; keep the previous one in case this one is damaged later.

        With `rows`, one per class of this process, all processes call it, and any number of them can read it.
        """
        if rows is None:
            self._write_checkpoint(state)
            return
        kept = write_class_rows(self.folder, rows, num_classes)
        processes.from_main(lambda: self._write_checkpoint({**state, "class_rows": kept}))
        if processes.is_main():
            remove_rows(self.folder, keep=(kept["folder"], self.rows_before))
        self.rows_before = kept["folder"]

    def _write_checkpoint(self, state: Mapping[str, Any]) -> None:
        last, before = (self.folder / name for name in CHECKPOINTS)
        try:
            with atomic_write(last, keep=before) as file:
                torch.save(dict(state), file)
        except RuntimeError as error:  # what torch raises for a full disk
            reason = str(error).split("\n")[0]
            raise OSError(f"{last} cannot be written ({reason}); free disk space and resume") from error

    def load_rows(
        self, state: Mapping[str, Any], num_classes: int, rows: int, device: torch.device
    ) -> dict[str, Tensor]:
        """Return this process's rows, so many, of a checkpoint that was saved with rows."""
        self.rows_before = state["class_rows"]["folder"]
        return processes.load_divided(self.folder / self.rows_before, num_classes, rows, device)

    def load_checkpoint(self) -> tuple[dict[str, Any] | None, str]:
        """Return the last state given to `save_checkpoint`, None if there is none, and a note for the user.

        If the checkpoint is damaged, the one before it is used.
        """
        damage = ""
        for path in (self.folder / name for name in CHECKPOINTS):
            if path.exists():
                try:
                    state = _read_checkpoint(path)
                    if "class_rows" in state:
                        check_rows(self.folder, state["class_rows"])
                    return state, damage and f"{damage}; the one before it is used"
                except ValueError as error:
                    damage = damage or str(error)
        if damage:
            raise ValueError(f"{damage}, and there is no other; start afresh (--fresh, fresh=True)")
        return None, ""

    def remove_damaged_checkpoint(self) -> None:
        """Remove the last checkpoint, so that the next one does not replace the good one before it."""
        (self.folder / CHECKPOINTS[0]).unlink(missing_ok=True)

    def remove_checkpoints(self) -> None:
        """Remove what only an unfinished run needs; of many runs it would fill the disk."""
        self._remove(CHECKPOINTS)

    def save_model(self, state: Mapping[str, Tensor]) -> None:
        self._save_tensors("model.safetensors", state)

    def load_model(self) -> dict[str, Tensor]:
        return load_file(self._file("model.safetensors"))

    def drop_weights(self) -> None:
        """Remove what only further work on the model needs; the result and its history stay."""
        self._remove((*CHECKPOINTS, "model.safetensors", "embeddings.safetensors"))

    def start_from(self, other: "Run", recipe: Recipe) -> None:
        """Give a new run the checkpoint of another, whose phases are the first of this recipe."""
        state, _ = other.load_checkpoint()
        if state is not None:
            run = Run.create(self.folder, recipe)
            copy_class_rows(other.folder, run.folder, state)
            run.save_checkpoint(state)

    def save_embeddings(self, arrays: Mapping[str, Tensor], items: Iterable[EvaluatedImage]) -> None:
        """Write `embeddings` and `labels`, `gallery` and `gallery_labels` if there is one, and the items."""
        self._save_tensors("embeddings.safetensors", arrays)
        rows = [("file", "class", "split", "row"), *items]
        write_csv(self.folder / "items.csv", rows, quoting=csv.QUOTE_NONNUMERIC)  # names may hold a \r

    def _save_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        with atomic_write(self.folder / name) as file:
            file.write(save({key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}))

    def has_embeddings(self) -> bool:
        """Return whether the run is finished and has kept its embeddings; trials of a search do not."""
        return (self.folder / "embeddings.safetensors").is_file() and self.finished()

    def load_embeddings(self) -> dict[str, Tensor]:
        """Return the arrays that `save_embeddings` was given."""
        if not self.has_embeddings():
            raise FileNotFoundError(self.what_it_is())
        return load_file(self.folder / "embeddings.safetensors")

    def items(self, *, gallery: bool = False) -> list[EvaluatedImage]:
        """Return the image of each row of `embeddings`, or of `gallery`."""
        with self._file("items.csv").open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            rows = list(csv.reader(file))[1:]
        kept = [row for row in rows if row[3] and (row[2] == "gallery") == gallery]
        return [EvaluatedImage(file, name, split, int(place)) for file, name, split, place in kept]


def _read_checkpoint(path: Path) -> dict[str, Any]:
    """Return a checkpoint whose checksums match; torch writes them but does not check them."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"{path} is damaged: the checksum of {damaged} is wrong")
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (zipfile.BadZipFile, RuntimeError, UnpicklingError, EOFError, NotImplementedError) as error:
        raise ValueError(f"{path} is damaged or not a checkpoint ({str(error).splitlines()[0]})") from None
    return state
