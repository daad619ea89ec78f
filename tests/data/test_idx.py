"""idx files, packed or not; what is broken is named."""

import gzip

import numpy as np
import pytest

from softwarp.data.idx import read_idx

PIXELS = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
CONTENT = b"\0\0\x08\x03" + np.array(PIXELS.shape, ">i4").tobytes() + PIXELS.tobytes()


def test_a_file_is_read_packed_or_not(tmp_path):
    (tmp_path / "plain").write_bytes(CONTENT)
    (tmp_path / "packed.gz").write_bytes(gzip.compress(CONTENT))
    for name in ("plain", "packed"):
        np.testing.assert_array_equal(read_idx(tmp_path / name), PIXELS)


@pytest.mark.parametrize(
    ("name", "content", "cause"),
    [
        ("short", CONTENT[:-1], "23 of 24"),
        ("floats", CONTENT.replace(b"\x08", b"\x0d", 1), "not an idx file"),
        ("torn.gz", gzip.compress(CONTENT, mtime=0)[:-9], "cut short"),
    ],
)
def test_what_is_broken_is_named(tmp_path, name, content, cause):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=cause):
        read_idx(tmp_path / name.removesuffix(".gz"))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent"):
        read_idx(tmp_path / "absent")
