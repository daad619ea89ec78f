import os
import stat
from pathlib import Path

import pytest

from softwarp.files import atomic_write, cache_folder, locked_folder, write_text


def test_an_error_leaves_the_old_content_and_no_litter(tmp_path):
    path = tmp_path / "note.txt"
    write_text(path, "old")
    with pytest.raises(RuntimeError), atomic_write(path) as file:  # noqa: PT012
        file.write(b"half of the n")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_content_is_on_the_disk_before_it_takes_its_place_and_the_place_before_it_returns(
    tmp_path, monkeypatch
):
    steps, replace = [], Path.replace

    def fsync(handle):
        about = os.fstat(handle)
        steps.append("folder" if stat.S_ISDIR(about.st_mode) else about.st_size)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", lambda *ends: steps.append("replace") or replace(*ends))
    write_text(tmp_path / "note.txt", "content")
    assert steps == [7, "replace", "folder"]


def test_the_new_content_replaces_the_old_with_ordinary_permissions(tmp_path):
    path, before = tmp_path / "folder" / "note.txt", os.umask(0o027)
    try:
        for text in ("old", "new"):
            write_text(path, text)
            assert path.read_text() == text
            assert path.stat().st_mode & 0o777 == 0o640
    finally:
        assert os.umask(before) == 0o027


def test_the_cache_folder_can_be_chosen(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SOFTWARP_CACHE", raising=False)
    assert cache_folder() == tmp_path / "softwarp"
    monkeypatch.setenv("SOFTWARP_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"


def test_the_old_content_is_kept_beside_and_never_missing(tmp_path, monkeypatch):
    path, keep = tmp_path / "a", tmp_path / "a-before"
    for content in (b"1", b"2", b"3"):
        with atomic_write(path, keep=keep) as file:
            file.write(content)
    assert (path.read_bytes(), keep.read_bytes()) == (b"3", b"2")
    replace, seen = Path.replace, []

    def spy(self, target):
        seen.append(path.exists())
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", spy)
    with atomic_write(path, keep=keep) as file:
        file.write(b"4")
    assert seen == [True, True]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a", "a-before"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_lock_does_not_live_on_in_forked_processes(tmp_path):
    ready, done = os.pipe(), os.pipe()
    with locked_folder(tmp_path):
        child = os.fork()
        if child == 0:
            os.write(ready[1], b"x")
            os.read(done[0], 1)
            os._exit(0)
        os.read(ready[0], 1)
        with pytest.raises(ValueError, match="another process"), locked_folder(tmp_path):
            pass
    with locked_folder(tmp_path):  # though the child lives
        os.write(done[1], b"x")
        os.waitpid(child, 0)
