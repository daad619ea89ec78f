"""Kills at random moments, which do not depend on how fast the machine happens to be."""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path


def kill_midway(start: Callable[[], int], folder: Path, seconds: float, generator: random.Random) -> None:
    """Start a process and kill it within `seconds`; if it had ended before, start it again and wait less.

    Args:
        start: returns the number of a new child, which works in `folder`.
    """
    wait = generator.uniform(0.05, 0.95) * seconds
    while True:
        process = start()
        time.sleep(wait)
        os.kill(process, signal.SIGKILL)
        if os.WIFSIGNALED(os.waitpid(process, 0)[1]):
            return
        shutil.rmtree(folder)
        wait /= 2
