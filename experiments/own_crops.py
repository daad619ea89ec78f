"""How large should small photographs be shown? Frozen features of five folders, at every crop.

    python experiments/own_crops.py --cub CUB_200_2011 --cfp cfp --fashion fashion-mnist

Writes MAP@R by folder and crop into results/own_crops.json: what `own_data.ENLARGED` rests on. Nothing is
trained, and no class (of FashionMNIST: no image) is one of those that `own_folders` judges.
"""

import dataclasses
import statistics
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import typer
from own_folders import (
    Folder,
    Picture,
    cfp_part,
    cub_part,
    fashion_part,
    photographed_glyphs,
)
from rich.progress import track

from softwarp.files import write_json
from softwarp.inference import EmbeddingModel, load
from softwarp.memory import freed_memory_kept
from softwarp.metrics import retrieval_metrics
from softwarp.runs.run import environment
from softwarp.training.budget import CROPS

RESULT = Path("results/own_crops.json")


def study(name: str, pictures: list[Picture], model: EmbeddingModel) -> dict[str, Any]:
    """Return a row: the size of the images, and the frozen features' MAP@R at each crop."""
    names = sorted({picture[0] for picture in pictures})
    labels = torch.tensor([names.index(picture[0]) for picture in pictures])
    found = {}
    for crop in sorted(CROPS):
        seen = dataclasses.replace(model, crop=crop, resize=crop * 9 // 8)
        embeddings = seen.embed([picture[2] for picture in pictures])
        found[str(crop)] = retrieval_metrics(embeddings, labels, distance=model.distance)["map@r"]
    side = statistics.median(min(picture[2].size) for picture in pictures)
    return {"folder": name, "images": len(pictures), "classes": len(names), "side": side, "map@r": found}


def main(cub: Folder, cfp: Folder, fashion: Folder) -> None:
    """Embed all folders at all crops and write results/own_crops.json."""
    folders = {
        "land birds": cub_part(cub, 31, 55, 15),
        "other birds": cub_part(cub, 134, 157, 15),
        "faces": islice(cfp_part(cfp, 85), 60 * 14, None),
        "photographed glyphs": photographed_glyphs(30, first=20),
        "clothes": fashion_part(fashion, 35, part="train"),
    }
    model = load("efficientnet_lite0")
    with freed_memory_kept():
        rows = [study(name, list(each), model) for name, each in track(list(folders.items()), "folders")]
    command = "python experiments/own_crops.py --cub ... --cfp ... --fashion ..."
    write_json(RESULT, {"command": command, "rows": rows, "environment": environment()})


if __name__ == "__main__":
    typer.run(main)
