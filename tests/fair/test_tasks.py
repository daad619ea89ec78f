"""Tasks: in order, once, by any number of workers that may be killed."""

import io
import os
import signal
import time
from contextlib import contextmanager

import pytest
from rich.console import Console
from rich.progress import Progress

from softwarp import processes
from softwarp.events import Drawn, Work
from softwarp.fair import tasks
from softwarp.fair.tasks import Task, open_study, work
from softwarp.files import claimed


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(tasks, "POLL", 0.01)


def writes(log, **settings):
    """A function that makes tasks whose work is a line in a log and their own file."""

    def make(key, *after):
        def act(folder, on_event):
            folder.mkdir(parents=True, exist_ok=True)
            with log.open("a") as file:
                file.write(f"{key}\n")
            time.sleep(0.02)
            (folder / "result.json").write_text("{}")

        return Task(key, act, after=after, **settings)

    return make


def in_child(act):
    number = os.fork()
    if number == 0:
        try:
            act()
        finally:
            os._exit(0)
    return number


def test_each_task_is_done_once_and_after_what_it_needs(tmp_path):
    make = writes(tmp_path / "log")
    some = [make("last", "b/1", "a"), make("b/1", "a"), make("a")]
    work(some, tmp_path)
    assert (tmp_path / "log").read_text().split() == ["a", "b/1", "last"]
    (tmp_path / "b" / "1" / "result.json").unlink()
    work(some, tmp_path)
    assert (tmp_path / "log").read_text().split() == ["a", "b/1", "last", "b/1"]


def test_several_processes_share_the_tasks(tmp_path):
    make = writes(tmp_path / "log")
    some = [make("first"), *(make(str(number), "first") for number in range(20))]
    workers = [in_child(lambda: work(some, tmp_path)) for _ in range(3)]
    work(some, tmp_path)
    assert all(os.waitpid(number, 0)[1] == 0 for number in workers)
    done = (tmp_path / "log").read_text().split()
    assert sorted(done) == sorted(task.key for task in some)
    assert done[0] == "first"


def test_what_a_killed_worker_held_another_resumes(tmp_path):
    make = writes(tmp_path / "log")

    def hang(folder, on_event):
        (tmp_path / "begun").touch()
        time.sleep(60)

    killed = in_child(lambda: work([Task("a", hang)], tmp_path))
    while not (tmp_path / "begun").exists():
        time.sleep(0.01)
    with claimed(tmp_path / ".claims" / "a") as own:
        assert not own
    os.kill(killed, signal.SIGKILL)
    os.waitpid(killed, 0)
    work([make("a")], tmp_path)
    assert (tmp_path / "log").read_text().split() == ["a"]


def test_a_task_done_by_another_since_the_last_look_is_not_done_again(tmp_path, monkeypatch):
    @contextmanager
    def meanwhile(path):
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "result.json").touch()
        yield True

    monkeypatch.setattr(tasks, "claimed", meanwhile)
    work([Task("a", lambda *_: pytest.fail("done twice"))], tmp_path)


@pytest.mark.parametrize(("shared", "joined"), [(True, 1), (False, 0)])
def test_a_worker_with_nothing_to_do_joins_shared_work_and_waits_for_other(tmp_path, shared, joined):
    make = writes(tmp_path / "log", shared=shared)

    def owner():
        with claimed(tmp_path / ".claims" / "a"):
            (tmp_path / "begun").touch()
            time.sleep(0.3)
            (tmp_path / "a").mkdir(exist_ok=True)
            (tmp_path / "a" / "result.json").write_text("{}")

    child = in_child(owner)
    while not (tmp_path / "begun").exists():
        time.sleep(0.01)
    work([make("a")], tmp_path)
    os.waitpid(child, 0)
    assert (tmp_path / "a" / "result.json").exists()
    assert (tmp_path / "log").exists() == bool(joined)


def test_one_bar_counts_all_and_those_of_a_task_go_with_it(tmp_path):
    seen = []

    def act(folder, on_event):
        Work(on_event, "its own", total=3)
        seen.append([(bar.description, bar.completed, bar.total) for bar in progress.tasks])
        folder.mkdir()
        (folder / "result.json").touch()

    with Progress(console=Console(file=io.StringIO())) as progress:
        work([Task("a", act, trainings=4), Task("b", act)], tmp_path, on_event=Drawn(progress))
        assert not progress.tasks
    assert seen == [
        [("trainings", 0, 5), ("its own", 0, 3)],
        [("trainings", 4, 5), ("its own", 0, 3)],
    ]


def test_an_error_ends_the_work_and_frees_the_task(tmp_path):
    def fail(folder, on_event):
        raise ValueError("no images")

    with pytest.raises(ValueError, match="no images"):
        work([Task("a", fail)], tmp_path)
    with claimed(tmp_path / ".claims" / "a") as own:
        assert own
    with pytest.raises(RuntimeError, match=r"a ended without result\.json"):
        work([Task("a", lambda *_: None)], tmp_path)


def test_torchrun_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "count", lambda: 2)
    with pytest.raises(ValueError, match="torchrun"):
        work([], tmp_path)


def test_another_study_in_the_folder_is_refused_with_the_difference(tmp_path):
    open_study(tmp_path, {"trials": 5, "recipe": {"seed": 0, "phases": [{"epochs": 2}]}})
    open_study(tmp_path, {"trials": 5, "recipe": {"seed": 0, "phases": [{"epochs": 2}]}})
    with pytest.raises(ValueError, match=r"phases\.0\.epochs is 2 there and 3 here.*another folder"):
        open_study(tmp_path, {"trials": 5, "recipe": {"seed": 0, "phases": [{"epochs": 3}]}})
