"""The folder of weights: found, checked when loaded, removed; damage is one clear line."""

import json

import pytest
import torch

from softwarp.files import cache_folder
from softwarp.models.weights_folder import (
    added_weights,
    checked_file,
    find_added,
    remove_weights,
    store_weights,
    weights_folder,
)

ABOUT = {"name": "net", "sha256": "0" * 64, "original": "net.pth", "added": "2026-11-19"}


@pytest.fixture
def added(monkeypatch, tmp_path):
    monkeypatch.setenv("SOFTWARP_WEIGHTS", str(tmp_path))
    return store_weights({"a": torch.ones(2)}, about=ABOUT)


def test_the_folder_lies_in_the_cache_unless_it_is_chosen(monkeypatch, tmp_path):
    monkeypatch.delenv("SOFTWARP_WEIGHTS", raising=False)
    assert weights_folder() == cache_folder() / "weights"
    assert find_added("net") is None
    monkeypatch.setenv("SOFTWARP_WEIGHTS", str(tmp_path / "mine"))
    assert weights_folder() == tmp_path / "mine"
    assert added_weights() == []


def test_a_damaged_or_missing_file_is_named_with_the_cure(added):
    assert checked_file(added) == added.path
    content = added.path.read_bytes()
    added.path.write_bytes(content[:-1] + b"!")
    with pytest.raises(ValueError, match=rf"{added.file}.* damaged.*weights add FILE --as net"):
        checked_file(added)
    added.path.unlink()
    with pytest.raises(FileNotFoundError, match=rf"{added.file}.* gone.*weights add FILE --as net"):
        checked_file(added)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"name": "net"}'])
def test_a_damaged_record_is_named_with_the_cure(added, tmp_path, content):
    (tmp_path / "net.json").write_text(content)
    with pytest.raises(ValueError, match=r"net\.json is damaged.*weights add FILE --as net"):
        find_added("net")


def test_nothing_outside_the_folder_is_read(added, tmp_path, monkeypatch):
    record = json.loads((tmp_path / "net.json").read_text())
    (tmp_path / "net.json").write_text(json.dumps(record | {"file": f"../{tmp_path.name}/{added.file}"}))
    assert find_added("net").path == added.path
    monkeypatch.setenv("SOFTWARP_WEIGHTS", str(tmp_path / "inner"))
    (tmp_path / "inner").mkdir()
    assert find_added("../net") is None


def test_what_is_removed_is_gone(added, tmp_path):
    with pytest.raises(ValueError, match=r"as nett; did you mean net\?"):
        remove_weights("nett")
    assert remove_weights("net") == added
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="as net; there are none"):
        remove_weights("net")
