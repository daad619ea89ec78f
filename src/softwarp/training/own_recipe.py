"""Chooses a recipe for your own images."""

import io
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from softwarp.data.decode import image_size, open_image
from softwarp.data.readers import ImageTable
from softwarp.data.splits import Judged, SplitPlan, divide
from softwarp.data.tables import layout_of, read_table
from softwarp.models.backbones import BACKBONES
from softwarp.models.preparation import is_transformer, preparation_of, sizes_of
from softwarp.recipe.files import find_recipe, read_settings
from softwarp.recipe.load import changed
from softwarp.recipe.overrides import override
from softwarp.recipe.schema import Recipe

RECIPE, OF_TRANSFORMERS = "own_images", "own_images_vit"
LEAST_CROP = 160  # a backbone of stride 32 then sees 5 x 5 places, however small the images are
ENLARGED = 1.4  # small photographs, up to the recipe's crop; docs/log.md has what else was tried
STEPS = 60  # minimum number of training steps, so that a small folder gets many epochs
SAMPLED = 64  # images whose size is read


def recipe_for(
    root: Path,
    changes: Sequence[str] = (),
    *,
    split: str | None = None,
    table: ImageTable | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Recipe:
    """Return the recipe for these images with KEY=VALUE changes; the resizing follows another crop."""
    judged: Judged = "validation" if split == "validation" else "test"
    backbone = _given(changes, "model", "backbone")
    settings = settings_for(root, protocol=judged, depth=depth_of(changes), table=table, backbone=backbone)
    if isinstance(crop := _given(changes, "data", "crop"), int) and crop > 0:
        settings["data"] |= {"crop": crop, "resize": resize_for(crop, settings["model"]["backbone"])}
    return changed(settings, changes, source=f"recipe for {root}", split=split, tell=tell)


def depth_of(changes: Sequence[str]) -> int | None:
    """Return data.depth of KEY=VALUE changes, needed to read a folder before there is a recipe."""
    depth = _given(changes, "data", "depth")
    if depth is not None and (not isinstance(depth, int) or depth < 1):
        raise ValueError(f"data.depth must be a whole number, at least 1; got {depth!r}")
    return depth


def _given(changes: Sequence[str], part: str, key: str) -> Any:
    """The value of a key among KEY=VALUE changes; None if it is not there."""
    settings = override({part: {}}, [change for change in changes if change.startswith(f"{part}.{key}=")])
    return settings[part].get(key)


def settings_for(
    root: Path,
    *,
    protocol: Judged,
    depth: int | None = None,
    table: ImageTable | None = None,
    backbone: str | None = None,
) -> dict[str, Any]:
    """Return the settings of a recipe for a folder of class folders, a CSV file, records or shards.

    They are those of `recipes/own_images.yaml`, for transformers of `recipes/own_images_vit.yaml`, and what
    depends on the images: small data sets get more epochs, small images a smaller crop, few classes smaller
    batches. Another backbone pools in its own way and sees images as it is used to.

    Args:
        depth: depth of the class folders, as in `read_folder`.
        table: what is at `root`, if it has been read before.
        backbone: the network, if it is not the recipe's.
    """
    name = layout_of(root)
    if table is None:
        table = read_table(name, root, depth=depth)
    train = divide(table.labels, table.splits, SplitPlan(protocol), names=table.names).train
    counts = np.unique(table.labels[train], return_counts=True)[1]
    kind = OF_TRANSFORMERS if backbone is not None and is_transformer(backbone) else RECIPE
    settings = read_settings(find_recipe(kind))
    samples = int(min(settings["batches"]["samples"], max(2, statistics.median_low(counts.tolist()))))
    classes = min(len(counts), settings["batches"]["classes"])
    steps = max(1, len(train) // (classes * samples))
    model, seen = seen_by(backbone, crop_size(table, settings["data"]["crop"]))
    settings["model"] |= model
    settings["data"] |= {"name": name, "root": str(root), "depth": depth, **seen}
    settings["batches"] = {"classes": classes, "samples": samples}
    settings["phases"][0]["epochs"] = max(settings["phases"][0]["epochs"], math.ceil(STEPS / steps))
    settings["evaluation"]["split"] = protocol
    return settings


def seen_by(backbone: str | None, side: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of a network's model and data: its pooling, and how it sees images.

    Args:
        backbone: by name; None for the recipe's.
        side: of a crop, at most.
    """
    usual = read_settings(find_recipe(RECIPE))["model"]
    model = {"backbone": backbone or usual["backbone"], "pooling": "native"}
    if model["backbone"] == usual["backbone"]:
        model["pooling"] = usual["pooling"]
    crop = sizes_of(model["backbone"]).at_most(side)
    seen = preparation_of(model["backbone"])
    return model, {
        "resize": resize_for(crop, model["backbone"]),
        "crop": crop,
        "interpolation": seen.interpolation,
        "crop_mode": seen.crop_mode,
    }


def resize_for(crop: int, backbone: str) -> int:
    """Return the shorter side that images are resized to before they are cropped.

    >>> resize_for(224, "efficientnet_lite0"), resize_for(224, "vit_small_patch14_dinov2")
    (252, 224)
    """
    if backbone in BACKBONES:
        return crop * 9 // 8
    seen = preparation_of(backbone)
    return crop * seen.resize // seen.crop


def crop_size(table: ImageTable, most: int) -> int:
    """Return the side of the crop: the usual one, or a multiple of 32 that smaller images, enlarged, fill."""
    step = max(1, len(table.paths) // SAMPLED)
    sides = [side for place in range(0, len(table.paths), step) if (side := _shorter_side(table, place))]
    median = statistics.median(sides) if sides else most
    return int(min(most, max(LEAST_CROP, round(ENLARGED * median / 32) * 32)))


def _shorter_side(table: ImageTable, position: int) -> int:
    try:
        with (
            open_image(table.root / table.paths[position])
            if table.pack is None
            else io.BytesIO(table.pack.read(position))
        ) as file:
            return min(image_size(file))
    except (ValueError, OSError, UnidentifiedImageError, Image.DecompressionBombError):
        return 0
