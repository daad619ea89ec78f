import os
import platform
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from softwarp import memory
from softwarp.cli import app
from softwarp.data.images import load_batches
from softwarp.memory import freed_memory_kept

resource = pytest.importorskip("resource")
NETWORK = nn.Sequential(*[nn.Linear(64, 64) for _ in range(3)])
IMAGES = torch.zeros(160_000, 64)  # 41 MB, and so is every tensor between the layers: glibc gives them back
glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's memory is steered")


def pages_fetched(steps: int = 1) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(steps):
        NETWORK(IMAGES).sum().backward()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@glibc
def test_memory_is_fetched_once_and_kept_until_the_outermost_block_ends() -> None:
    pages_fetched()
    usual = pages_fetched()
    with freed_memory_kept():
        pages_fetched(steps=8)
        assert pages_fetched(steps=4) < usual
        with freed_memory_kept():
            pass
        assert pages_fetched(steps=4) < usual
        held = resident()
    assert held - resident() > 2 * IMAGES.nbytes
    assert pages_fetched() > usual / 3


@glibc
def test_memory_goes_back_after_an_error() -> None:
    held = 0
    with suppress(ZeroDivisionError), freed_memory_kept():
        pages_fetched(steps=2)
        held = resident()
        raise ZeroDivisionError
    assert held - resident() > 2 * IMAGES.nbytes


class Resident(torch.utils.data.Dataset):
    def __getitems__(self, items):
        return private()


def private() -> int:
    """Bytes that this process alone, or with others, holds of what is not a file's."""
    pages = Path("/proc/self/statm").read_text().split()
    return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")


@glibc
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded", "ignore:This DataLoader will create")
def test_worker_processes_do_not_hold_what_the_main_process_keeps() -> None:
    with freed_memory_kept():
        pages_fetched(steps=2)
        (held,) = load_batches(Resident(), [[0]], workers=1)
        assert private() - held > 2 * IMAGES.nbytes


def test_elsewhere_nothing_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.libc_ver", lambda: ("", ""))
    monkeypatch.setattr("ctypes.CDLL", lambda name: pytest.fail("there is no mallopt"))
    with freed_memory_kept():
        pass


@pytest.mark.parametrize(
    ("command", "work"),
    [("train", "softwarp.training.entry.train_recipe"), ("demo", "softwarp.studies.demo.run_demo")],
)
def test_commands_keep_memory_while_they_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str, work: str
) -> None:
    users = []

    def stop(*_: object, **__: object) -> None:
        users.append(memory._users)
        raise KeyboardInterrupt

    monkeypatch.setattr(work, stop)
    assert CliRunner().invoke(app, [command, "--output", str(tmp_path)]).exit_code == 130
    assert (users, memory._users) == ([1], 0)
