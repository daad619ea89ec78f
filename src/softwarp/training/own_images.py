"""Chooses a recipe for your own images."""

import io
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from softwarp.data.decode import image_size, open_image
from softwarp.data.splits import Judged, SplitPlan, divide
from softwarp.data.tables import Table, layout_of, read_table

CROP = 224  # what the backbone was pretrained with; smaller for smaller photographs
LEAST_CROP = 160  # a backbone of stride 32 then sees 5 x 5 places, however small the images are
ENLARGED = 1.4  # small photographs, up to CROP; docs/log.md has what else was tried
STEPS = 60  # minimum number of training steps, so that a small folder gets many epochs
SAMPLED = 64  # images whose size is read


def settings_for(root: Path, *, protocol: Judged, depth: int | None = None) -> dict[str, Any]:
    """Return the settings of a recipe for a folder of class folders, a CSV file, records or shards.

    A pretrained EfficientNet-Lite0 with frozen batch norm starts at its frozen features: the head as their
    principal directions, the proxies at class means. The warped softmax measures its scale and alpha itself,
    and proxies travel relative to the embeddings, so nothing is in units of a data set. Learning rates are
    low and constant, so training can end after any epoch. Small data sets get more epochs, small images a
    smaller crop.

    Args:
        depth: depth of the class folders, as in `read_folder`.
    """
    name = layout_of(root)
    table = read_table(name, root, depth=depth)
    train = divide(table.labels, table.splits, SplitPlan(protocol), names=table.names).train
    counts = np.unique(table.labels[train], return_counts=True)[1]
    samples = int(min(4, max(2, statistics.median_low(counts.tolist()))))
    classes = min(len(counts), 16)
    steps = max(1, len(train) // (classes * samples))
    crop = crop_size(table, CROP)
    return {
        "data": {
            "name": name,
            "root": str(root),
            "depth": depth,
            "resize": resize_for(crop),
            "crop": crop,
            "scale": [0.3, 1.0],
        },
        "model": {
            "backbone": "efficientnet_lite0",
            "pretrained": True,
            "embedding_size": 512,
            "head_init": "pca",
            "freeze_batch_norm": True,
        },
        "loss": {
            "name": "warped_softmax",
            "proxy_init": "means",
            "settings": {"alpha": "auto", "scale": "auto"},
        },
        "batches": {"classes": classes, "samples": samples},
        "optimizer": {"name": "adamw", "weight_decay": 1e-4},
        "phases": [
            {
                "epochs": max(4, math.ceil(STEPS / steps)),
                "learning_rate": 1e-4,
                "proxy_travel": 0.5,
                "warm_up_steps": 10,
            }
        ],
        "evaluation": {"split": protocol, "baseline": True, "avg_dtp_images": SAMPLED},
    }


def resize_for(crop: int) -> int:
    """Return the shorter side that images are resized to before they are cropped."""
    return crop * 9 // 8


def crop_size(table: Table, most: int) -> int:
    """Return the side of the crop: the usual one, or a multiple of 32 that smaller images, enlarged, fill."""
    step = max(1, len(table.paths) // SAMPLED)
    sides = [side for place in range(0, len(table.paths), step) if (side := _shorter_side(table, place))]
    median = statistics.median(sides) if sides else most
    return int(min(most, max(LEAST_CROP, round(ENLARGED * median / 32) * 32)))


def _shorter_side(table: Table, position: int) -> int:
    try:
        with (
            open_image(table.root / table.paths[position])
            if table.pack is None
            else io.BytesIO(table.pack.read(position))
        ) as file:
            return min(image_size(file))
    except (ValueError, OSError, UnidentifiedImageError, Image.DecompressionBombError):
        return 0
