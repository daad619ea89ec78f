"""Start a small run, kill it at a random moment, resume it; as often as asked: `kill_runs.py FOLDER TIMES`.

All in children of one process, which has loaded everything once. Fails unless every outcome is the same.
"""

import os
import random
import sys
import time
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from softwarp.data.glyphs import load_glyphs
from softwarp.runs.run import Run
from softwarp.training.train import train_recipe
from support.kills import kill_midway
from support.tiny_runs import PHASE, outcome, tiny

RECIPE = tiny(
    phases=[{**PHASE, "epochs": 2}, {**PHASE, "loss_settings": {"alpha": 2.0}}],
    evaluation={"every": 1, "patience": 3},
    optimizer={"average": 0.9},
    checkpoint_minutes=1e-6,  # after every step
)


def child(folder: Path) -> int:
    """Start or resume the run in a process of its own; return its number."""
    number = os.fork()
    if number == 0:
        try:
            train_recipe(RECIPE, folder, resume=True)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return number


def main(folder: Path, times: int) -> None:
    torch.set_num_threads(1)  # threads do not survive a fork
    load_glyphs()  # draws them if nobody has, which must not count as the run's time
    started = time.perf_counter()
    assert os.waitpid(child(folder / "whole"), 0)[1] == 0
    seconds = time.perf_counter() - started
    whole = outcome(Run(folder / "whole"))
    generator = random.Random(times)
    for number in range(times):
        own = folder / str(number)
        kill_midway(partial(child, own), own, seconds, generator)
        assert os.waitpid(child(own), 0)[1] == 0
        assert outcome(Run(own)) == whole, f"run {number} ended otherwise"
        assert not [path.name for path in own.iterdir() if path.name.startswith(".")]


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
