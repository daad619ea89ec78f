"""A ladder that is killed at any moment leaves a model, and the same command ends with the same one."""

import json
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

from softwarp.runs.run import Run

WORDS = [
    "model.backbone=test_efficientnet.r160_in1k",
    "model.pretrained=false",
    "data.workers=0",
    "data.crop=32",
    "phases.0.epochs=2",
    "evaluation.clustering=false",
]
# With so few classes hardly anything is beyond chance: here whatever is better on average is handed out.
SCRIPT = """
import sys
import softwarp.training.choice as choice
from softwarp.cli import app
choice.simultaneous_intervals = lambda samples: [(mean, mean) for mean in samples.mean(1).tolist()]
app(["train", "--data", sys.argv[1], "--output", sys.argv[2], *sys.argv[3:]])
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Eight classes of noisy stripes, hard to tell apart."""
    folder, generator = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for label in range(8):
        stripes = np.arange(40)[:, None, None] // (label % 4 + 1) % 2 * generator.integers(60, 255, 3)
        (folder / f"class {label}").mkdir()
        for number in range(6):
            pixels = np.clip(stripes + generator.normal(0, 120, (40, 40, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"class {label}" / f"{number}.png")
    return folder


def begin(root, folder, *words):
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(root), str(folder), *WORDS, *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.fixture(scope="module")
def whole(root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert begin(root, folder).wait() == 0
    return folder


def choice_in(folder):
    found = json.loads((folder / "choice" / "choice.json").read_text())
    del found["rungs"]  # seconds
    return found


@pytest.mark.parametrize(
    "moment", ["ladder.json", "fold-0/checkpoint.pt", "fold-1/checkpoint.pt", "choice.json", "../result.json"]
)
def test_killed_once_a_file_is_there_it_ends_with_the_same_model(root, whole, tmp_path, moment):
    folder = tmp_path / "run"
    process = begin(root, folder)
    while process.poll() is None and not (folder / "choice" / moment).exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    if moment.startswith("fold"):
        assert Run(folder).result().epochs == 0  # the best rung before is handed out
    assert begin(root, folder).wait() == 0
    assert choice_in(folder) == choice_in(whole)
    there, expected = (load_file(each / "model.safetensors") for each in (folder, whole))
    assert all(there[name].equal(expected[name]) for name in expected)
    assert not list(folder.glob("choice/final-*/result.json"))


def test_killed_while_it_ships_it_ends_with_the_model_that_a_later_command_ships(root, whole, tmp_path):
    later, folder = shutil.copytree(whole, tmp_path / "later"), tmp_path / "run"
    before = (later / "model.safetensors").read_bytes()
    assert begin(root, later, "--ship").wait() == 0
    assert (later / "model.safetensors").read_bytes() == before
    process = begin(root, folder, "--ship")
    while process.poll() is None and not (folder / "ship" / "recipe.yaml").exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert Run(folder).finished()
    assert begin(root, folder, "--ship").wait() == 0
    there, expected = (load_file(each / "ship" / "model.safetensors") for each in (folder, later))
    assert all(there[name].equal(expected[name]) for name in expected)
    held_out = Run(folder / "ship").result().held_out
    assert held_out == Run(folder).result()
    assert held_out.metrics == Run(whole).result().metrics
