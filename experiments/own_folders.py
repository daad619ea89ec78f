"""Is the default on own images ever worse than doing nothing? Six small folders, three seeds each.

    python experiments/own_folders.py --cub CUB_200_2011 --cfp cfp --fashion fashion-mnist

Writes the folders, runs `softwarp train --data FOLDER --seeds 3` on each, and compares with the frozen
features on the test classes: MAP@R, paired by class, into results/own_folders.json. A stopped study resumes.
Times and crops follow from how fast the machine is, so run nothing else beside it.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from PIL import Image, ImageFilter

from softwarp.data.glyphs import load_glyphs
from softwarp.data.idx import read_idx
from softwarp.evaluation import map_at_r_per_class
from softwarp.files import write_json
from softwarp.metrics import bootstrap_over_classes
from softwarp.runs.choice import Choice
from softwarp.runs.provenance import environment
from softwarp.runs.result import read_json_as
from softwarp.runs.run import Run

RESULT = Path("results/own_folders.json")
SEEDS = 3
NETWORK = "efficientnet_lite0"  # whatever else is on the machine
FROZEN = ("phases.0.epochs=0", "model.head=none", "model.head_init=default", "model.embedding_size=1280")
Picture = tuple[str, str, Image.Image]  # class, name, image
Folder = Annotated[Path, typer.Option(exists=True, file_okay=False)]


def cub_part(root: Path, first: int, last: int, per_class: int) -> Iterator[Picture]:
    """Some images of the classes numbered `first` to `last`."""
    folders = sorted((root / "images").iterdir())[first - 1 : last]
    for folder in folders:
        for path in sorted(folder.glob("*.jpg"))[:per_class]:
            yield folder.name, path.stem, Image.open(path).convert("RGB")


def cfp_part(root: Path, people: int) -> Iterator[Picture]:
    """All images of the first people."""
    for folder in sorted((root / "images").iterdir())[:people]:
        for path in sorted(folder.glob("*.jpg")):
            yield folder.name, path.stem, Image.open(path).convert("RGB")


def photographed_glyphs(classes: int, *, first: int = 0) -> Iterator[Picture]:
    """Characters in colour on a rough background, turned, shaded and out of focus."""
    glyphs = load_glyphs()
    for label in range(first, 40 * classes, 40):  # far apart in the list: neighbours are variants of a letter
        for place, pixels in enumerate(glyphs.images[glyphs.labels == label]):
            generator = np.random.default_rng((label, place))
            yield f"U+{ord(glyphs.characters[label]):04X}", f"{place:02d}", _photograph(pixels[0], generator)


def _photograph(pixels: torch.Tensor, generator: np.random.Generator) -> Image.Image:
    side = 160
    ink = Image.fromarray(pixels.numpy()).resize((side, side), Image.Resampling.BICUBIC)
    ink = ink.rotate(generator.uniform(-15, 15)).filter(ImageFilter.GaussianBlur(generator.uniform(0.5, 2)))
    mask = np.asarray(ink, float)[..., None] / 255
    grain = Image.fromarray(generator.integers(0, 256, (20, 20, 3), np.uint8)).resize((side, side))
    top, bottom = generator.uniform(0.6, 1.0, 2)
    light = np.linspace(top, bottom, side)[:, None, None]
    paper, colour = generator.uniform(0, 255, (2, 3))
    ground = 0.6 * paper + 0.4 * np.asarray(grain, float)
    mixed = light * (ground * (1 - mask) + colour * mask) + generator.normal(0, 6, (side, side, 1))
    return Image.fromarray(mixed.clip(0, 255).astype(np.uint8))


def fashion_part(root: Path, per_class: int, *, part: str = "t10k") -> Iterator[Picture]:
    """The first images, of the test set if not said otherwise, of each of FashionMNIST's ten kinds."""
    images, labels = (read_idx(root / f"{part}-{what}-ubyte") for what in ("images-idx3", "labels-idx1"))
    for label in range(10):
        for place in np.flatnonzero(labels == label)[:per_class]:
            yield f"kind_{label}", f"{place:05d}", Image.fromarray(images[place]).convert("RGB")


def write_folder(folder: Path, pictures: Iterator[Picture]) -> None:
    """Write FOLDER/CLASS/NAME.png unless the folder is complete."""
    if (done := folder.with_suffix(".done")).exists():
        return
    for name, stem, image in pictures:
        (folder / name).mkdir(parents=True, exist_ok=True)
        image.save(folder / name / f"{stem}.png")
    done.touch()


def study(name: str, data: Path, runs: Path) -> dict[str, Any]:
    """Return a row: frozen and trained MAP@R, their difference with its interval, and the minutes."""
    output = runs / name
    command = [sys.executable, "-m", "softwarp", "train", "--data", str(data), "--backbone", NETWORK]
    subprocess.run([*command, "--seeds", str(SEEDS), "--output", str(output)], check=True)
    trained = [Run(output / f"seed-{seed}") for seed in range(SEEDS)]
    recipe = trained[0].recipe()
    size = (f"data.crop={recipe.data.crop}", f"data.resize={recipe.data.resize}")
    subprocess.run([*command, "--output", str(runs / f"{name}-frozen"), *FROZEN, *size], check=True)
    frozen = per_class(Run(runs / f"{name}-frozen"))
    seeds = [per_class(run) for run in trained]
    classes = sorted(frozen)
    differences = torch.tensor(
        [[seed[each] - frozen[each] for each in classes] for seed in seeds], dtype=torch.float64
    ).mean(0)
    result, choice = trained[0].result(), read_json_as(Choice, output / "choice" / "choice.json")
    seconds = [*(each.seconds for each in choice.rungs), *(run.result().seconds for run in trained)]
    return {
        "folder": name,
        "images": result.images.train + result.images.evaluated,
        "classes": result.classes.model_dump(),
        "crop": recipe.data.crop,
        "epochs": recipe.phases[0].epochs,
        "share": recipe.optimizer.wise_ft or float(recipe.phases[0].epochs > 0),
        "frozen": Run(runs / f"{name}-frozen").result().metrics["map@r"],
        "trained": [run.result().metrics["map@r"] for run in trained],
        "frozen_recall@1": Run(runs / f"{name}-frozen").result().metrics["recall@1"],
        "trained_recall@1": [run.result().metrics["recall@1"] for run in trained],
        "difference": float(differences.mean()),
        "interval": bootstrap_over_classes(differences, torch.arange(len(classes))),
        "rungs": [each.model_dump(mode="json") for each in choice.rungs],
        "minutes": sum(seconds) / 60,
    }


def per_class(run: Run) -> dict[str, float]:
    """Return the MAP@R of each class that judged."""
    arrays = run.load_embeddings()
    rows = {item.row: item.class_name for item in run.items()}
    names = {label: rows[row] for row, label in enumerate(arrays["labels"].tolist())}
    ordered = [names[label] for label in sorted(names)]
    return map_at_r_per_class(arrays, ordered, distance=run.result().distance)


def main(
    cub: Folder,
    cfp: Folder,
    fashion: Folder,
    folder: Path = Path("runs/own_folders"),
    only: Annotated[str, typer.Option(help="One folder's name.")] = "",
) -> None:
    """Train on all folders and write results/own_folders.json."""
    folders: dict[str, Callable[[], Iterator[Picture]]] = {
        "waterbirds": lambda: cub_part(cub, 1, 30, 15),
        "sparrows": lambda: cub_part(cub, 113, 133, 30),
        "warblers": lambda: cub_part(cub, 158, 182, 40),
        "faces": lambda: cfp_part(cfp, 60),
        "photographed_glyphs": lambda: photographed_glyphs(50),
        "fashion": lambda: fashion_part(fashion, 50),
    }
    rows = []
    for name, pictures in folders.items():
        if only in name:
            write_folder(folder / "data" / name, pictures())
            rows.append(study(name, folder / "data" / name, folder))
    if not only:
        command = "python experiments/own_folders.py --cub ... --cfp ... --fashion ..."
        write_json(RESULT, {"command": command, "seeds": SEEDS, "rows": rows, "environment": environment()})


if __name__ == "__main__":
    typer.run(main)
