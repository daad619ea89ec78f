"""Start a small study, kill it at a random moment, resume it: `kill_studies.py KIND FOLDER TIMES TRIALS`.

All in children of one process, which has loaded everything once. Fails unless every outcome is the same, to
the digit, and no training that was finished before the kill has been touched since.
"""

import json
import os
import random
import sys
import time
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from softwarp.data.glyphs import load_glyphs
from support.kills import kill_midway
from support.tiny_studies import figures


def child(kind: str, folder: Path, trials: int) -> int:
    """Start or resume the study in a process of its own; return its number."""
    number = os.fork()
    if number == 0:
        try:
            folder.mkdir(exist_ok=True)
            (folder / "figures.json").write_text(json.dumps(figures(kind, folder, trials)))
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return number


def finished(folder: Path) -> dict[str, int]:
    """When each finished run wrote its result."""
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("result.json")}


def main(kind: str, folder: Path, times: int, trials: int) -> None:
    torch.set_num_threads(1)  # threads do not survive a fork
    load_glyphs()  # draws them if nobody has, which must not count as the study's time
    started = time.perf_counter()
    assert os.waitpid(child(kind, folder / "whole", trials), 0)[1] == 0
    seconds = time.perf_counter() - started
    whole = (folder / "whole" / "figures.json").read_text()
    assert '"map@r"' in whole
    generator = random.Random(times)
    for number in range(times):
        own = folder / str(number)
        kill_midway(partial(child, kind, own, trials), own, seconds, generator)
        before = finished(own)
        assert os.waitpid(child(kind, own, trials), 0)[1] == 0
        after = finished(own)
        assert {path: after[path] for path in before} == before, f"study {number} trained something twice"
        assert (own / "figures.json").read_text() == whole, f"study {number} ended otherwise"


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
