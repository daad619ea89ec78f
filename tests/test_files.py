import os
import stat
from pathlib import Path

import pytest

from softwarp.files import atomic_write, cache_folder, write_text


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
