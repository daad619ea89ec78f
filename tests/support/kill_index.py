"""Embed, or build and extend an index, kill it at a random moment, do it again: `kill_index.py FOLDER TIMES`.

The moment is a random time after a random batch, however busy the machine is. All in children of one
process, which has loaded everything once. After each kill the index must open and hold every batch that was
confirmed; in the end it must be what an undisturbed one is, every image once.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from safetensors.torch import load_file

from softwarp.index import embed_files
from softwarp.index.embed_tree import embed_tree
from softwarp.index.index import Index
from softwarp.index.store import IndexStore
from softwarp.training.train import train_recipe
from support.tiny_index import glyph_files, state
from support.tiny_runs import PHASE, tiny

embed_files.embed_files.__kwdefaults__["batch_size"] = 4  # many batches, many moments


append = IndexStore.append


def logged_append(store, *inputs):
    """Append, then write down that it is confirmed: ids only grow."""
    append(store, *inputs)
    log = store.folder.with_suffix(".confirmed")
    log.with_suffix(".new").write_text(str(store.settings["next_id"]))
    log.with_suffix(".new").replace(log)


IndexStore.append = logged_append


def embed(run: Path, images: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "vectors.safetensors").exists():
        embed_tree(run, [images], folder / "vectors.safetensors")


def add(run: Path, images: Path, folder: Path) -> None:
    index = Index.build(run, images / "one", folder)
    index.add([images / "two"])
    index.remove([images / "one" / "U+0041"])
    index.refresh()


def embedded(folder: Path) -> object:
    arrays = load_file(folder / "vectors.safetensors")
    assert not (folder / "vectors.safetensors.part").exists()
    return {name: array.numpy().tobytes() for name, array in arrays.items()}


def added(folder: Path) -> object:
    index = Index.open(folder)
    assert len(set(index.ids.tolist())) == len(index.items) == len(index)
    return state(index)


def confirmed(folder: Path) -> int:
    log = folder.with_suffix(".confirmed")
    return int(log.read_text() or 0) if log.exists() else 0


def check_killed(folder: Path) -> None:
    """What a killed process has left opens, and all that was confirmed is in it."""
    index = Index.open(folder)
    assert index.store.settings["next_id"] >= confirmed(folder) > 1
    assert len(state(index)) == len(index) == len(index.items) == len(index.vectors) > 0
    assert np.isfinite(index.vectors).all()


def wait(process: int, reached) -> None:
    """Wait until enough is confirmed, or the process has ended."""
    while not reached() and os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        time.sleep(0.001)


TASKS = {"embed": (embed, embedded), "add": (add, added)}


def child(task, *paths: Path) -> int:
    number = os.fork()
    if number == 0:
        try:
            task(*paths)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return number


def kill(what: str, run: Path, images: Path, folder: Path, times: int) -> None:
    task, outcome = TASKS[what]
    place = "vectors.safetensors.part" if what == "embed" else ""
    started = time.perf_counter()
    assert os.waitpid(child(task, run, images, folder / "whole"), 0)[1] == 0
    seconds = time.perf_counter() - started
    whole, last = outcome(folder / "whole"), confirmed(folder / "whole" / place)
    assert len(whole) > 3
    generator = random.Random(times)
    for number in range(times):
        own = folder / str(number)
        process, target = child(task, run, images, own), generator.randrange(2, last * 3 // 4)
        wait(process, lambda own=own, target=target: confirmed(own / place) >= target)
        time.sleep(generator.uniform(0, seconds / last))
        os.kill(process, signal.SIGKILL)
        assert os.WIFSIGNALED(os.waitpid(process, 0)[1]), "it had ended before it was killed"
        check_killed(own / place)
        assert os.waitpid(child(task, run, images, own), 0)[1] == 0
        assert outcome(own) == whole, f"{what} {number} ended otherwise"
        assert not [path.name for path in own.iterdir() if path.name.startswith(".")]


def main(folder: Path, times: int) -> None:
    torch.set_num_threads(1)  # threads do not survive a fork
    run = train_recipe(tiny(phases=[PHASE]), folder / "run").folder
    images = folder / "images"
    glyph_files(images / "one", classes=6)
    glyph_files(images / "two", classes=4, styles=6)
    for what in TASKS:
        kill(what, run, images, folder / what, times)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
