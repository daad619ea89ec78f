"""Trains on packed shards in several processes, a few steps at a time: `stream_runs.py FOLDER 2:5,1:4`.

First 5 steps in two processes, then 4 in one, with a worker each. Writes the items of each step, those of all
processes in the order of ranks, to FOLDER/items.json.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from softwarp import processes
from softwarp import train as training
from softwarp.overrides import override
from softwarp.recipe import parse_recipe, read_settings
from support.sharded_runs import free_port, join
from support.tiny_runs import Bars


def child(rank: int, world: int, port: int, folder: Path, steps: int) -> None:
    """Train that many steps as one of the processes; the main one notes the items."""
    join(rank, world, port)
    recipe = parse_recipe(override(read_settings(folder / "recipe.yaml"), ["data.workers=1"]))
    seen, take_step = [], training.take_step

    def noted(job, phase, number, batch):
        seen.append(processes.joined(batch.items).tolist())
        return take_step(job, phase, number, batch)

    training.take_step = noted
    try:
        stop = Bars(steps, lambda: signal.raise_signal(signal.SIGINT))
        training.train(recipe, folder / "run", resume=True, progress=stop)
    except training.StoppedError:
        if rank == 0:
            path = folder / "items.json"
            before = json.loads(path.read_text()) if path.exists() else []
            path.write_text(json.dumps(before + seen))
        os._exit(0)
    os._exit(1)


def main(folder: Path, plan: str) -> None:
    torch.set_num_threads(1)  # threads do not survive a fork
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
