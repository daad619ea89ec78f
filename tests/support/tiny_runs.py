"""Runs that take a second, and what is compared of them."""

import os
import subprocess
import sys

from softwarp.events import Progress
from softwarp.recipe.overrides import dump_recipe
from softwarp.recipe.schema import parse_recipe
from softwarp.runs.run import Run

PHASE = {"epochs": 1, "learning_rate": 0.005, "proxy_learning_rate": 0.02}


def tiny(**changes):
    return parse_recipe(
        {
            "data": {"max_classes": 20},
            "model": {"embedding_size": 16},
            "loss": {
                "name": "warped_softmax",
                "settings": {"alpha": 4.0, "k1": 0.8, "k2": 1.2, "scale": 1.0},
            },
            "batches": {"classes": 10, "samples": 4},
            "phases": [PHASE, {**PHASE, "loss_settings": {"alpha": 2.0}}],
            **changes,
        }
    )


class Steps:
    """A listener that calls `act` after so many steps of training."""

    def __init__(self, steps, act):
        self.steps, self.act, self.done = steps, act, {}

    def __call__(self, event):
        if not isinstance(event, Progress):
            return
        if event.done > self.done.get(event.work, event.done):
            self.steps -= 1
            if self.steps == 0:
                self.act()
        self.done[event.work] = event.done
        if event.ended:
            del self.done[event.work]


def outcome(run):
    """All that must not depend on how often a run was interrupted."""
    rows = [{key: value for key, value in row.items() if key != "seconds"} for row in run.history()]
    files = [(run.folder / name).read_bytes() for name in ("model.safetensors", "embeddings.safetensors")]
    return rows, files, run.result().metrics


def two_processes(recipe, folder):
    (folder / "recipe.yaml").write_text(dump_recipe(recipe))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launch, "-m", "softwarp", "train", folder / "recipe.yaml", "--output", folder / "two"]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True)
    return Run(folder / "two")


def losses_of(run):
    return [row["loss"] for row in run.history()]
