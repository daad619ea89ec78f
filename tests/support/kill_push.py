"""Push an index to real servers, kill it at a random moment, push again: `kill_push.py FOLDER TIMES`.

The moment is a random time after a random batch. After each kill, all that was confirmed is there; in the
end the collection holds every image of the index once, and nothing else. Prints how often each was killed.
"""

import os
import random
import signal
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from softwarp.events import Progress
from softwarp.index import remote
from softwarp.index.images import NewImage
from softwarp.index.index import Index
from softwarp.index.remote import open_remote, push
from support.databases import databases
from support.tiny_index import vector_index

IMAGES = 1600
remote.BATCH = 32  # many batches, many moments


def pushed(folder: Path, url: str, log: Path) -> None:
    """Push in a child, and write down after each batch how many are confirmed."""

    def confirm(event: Progress) -> None:
        log.with_suffix(".new").write_text(str(int(event.done)))
        log.with_suffix(".new").replace(log)

    push(Index.open(folder), url, on_event=confirm)


def child(*inputs: object) -> int:
    number = os.fork()
    if number == 0:
        try:
            pushed(*inputs)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return number


def stored(url: str, vectors: np.ndarray) -> dict[int, str]:
    """Path by id of all images that are there; each is where its vector is."""
    with closing(open_remote(url)) as index:
        answer = index.search(vectors[:1], 2 * IMAGES)
        assert len({each.id for each in answer}) == len(answer)
        return {each.id: each.path for each in answer}


def kill(folder: Path, url: str, generator: random.Random) -> None:
    folder.mkdir(parents=True)
    log = folder / "confirmed"
    vectors = np.random.default_rng(0).normal(size=(IMAGES, 64)).astype(np.float32)
    index = vector_index(folder / "index", vectors)
    process, target = child(folder / "index", url, log), generator.randrange(32, IMAGES * 3 // 4)
    while not (log.exists() and int(log.read_text()) >= target):
        assert os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None, "ended too early"
        time.sleep(0.001)
    time.sleep(generator.uniform(0, 0.01))
    os.kill(process, signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(process, 0)[1]), "it had ended before it was killed"
    confirmed = int(log.read_text())
    there = stored(url, vectors)
    assert confirmed <= len(there) < IMAGES, (confirmed, len(there))
    index.store.remove(["3.jpg"])
    index.append(vectors[:1] + 1, [NewImage("5.jpg")])
    done = push(Index.open(folder / "index"), url)
    assert done.unchanged >= confirmed - 2
    assert stored(url, vectors) == {item.id: item.path for item in index.items}


def main(folder: Path, times: int) -> None:
    for kind in ("qdrant", "postgresql"):
        generator, killed = random.Random(times), 0
        with databases(kind) as new_url:
            for number in range(times):
                kill(folder / kind / str(number), new_url(), generator)
                killed += 1
        print(killed)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
