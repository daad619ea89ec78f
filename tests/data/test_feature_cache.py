"""Vectors by the content of image files: what was added is found, whatever happened to the file since."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest

from softwarp.data.decode import digest_of
from softwarp.data.feature_cache import UNUSED, FeatureCache

SIZE = 3


def vectors_for(names):
    return np.stack([np.full(SIZE, float(ord(name)), np.float32) for name in names])


def digests_for(names):
    return [digest_of(name.encode()) for name in names]


@pytest.fixture
def cache(tmp_path):
    return FeatureCache("network", SIZE, folder=tmp_path)


def test_vectors_are_found_by_content_in_any_order(cache):
    cache.add(digests_for("ab"), vectors_for("ab"))
    cache.add(digests_for("c"), vectors_for("c"))
    np.testing.assert_array_equal(cache.find(digests_for("cab")), vectors_for("cab"))
    assert np.isnan(cache.find(digests_for("xa"))[0]).all()


def test_another_network_has_a_cache_of_its_own(cache, tmp_path):
    cache.add(digests_for("a"), vectors_for("a"))
    assert np.isnan(FeatureCache("other", SIZE, folder=tmp_path).find(digests_for("a"))).all()
    assert np.isnan(FeatureCache("network", SIZE + 1, folder=tmp_path).find(digests_for("a"))).all()


def test_images_that_cannot_be_read_are_not_kept(cache):
    vectors = vectors_for("ab")
    vectors[0] = np.nan
    cache.add(digests_for("ab"), vectors)
    assert cache.path.stat().st_size == cache.record.itemsize
    np.testing.assert_array_equal(cache.find(digests_for("b")), vectors_for("b"))


def test_a_record_that_was_cut_off_is_none_and_the_next_ones_are_whole(cache):
    cache.add(digests_for("ab"), vectors_for("ab"))
    with cache.path.open("r+b") as file:
        file.truncate(2 * cache.record.itemsize - 5)
    assert np.isnan(cache.find(digests_for("b"))).all()
    cache.add(digests_for("c"), vectors_for("c"))
    np.testing.assert_array_equal(cache.find(digests_for("ac")), vectors_for("ac"))


@pytest.mark.parametrize("place", [3, 17, 25], ids=["digest", "checksum", "vector"])
def test_a_damaged_record_is_none(cache, place):
    cache.add(digests_for("ab"), vectors_for("ab"))
    content = bytearray(cache.path.read_bytes())
    content[place] ^= 255
    cache.path.write_bytes(content)
    found = FeatureCache("network", SIZE, folder=cache.path.parent).find(digests_for("ab"))
    assert np.isnan(found[0]).all()
    np.testing.assert_array_equal(found[1:], vectors_for("b"))


ADD_MANY = f"""
import sys
from pathlib import Path
import numpy as np
from softwarp.data.decode import digest_of
from softwarp.data.feature_cache import FeatureCache

cache, first = FeatureCache("network", {SIZE}, folder=Path(sys.argv[1])), int(sys.argv[2])
for number in range(first, first + 50):
    cache.add([digest_of(b"%d" % number)], np.full((1, {SIZE}), number, np.float32))
"""


def test_two_processes_add_at_a_time(tmp_path):
    words = [sys.executable, "-c", ADD_MANY, str(tmp_path)]
    processes = [subprocess.Popen([*words, first]) for first in ("0", "50")]
    assert [process.wait() for process in processes] == [0, 0]
    found = FeatureCache("network", SIZE, folder=tmp_path).find([digest_of(b"%d" % n) for n in range(100)])
    np.testing.assert_array_equal(found[:, 0], np.arange(100))


def test_caches_unused_for_a_month_are_removed_when_one_is_made(cache, tmp_path):
    cache.add(digests_for("a"), vectors_for("a"))
    other = tmp_path / "notes.txt"
    other.touch()
    old = time.time() - UNUSED - 60
    os.utime(cache.path, (old, old))
    os.utime(other, (old, old))
    FeatureCache("other", SIZE, folder=tmp_path).add(digests_for("a"), vectors_for("a"))
    assert not cache.path.exists()
    assert other.exists()
