"""The model that an index is built with: as it was given, the network that suits the classes, or calibrated.

On class folders, the features of a network that was named get the head that `train` calls calibrated where
held-out classes say that it is better: each half of the classes judges what was made from the other. This
model stays in the folder of the index.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from softwarp.data.class_groups import fold_classes
from softwarp.events import OnEvent, shown, tell
from softwarp.export.formats import describe, write_weights
from softwarp.frozen.features import after_pooling, pooled_features
from softwarp.index.begin import Images
from softwarp.index.store import IndexStore
from softwarp.index.table import TABLE
from softwarp.inference import EmbeddingModel, load
from softwarp.models.embedder import Embedder
from softwarp.models.whitening import ClassScatter
from softwarp.recipe.schema import ModelPart
from softwarp.runs.choice import Choice
from softwarp.runs.model_folder import CONFIG, ModelConfig
from softwarp.training.backbones import backbones
from softwarp.training.budget import FOLDS
from softwarp.training.choice import FOLD_SEED, choose_candidate, why_frozen
from softwarp.training.features import items_to_calibrate
from softwarp.training.head import Head, starting_head
from softwarp.training.rungs import Half, calibrated, frozen

AUTO = "auto"


def named(
    model: Path | str, places: Sequence[Path], *, depth: int | None = None, on_event: OnEvent | None = None
) -> Path | str:
    """Return a model as it is named; for "auto" the network here that suits the classes best."""
    if model != AUTO:
        return model
    if len(places) != 1:
        raise ValueError("auto judges networks by one folder or CSV file; give one, or name a network")
    with shown(on_event) as listener:
        found = backbones(places[0], protocol="all", depth=depth, on_event=listener)
        tell(listener, found.choice())
    return found.best


def model_for(
    model: Path | str, images: Images, out: Path, *, frozen: bool = False, on_event: OnEvent | None = None
) -> EmbeddingModel:
    """Return the model of that name, calibrated on the images if that is better; an index keeps its own.

    Args:
        out: the folder of the index, which may have been begun.
        frozen: take the features of a network as they are.
    """
    begun = (out / TABLE).is_file()
    if model == AUTO and begun:
        model = IndexStore(out).model_name
    found = load(named(model, images.places, depth=images.depth, on_event=on_event))
    kept = out / f"{found.source}-calibrated"
    if frozen or found.source != found.network.name or not isinstance(found.network.norm, nn.LayerNorm):
        return found  # a run, or embeddings of faces
    if not begun and not (kept / CONFIG).is_file():
        with shown(on_event) as listener:
            head = _better_head(found, images.classes, listener)
        if head is not None:
            _write(found, head, kept)
    return load(kept) if (kept / CONFIG).is_file() else found


def _better_head(model: EmbeddingModel, classes: Mapping[Path, str], on_event: OnEvent) -> Head | None:
    """The head of calibrated features, from the images of all classes; None if it is not better."""
    names, numbers = np.unique(np.array(list(classes.values()), object), return_inverse=True)
    labels = torch.from_numpy(numbers)
    if why_frozen(labels, choosing=True):
        return None
    items = items_to_calibrate(labels, seed=0)
    paths = list(classes)
    files = [paths[item] for item in items.tolist()]
    pooled, broken = pooled_features(model, files, work="calibrating", on_event=on_event)
    whole = [row for row in range(len(files)) if row not in broken]
    features, labels = after_pooling(model, pooled[whole]), labels[items[whole]]
    if why_frozen(labels, choosing=True):
        return None
    choice = _choice(features, labels, names.tolist())
    start = choice.chosen.start
    without = "" if start is None else "; to keep the features as they are: --frozen"
    tell(on_event, choice.sentence() + without)
    return None if start is None else starting_head(features, labels, features.shape[1], start, seed=0)


def _choice(features: Tensor, labels: Tensor, names: Sequence[str]) -> Choice:
    """What the halves of the classes say of frozen and calibrated features."""
    folds = fold_classes(np.arange(len(names)), folds=FOLDS, seed=FOLD_SEED)
    judging = [torch.isin(labels, torch.from_numpy(fold)) for fold in folds]
    halves = [
        Half(features[~each], labels[~each], names, features[each], labels[each], names) for each in judging
    ]
    scatters = [ClassScatter.of(half.trained, half.labels) for half in halves]
    size = features.shape[1]
    return choose_candidate({**frozen(halves)[0], **calibrated(halves, scatters, size)[0]})


def _write(model: EmbeddingModel, head: Head, folder: Path) -> None:
    """Write the network with this head as a folder that `load` takes."""
    size = len(head[0])
    part = ModelPart(backbone=model.source, embedding_size=size, head_init="whitened", unit_length=True)
    network = Embedder(**part.plain())
    weight, bias = head
    network.load_state_dict(model.network.state_dict() | {"head.weight": weight, "head.bias": bias})
    config = ModelConfig(model=part, untrained=True, **describe(model))
    write_weights(folder, config, network)
