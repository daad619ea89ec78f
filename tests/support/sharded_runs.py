"""Trains one sharded run in several processes, a few steps at a time: `sharded_runs.py FOLDER 4:8,2:20`.

First 8 steps in four processes, then 20 in two. All are children of one process, which has loaded everything
once. Writes the loss of each step to FOLDER/steps.json.
"""

import json
import os
import signal
import socket
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from softwarp import train as training
from softwarp.data.glyphs import load_glyphs
from support.tiny_runs import Bars, tiny

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
    model={"embedding_size": 16, "freeze_batch_norm": True},  # one process rounds another way than several
    batches={"classes": 8, "samples": 4},
    optimizer={"eps": 1.0},  # so that rounding is not amplified
    phases=[{"epochs": 8, "learning_rate": 0.005, "proxy_learning_rate": 0.5}],
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


def child(rank: int, world: int, port: int, folder: Path, steps: int) -> None:
    """Train that many steps as one of the processes; the main one notes the losses."""
    join(rank, world, port)
    losses, take_step = [], training.take_step
    training.take_step = lambda *arguments: losses.append(take_step(*arguments)) or losses[-1]
    try:
        stop = Bars(steps, lambda: signal.raise_signal(signal.SIGINT))
        training.train(RECIPE, folder / "run", resume=True, progress=stop)
    except training.StoppedError:
        if rank == 0:
            path = folder / "steps.json"
            before = json.loads(path.read_text()) if path.exists() else []
            path.write_text(json.dumps(before + losses))
        os._exit(0)
    os._exit(1)


def main(folder: Path, plan: str) -> None:
    torch.set_num_threads(1)  # threads do not survive a fork
    load_glyphs()  # draws them if nobody has
    for part in plan.split(","):
        world, steps = map(int, part.split(":"))
        port, numbers = free_port(), []
        for rank in range(world):
            numbers.append(os.fork())
            if numbers[-1] == 0:
                child(rank, world, port, folder, steps)
        assert [os.waitpid(number, 0)[1] for number in numbers] == [0] * world


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
