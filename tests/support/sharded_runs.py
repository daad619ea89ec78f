"""Trains one sharded run in several processes, a few steps at a time: `sharded_runs.py FOLDER 4:8,2:20`.

First 8 steps in four processes, then 20 in two. All are children of one process, which has loaded everything
once. Writes the loss of each step to FOLDER/steps.json.

It trains in float64. Sums over processes round differently, and in float32 that is enough to switch a ReLU
whose input is nearly zero: the losses then differ by 1e-5 a few steps later, and nothing is wrong.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from softwarp import processes
from softwarp.data.glyphs import load_glyphs
from softwarp.recipe.schema import Recipe
from softwarp.training import train as training
from support.tiny_runs import PHASE, Steps, tiny

LOSS = {
    "name": "warped_softmax",
    "proxy_init": "means",
    "sharded": True,
    "sample_rate": 0.5,
    "settings": {"alpha": "auto", "scale": "auto", "k1": 0.8, "k2": 1.2},
}
RECIPE = tiny(
    loss=LOSS,
    data={"max_classes": 19},
    batches={"classes": 8, "samples": 4},
    phases=[{**PHASE, "epochs": 8, "proxy_learning_rate": 1.0}],  # the gap soon decides the automatic scale
)


def join(rank: int, world: int, port: int) -> None:
    """Tell this process that it is one of several, as torchrun does."""
    if world > 1:
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({key: str(value) for key, value in (numbers | address).items()})


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def stopped_after(steps: int, recipe: Recipe, folder: Path) -> bool:
    """Train, or go on, for that many steps; return whether the run was still going on."""
    try:
        stop = Steps(steps, lambda: signal.raise_signal(signal.SIGINT))
        training.train_recipe(recipe, folder, resume=True, on_event=stop)
    except training.StoppedError:
        return True
    return False


def note(path: Path, values: list) -> None:
    """Add values to a list in a file."""
    before = json.loads(path.read_text()) if path.exists() else []
    path.write_text(json.dumps(before + values))


def child(folder: Path, steps: int) -> bool:
    """Train that many steps as one of the processes; the main one notes the losses."""
    losses, take_step = [], training.take_step
    training.take_step = lambda *arguments: losses.append(take_step(*arguments)) or losses[-1]
    stopped = stopped_after(steps, RECIPE, folder / "run")
    if processes.is_main():
        note(folder / "steps.json", losses)
    return stopped


def in_processes(plan: str, work: Callable[[int], bool]) -> None:
    """Do the parts of a plan like 4:8,2:20 one after the other, each in so many forked processes."""
    torch.set_num_threads(1)  # threads do not survive a fork
    for part in plan.split(","):
        world, steps = map(int, part.split(":"))
        port, numbers = free_port(), []
        for rank in range(world):
            numbers.append(os.fork())
            if numbers[-1] == 0:
                join(rank, world, port)
                os._exit(0 if work(steps) else 1)
        assert [os.waitpid(number, 0)[1] for number in numbers] == [0] * world


if __name__ == "__main__":
    load_glyphs()  # draws them if nobody has
    torch.set_default_dtype(torch.float64)
    place = Path(sys.argv[1])
    in_processes(sys.argv[2], lambda steps: child(place, steps))
