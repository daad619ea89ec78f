"""Two tiny networks whose weights are on the machine, nothing else, and images to compare them on."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from softwarp.models import known_weights
from softwarp.models.adding_weights import add_weights

NETWORKS = ["test_vit", "test_efficientnet"]


@pytest.fixture(scope="module", autouse=True)
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """In a module that imports it: weights of the networks, no hub, and a cache of its own."""
    folder = tmp_path_factory.mktemp("places")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTWARP_WEIGHTS", str(folder / "weights"))
        patch.setenv("SOFTWARP_CACHE", str(folder / "cache"))
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        patch.setattr(known_weights, "packaged_efficientnet_lite0", lambda: None)
        patch.setattr(known_weights, "_in_cache", list)
        for name in NETWORKS:
            torch.manual_seed(3)
            save_file(timm.create_model(name).state_dict(), folder / f"{name}.safetensors")
            add_weights(folder / f"{name}.safetensors", name, licence="mit")
        yield folder


def draw(folder: Path, classes: int = 8, images: int = 4, side: int = 64) -> Path:
    """Return a folder of noise around colours that are hard to tell apart."""
    generator = np.random.default_rng(0)
    for label in range(classes):
        colour = generator.integers(120, 130, 3)
        (folder / f"class {label}").mkdir(parents=True)
        for number in range(images):
            pixels = np.clip(colour + generator.normal(0, 60, (side, side + number, 3)), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"class {label}" / f"{number}.png")
    return folder
