"""Finished runs on a folder of images, made by hand: no training."""

import torch

from softwarp.runs.result import Counts
from softwarp.runs.run import EvaluatedImage, Run
from support.pictures import jpeg, noise
from support.results import result
from support.tiny_runs import PHASE, tiny

CLASSES, IMAGES = 6, 5
ODD = '<b>owl & "wren"</b> $x'  # a name that markup and mathematics would mistake


def photographs(root, names=None, side=40):
    """A folder of class folders, and its items in order."""
    names = names or [f"bird{number}" for number in range(CLASSES)]
    items = []
    for label, name in enumerate(names):
        for number in range(IMAGES):
            file = f"{name.replace('/', '')}/{number} <i>.jpg"
            jpeg(root / file, noise(side, side, seed=100 * label + number))
            items.append(EvaluatedImage(file, name, "test", len(items)))
    return items


def shown_run(folder, root, items, *, seed=0, spread=0.3, gallery=False, history=True, **changes):
    """A run whose embeddings lie around a point per class."""
    recipe = tiny(data={"name": "folder", "root": str(root)}, phases=[PHASE], seed=seed)
    run = Run.create(folder, recipe)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(items)) // IMAGES
    centres = torch.eye(int(labels.max()) + 1, 16)
    embeddings = centres[labels] + spread * torch.randn(len(items), 16, generator=generator)
    arrays = {"embeddings": embeddings, "labels": labels}
    if gallery:
        arrays |= {"gallery": embeddings + 0.01, "gallery_labels": labels.clone()}
        items = [each._replace(split=split) for split in ("query", "gallery") for each in items]
    run.save_embeddings(arrays, items)
    if history:
        run.log({"epoch": 1, "phase": 0, "loss": 2.0 + seed, "avg_dtp": 3.0, "alpha": 4.0})
        run.log({"epoch": 2, "phase": 0, "loss": 1.0 + seed, "avg_dtp": 3.5, "alpha": 4.0})
    counts = {
        "classes": Counts(train=5, evaluated=len(centres)),
        "images": Counts(train=9, evaluated=len(labels)),
    }
    run.write_result(result(seed=seed, **counts | changes))
    return run
