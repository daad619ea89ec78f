"""Pickles as data: what lists of faces need is read, anything that would be called is refused."""

import builtins
import os
import pickle
import struct
import subprocess
import tracemalloc
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.face_files import damage, face, problem_of, python_2_bin, write_bin

from softwarp.data.pickles import read_plain_pickle
from softwarp.faces.pairs import BinFile, read_pairs

PAIRS = [(b"\xff\xd8 first", b"second \x00", True), (b"third", b"", False)]
IMAGES = [image for first, second, _ in PAIRS for image in (first, second)]


@pytest.mark.parametrize("protocol", range(2, 6))
def test_every_protocol_reads_back(tmp_path, protocol):
    for flags in ([True, False], [np.True_, np.False_], np.array([True, False])):
        content = pickle.dumps((IMAGES, flags), protocol)
        images, same = read_plain_pickle(content)
        assert images == IMAGES
        assert list(same) == [True, False]
    arrays = [np.frombuffer(image, np.uint8) for image in IMAGES]
    assert read_plain_pickle(pickle.dumps(arrays, protocol)) == IMAGES


def test_what_python_2_wrote(tmp_path):
    (tmp_path / "lfw.bin").write_bytes(python_2_bin(PAIRS))
    found = BinFile(tmp_path / "lfw.bin")
    assert (found.images, found.same.tolist()) == (IMAGES, [True, False])
    numpy_1 = pickle.dumps([np.True_], 2).replace(b"numpy._core.", b"numpy.core.")
    assert read_plain_pickle(numpy_1) == [True]


class Calls:
    def __init__(self, function, *inputs):
        self.given = function, inputs

    def __reduce__(self):
        return self.given


class Sets:
    def __reduce__(self):
        return (list, (), {"x": 1})


EVIL = {
    "os.system": pickle.dumps(Calls(os.system, "touch PLACE")),
    "eval": pickle.dumps(Calls(builtins.eval, "open('PLACE', 'w')")),
    "exec within the list": pickle.dumps(([Calls(builtins.exec, "open('PLACE', 'w')")], [True])),
    "subprocess": pickle.dumps(Calls(subprocess.check_output, ["touch", "PLACE"])),
    "getattr": pickle.dumps(Calls(getattr, "x", "upper")),
    "numpy.load": pickle.dumps(Calls(np.load, "PLACE")),
    "array of objects": pickle.dumps(np.array([Calls(os.system, "touch PLACE")], dtype=object)),
    "protocol 0": b"cos\nsystem\n(S'touch PLACE'\ntR.",
    "INST": b"(S'touch PLACE'\nios\nsystem\n.",
    "OBJ": b"(cos\nsystem\nS'touch PLACE'\no.",
    "NEWOBJ": b"cos\nsystem\nS'touch PLACE'\n\x85\x81.",
    "EXT": b"\x82\x01.",
    "PERSID": b"Ptouch PLACE\n.",
    "a state that sets": pickle.dumps(Sets()),
    "a dict": pickle.dumps({"x": 1}),
    "a set": pickle.dumps({1}),
    "codecs": pickle.dumps(Calls(__import__("_codecs").encode, "x", "rot13")),
    "a dotted name": b"\x80\x04\x8c\x05numpy\x8c\x09os.system\x93\x8c\x04true\x85R.",
}


@pytest.mark.parametrize("name", EVIL)
def test_a_pickle_that_calls_anything_is_refused(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "evil.bin"
    path.write_bytes(EVIL[name].replace(b"PLACE", b"ran.x"))  # as long as PLACE
    with pytest.raises(ValueError, match=r"evil\.bin: .*(refused|pickle)"):
        read_pairs(path)
    assert [each.name for each in tmp_path.iterdir()] == ["evil.bin"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "pickle"),
        (b"\x80\x04.", "one value"),
        (b"\x80\x04]q\x00h\x00a.", "itself"),
        (b"\x80\x04(.", "does not end"),
        (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.", "bytes"),
        (b"\x80\x04r\xff\xff\xff\x7f.", "damaged"),
        (b"\x80\x04" + b"](" * 3000 + b".", "damaged|one value"),
        (pickle.dumps(np.zeros(3)), "array of"),
        (pickle.dumps(np.zeros((2, 2), np.uint8)), "shape"),
    ],
)
def test_damage_is_named(content, why):
    with pytest.raises(ValueError, match=why):
        read_plain_pickle(content)


@contextmanager
def memory_below(most):
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def test_a_bomb_of_shared_lists_stays_small():
    """Forty lists of which each holds the one before twice: 2 ** 40 values if they were copied."""
    content = b"\x80\x04]\x94" + b"".join(b"]\x94(h%ch%ce" % (n, n) for n in range(40)) + b"."
    stacked = b"\x80\x04]\x94" + b"".join(b"0]\x94(h%ch%ce" % (n, n) for n in range(40)) + b"."
    with pytest.raises(ValueError, match="one value"):
        read_plain_pickle(content)
    found = read_plain_pickle(stacked)
    assert found[0] is found[1]


SIZE = 100_000
LONG = struct.pack("<I", SIZE) + b"a" * SIZE


@pytest.mark.parametrize(
    ("named", "once", "again"),
    [
        (b"_codecs\nencode", b"X" + LONG, b"h\x00h\x01\x8c\x06latin1\x86R"),
        (
            b"numpy._core.numeric\n_frombuffer",
            b"B" + LONG,
            b"h\x00(h\x01\x8c\x02u1J" + struct.pack("<I", SIZE) + b"\x85NtR",
        ),
    ],
)
def test_a_bomb_of_one_text_that_is_used_many_times_is_refused(named, once, again):
    content = b"\x80\x04c" + named + b"\nq\x000" + once + b"q\x010](" + again * 1000 + b"e."
    with memory_below(10 * SIZE), pytest.raises(ValueError, match="more bytes than"):
        read_plain_pickle(content)


def test_a_bytearray_that_is_used_many_times_is_there_once():
    content = b"\x80\x05\x96" + struct.pack("<Q", SIZE) + b"a" * SIZE + b"q\x010](" + b"h\x01" * 1000 + b"e."
    with memory_below(10 * SIZE):
        assert read_plain_pickle(content) == [b"a" * SIZE] * 1000


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ([b"a", b"b"], "not a list of image"),
        (([b"a"], [True]), "two each"),
        (([b"a", b"b"], [3]), "flags"),
        (([b"a", "b"], [True]), "image files"),
        (([], []), "two each"),
        (7, "not a verification file"),
    ],
)
def test_other_contents_are_no_verification_file(tmp_path, content, why):
    (tmp_path / "x.bin").write_bytes(pickle.dumps(content))
    with pytest.raises(ValueError, match=rf"x\.bin: .*{why}"):
        BinFile(tmp_path / "x.bin")


def mutate_bins(folder, examples):
    pairs = [(face(0, 1, size=28), face(0, 2, size=28), 1), (face(0, 1, size=28), face(1, 1, size=28), 0)]
    wholes = [write_bin(folder / "whole.bin", pairs, protocol).read_bytes() for protocol in (2, 4)]
    wholes.append(python_2_bin(pairs))

    @settings(max_examples=examples, deadline=5000, database=None)
    @given(st.sampled_from(wholes).flatmap(damage))
    def check(content):
        (folder / "mutated.bin").write_bytes(content)
        try:
            images = read_pairs(folder / "mutated.bin").images
        except ValueError:
            return
        for item in range(len(images)):
            problem = problem_of(images, item)
            assert not problem or images.name(item) in problem

    check()


def test_mutated_bins_raise_only_our_errors(tmp_path_factory):
    mutate_bins(tmp_path_factory.mktemp("mutated"), 60)


@pytest.mark.slow
def test_500_mutated_bins_raise_only_our_errors(tmp_path_factory):
    mutate_bins(tmp_path_factory.mktemp("mutated"), 500)
