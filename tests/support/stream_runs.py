"""Trains on packed shards in several processes, a few steps at a time: `stream_runs.py FOLDER 2:5,1:4`.

First 5 steps in two processes, then 4 in one, with a worker each. Writes the items of each step, those of all
processes in the order of ranks, to FOLDER/items.json.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from softwarp import processes
from softwarp.recipe.files import read_settings
from softwarp.recipe.overrides import override
from softwarp.recipe.schema import parse_recipe
from softwarp.training import train as training
from support.sharded_runs import in_processes, note, stopped_after


def child(folder: Path, steps: int) -> bool:
    """Train that many steps as one of the processes; the main one notes the items."""
    recipe = parse_recipe(override(read_settings(folder / "recipe.yaml"), ["data.workers=1"]))
    seen, take_step = [], training.take_step

    def noted(job, phase, number, batch):
        seen.append(processes.joined(batch.items).tolist())
        return take_step(job, phase, number, batch)

    training.take_step = noted
    stopped = stopped_after(steps, recipe, folder / "run")
    if processes.is_main():
        note(folder / "items.json", seen)
    return stopped


if __name__ == "__main__":
    place = Path(sys.argv[1])
    in_processes(sys.argv[2], lambda steps: child(place, steps))
