"""Many small resumable trainings in one study folder, by one or many workers.

A task is done when its last file stands. A worker claims a task by a lock that ends with its process, however
it ends, so any number of processes, on machines that share the folder, may work on one study at once: nothing
is trained twice, and what a killed worker has begun, another resumes.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softwarp import processes
from softwarp.events import OnEvent, Work, part_of
from softwarp.files import check_writable, claimed, write_json
from softwarp.recipe.overrides import difference_of
from softwarp.runs.provenance import RULES, check_rules

POLL = 0.5  # seconds between looks at what other workers have finished
CLAIMS = ".claims"  # one empty file per task, in the study's folder

Act = Callable[[Path, OnEvent | None], None]


@dataclass(frozen=True)
class Task:
    """A piece of work with a folder of its own.

    Args:
        key: its folder, below that of the study.
        act: works in that folder; resumes whatever an earlier attempt left there.
        done: the file in that folder that `act` writes last.
        after: keys of the tasks that must be done first.
        trainings: how many it holds, for the progress bar.
        shared: whether workers with nothing else to do may join in, as in a search.
    """

    key: str
    act: Act
    done: str = "result.json"
    after: tuple[str, ...] = ()
    trainings: int = 1
    shared: bool = False

    def finished(self, folder: Path) -> bool:
        """Return whether there is nothing left to do in this study's folder."""
        return (folder / self.key / self.done).is_file()


def open_study(folder: Path, content: Mapping[str, Any], *, write: bool = True) -> None:
    """Write study.json, which says what a folder is for; raise a ValueError if it is for something else.

    Args:
        write: otherwise the folder is only checked.
    """
    check_writable(folder)
    path = folder / "study.json"
    if not path.is_file():
        if write:
            write_json(path, {**content, "rules": RULES})
        return
    there = json.loads(path.read_text())
    check_rules(folder, there.pop("rules", RULES))  # one of before they were written down is taken as it is
    asked = {key: value for key, value in content.items() if key != "data"}
    if difference := difference_of({key: value for key, value in there.items() if key != "data"}, asked):
        raise ValueError(
            f"{folder} holds another study: {difference}; choose another folder, or the settings it has"
        )
    if content.get("data") not in (None, there.get("data", content.get("data"))):
        raise ValueError(
            f"{folder} holds a study on other images (files or labels have changed since); choose another "
            "folder"
        )


def work(tasks: Sequence[Task], folder: Path, *, on_event: OnEvent | None = None) -> None:
    """Do every task of the study, with all other workers in its folder; return when all are done."""
    if processes.count() > 1:
        raise ValueError(
            "a study is not started with torchrun: start the same command several times, its processes share"
            " the trainings"
        )
    known = {task.key: task for task in tasks}
    bar = Work(on_event, "trainings", total=sum(t.trainings for t in tasks))
    while left := [task for task in tasks if not task.finished(folder)]:
        bar.reach(sum(t.trainings for t in tasks if t not in left))
        ready = [task for task in left if all(known[key].finished(folder) for key in task.after)]
        if not _work_on_one(ready, folder, on_event):
            time.sleep(POLL)
    bar.end()


def _work_on_one(ready: Sequence[Task], folder: Path, on_event: OnEvent | None) -> bool:
    """Do the first task that no other worker has; return whether there was one, or one to join."""
    for task in ready:
        with claimed(folder / CLAIMS / task.key.replace("/", ".")) as own:
            if own:
                if not task.finished(folder):  # another worker may just have done it
                    _act(task, folder, on_event)
                return True
    for task in (task for task in ready if task.shared):
        _act(task, folder, on_event)
        return True
    return False


def _act(task: Task, folder: Path, on_event: OnEvent | None) -> None:
    """Do a task; the bars that it showed go with it."""
    with part_of(on_event) as listener:
        task.act(folder / task.key, listener)
    if not task.finished(folder):
        raise RuntimeError(f"{task.key} ended without {task.done}")
