"""The run folder: recipe.yaml, environment.json, metrics.jsonl, result.json, checkpoint, model, embeddings.

Only this module writes there. Every file is whole or absent, whatever happens to the process.
"""

import csv
import io
import json
import os
import platform
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors.torch import load_file, save
from torch import Tensor

from softwarp import processes
from softwarp.files import atomic_write, locked_folder, write_json, write_text
from softwarp.models.pooling import BEFORE
from softwarp.recipe.files import read_settings
from softwarp.recipe.overrides import difference_of, dump_recipe, write_out
from softwarp.recipe.schema import Recipe, parse_recipe
from softwarp.runs.class_rows import check_rows, copy_rows, remove_rows, write_rows
from softwarp.runs.provenance import OF_RUNS, check_rules, code, outdated
from softwarp.tables import figure, figures_table, metric_title

Model = TypeVar("Model", bound=BaseModel)

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


class Counts(BaseModel):
    """How many classes or images trained, and how many were evaluated."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    train: int
    evaluated: int


class Result(BaseModel):
    """The outcome of a run: result.json."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
    version: Literal[1] = Field(1, alias="schema")  # raise it when a key changes its meaning
    name: str  # of the loss
    seed: int
    distance: Literal["euclidean", "cosine"]
    split: Literal["validation", "test"]
    classes: Counts
    images: Counts
    closed: bool = False  # whether the evaluated classes train, too, with other images
    metrics: dict[str, float]
    baseline: dict[str, float] | None = None  # the untrained model's pooled features
    epochs: int
    broken_images: tuple[str, ...] = ()  # skipped in training
    left_out: tuple[str, ...] = ()  # skipped in evaluation
    seconds: float
    data_sha256: str
    pretrained: bool = True  # whether the backbone's weights were, before training

    @property
    def title(self) -> str:
        """What made the embeddings: the loss, unless nothing was trained."""
        return self.name if self.epochs else features_title(self.pretrained)

    @property
    def headline(self) -> str:
        """What made the embeddings, and what judged them."""
        if self.closed:
            return f"{self.title}, closed set: {self.images.evaluated} {self.split} images of known classes"
        return f"{self.title}: {self.classes.evaluated} unseen {self.split} classes"

    def __repr__(self) -> str:
        shown = ("map@r", "recall@1")
        figures = ", ".join(
            f"{metric_title(key)} {figure(key, self.metrics[key])}" for key in shown if key in self.metrics
        )
        return f"Result({self.headline}; {figures})"

    def _repr_html_(self) -> str:
        return figures_table(self.metrics, {}, self.baseline or {}, title=self.headline).html()


def features_title(pretrained: bool | str) -> str:
    """Return what to call the features of a backbone that was not trained.

    >>> features_title(True), features_title(False)
    ('frozen features', 'untrained features')
    """
    return "frozen features" if pretrained else "untrained features"


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
        cls(folder).clear()
        write_text(folder / "recipe.yaml", dump_recipe(recipe))
        write_json(folder / "environment.json", environment())
        return cls(folder)

    def clear(self) -> None:
        """Remove the files of the run."""
        for name in FILES:
            (self.folder / name).unlink(missing_ok=True)
        remove_rows(self.folder)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out of the folder, which is created if needed."""
        made = not self.folder.exists()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = error.strerror or "unknown"
            raise OSError(f"{self.folder} cannot be created ({reason}); choose another --output") from None
        with ExitStack() as stack:
            try:
                stack.enter_context(locked_folder(self.folder))
            except ValueError as error:
                raise ValueError(f"{error}; wait for it, or choose another --output") from None
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
                f"{self.folder} holds a run of another recipe: {difference}; choose another --output, or "
                "restart with --fresh"
            )
        if not self.finished():
            check_rules(self.folder, self._rules(), OF_RUNS)

    def older(self) -> str:
        """Return a sentence that names the rules that have changed since the run; empty if there are none."""
        changed = ", ".join(outdated(self._rules(), OF_RUNS))
        return changed and (
            f"{self.folder} was made before a change of {changed} (CHANGELOG.md); --fresh makes it again"
        )

    def _rules(self) -> dict[str, int]:
        rules: dict[str, int] = self.environment().get("code", {}).get("rules", {})
        return rules

    def check_data(self, sha256: str, present: str) -> None:
        """Raise a ValueError unless the run used the images that are there now."""
        if sha256 != present:
            raise ValueError(
                f"{self.folder} holds a run on other images, or their files or labels have changed; choose "
                "another --output, or restart with --fresh"
            )

    def what_it_is(self) -> str:
        """Return why this folder cannot be used as a finished run, and what to do."""
        seeds = sorted(self.folder.glob("seed-*"))
        if seeds:
            return f"{self.folder} is not a finished run but holds one per seed; use {seeds[0]}"
        if (self.folder / "recipe.yaml").is_file():
            return f"{self.folder} is not a finished run; resume it with the same `softwarp train` command"
        return f"{self.folder} is not a finished run, a folder written by `softwarp train` or `softwarp demo`"

    def recipe(self) -> Recipe:
        if not (self.folder / "recipe.yaml").is_file():
            raise FileNotFoundError(self.what_it_is())
        try:
            settings = read_settings(self.folder / "recipe.yaml")
            settings["model"] = {"pooling": BEFORE} | settings.get("model", {})
            return parse_recipe(settings, "recipe.yaml")
        except ValueError as error:
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"{self.folder} holds a run that this version cannot read ({reason}); choose another "
                "--output, or restart with --fresh"
            ) from None

    def environment(self) -> dict[str, Any]:
        """Return where the run was started: versions, machine and threads."""
        found: dict[str, Any] = json.loads((self.folder / "environment.json").read_text())
        return found

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
        if not self.finished():
            raise FileNotFoundError(self.what_it_is())
        return read_json_as(Result, self.folder / "result.json")

    def save_checkpoint(
        self, state: Mapping[str, Any], *, rows: Mapping[str, Tensor] | None = None, num_classes: int = 0
    ) -> None:
        """Write the checkpoint; keep the previous one in case this one is damaged later.

        With `rows`, one per class of this process, all processes call it, and any number of them can read it.
        """
        if rows is None:
            self._write_checkpoint(state)
            return
        kept = write_rows(self.folder, rows, num_classes)
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
            raise ValueError(f"{damage}, and there is no other; restart with --fresh")
        return None, ""

    def remove_damaged_checkpoint(self) -> None:
        """Remove the last checkpoint, so that the next one does not replace the good one before it."""
        (self.folder / CHECKPOINTS[0]).unlink(missing_ok=True)

    def remove_checkpoints(self) -> None:
        """Remove what only an unfinished run needs; of many runs it would fill the disk."""
        for name in CHECKPOINTS:
            (self.folder / name).unlink(missing_ok=True)
        remove_rows(self.folder)

    def save_model(self, state: Mapping[str, Tensor]) -> None:
        with atomic_write(self.folder / "model.safetensors") as file:
            file.write(save({name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}))

    def load_model(self) -> dict[str, Tensor]:
        if not (self.folder / "model.safetensors").is_file():
            raise FileNotFoundError(self.what_it_is())
        return load_file(self.folder / "model.safetensors")

    def drop_weights(self) -> None:
        """Remove what only further work on the model needs; the result and its history stay."""
        for name in (*CHECKPOINTS, "model.safetensors", "embeddings.safetensors"):
            (self.folder / name).unlink(missing_ok=True)
        remove_rows(self.folder)

    def start_from(self, other: "Run", recipe: Recipe) -> None:
        """Give a new run the checkpoint of another, whose phases are the first of this recipe."""
        state, _ = other.load_checkpoint()
        if state is not None:
            run = Run.create(self.folder, recipe)
            copy_rows(other.folder, run.folder, state)
            run.save_checkpoint(state)

    def save_embeddings(self, arrays: Mapping[str, Tensor], items: Iterable[EvaluatedImage]) -> None:
        """Write `embeddings` and `labels`, `gallery` and `gallery_labels` if there is one, and the items."""
        with atomic_write(self.folder / "embeddings.safetensors") as file:
            file.write(save({name: tensor.contiguous() for name, tensor in arrays.items()}))
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)  # names may hold a \r
        writer.writerow(("file", "class", "split", "row"))
        writer.writerows(items)
        with atomic_write(self.folder / "items.csv") as file:
            file.write(text.getvalue().encode(errors="surrogateescape"))  # file names need not be valid UTF-8

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
        path = self.folder / "items.csv"
        if not path.is_file():
            raise FileNotFoundError(self.what_it_is())
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            rows = list(csv.reader(file))[1:]
        kept = [row for row in rows if row[3] and (row[2] == "gallery") == gallery]
        return [EvaluatedImage(file, name, split, int(place)) for file, name, split, place in kept]


def read_json_as(kind: type[Model], path: Path, *, cure: str = "restart the run with --fresh") -> Model:
    """Return a JSON file as a pydantic model; a ValueError names what is wrong with it, and the cure."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(
            f"{path} is not what this version of softwarp writes ({place + ': ' if place else ''}"
            f"{first['msg']}); it was written by another version or edited: {cure}"
        ) from None


def environment() -> dict[str, Any]:
    """Return what else a result depends on: code, versions, machine and threads."""
    return {
        "code": code(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "packages": {name: _version(name) for name in PACKAGES},
    }


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


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
