"""insightface's records, written here from the format's definition and read back without mxnet."""

import multiprocessing
import pickle
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.face_files import (
    MAGIC,
    as_record,
    damage,
    face,
    packed,
    problem_of,
    write_faces,
    write_records,
)

from softwarp.data.images import ImageDataset, load_batches, test_transform
from softwarp.data.records import RecordFile
from softwarp.data.stores import PackStore
from softwarp.data.tables import layout_of, read_table


def test_faces_come_back_by_position_in_any_order(tmp_path):
    path = write_faces(tmp_path, people=5, images=3)
    records = RecordFile(path)
    assert len(records) == 15  # neither the header nor the records of people
    assert records.labels().tolist() == [person for person in range(5) for _ in range(3)]
    for position in np.random.default_rng(0).permutation(15).tolist():
        assert records.read(position) == face(position // 3, position % 3 + 1)
    assert records.name(4) == "train.rec/5"


def test_without_a_header_every_key_is_an_image_and_several_labels_mean_the_first(tmp_path):
    contents = {7: packed([3.0, 9.0, 1.0], b"three labels"), 2: packed(1, b"one label")}
    records = RecordFile(write_records(tmp_path, contents))
    assert records.keys.tolist() == [2, 7]
    assert [records.read(position) for position in (0, 1)] == [b"one label", b"three labels"]
    assert records.labels().tolist() == [1, 3]


CONTENTS = st.lists(st.one_of(st.binary(max_size=9), st.just(MAGIC)), max_size=8).map(b"".join)


@settings(max_examples=60, deadline=None)
@given(contents=st.lists(CONTENTS, min_size=1, max_size=4))
def test_content_with_the_magic_number_is_joined_again(tmp_path_factory, contents):
    """The writer cuts such a record into parts; without its header, so that parts begin anywhere."""
    folder = tmp_path_factory.mktemp("records")
    label = {key: packed(key, content) for key, content in enumerate(contents, start=1)}
    records = RecordFile(write_records(folder, label))
    assert [records.read(position) for position in range(len(records))] == contents


def test_several_parts_are_met_and_a_header_may_be_cut_too(tmp_path):
    magic = int.from_bytes(MAGIC, "little")
    header = struct.pack("<IfQQ", 0, 4.0, magic, magic << 32)  # twice within the header
    content = header + b"abcd" + MAGIC + MAGIC + b"tail"
    assert as_record(content).count(MAGIC) == 5  # one before each part
    records = RecordFile(write_records(tmp_path, {1: content}))
    assert records.read(0) == b"abcd" + MAGIC + MAGIC + b"tail"
    assert records.labels().tolist() == [4]


def test_damage_is_an_error_that_names_the_record(tmp_path):
    path = write_faces(tmp_path, people=4, images=2)
    whole = path.read_bytes()
    start = RecordFile(path).offsets[3]
    path.write_bytes(whole[:start] + b"oops" + whole[start + 4 :])
    with pytest.raises(ValueError, match=r"train\.rec: record 4 .*begins"):
        RecordFile(path).read(3)
    path.write_bytes(whole[: start + 20])
    with pytest.raises(ValueError, match=r"record 4 .*beyond the file"):
        RecordFile(path).read(3)
    with pytest.raises(ValueError, match="record 4 "):
        read_table("records", tmp_path)
    path.write_bytes(whole)
    records = RecordFile(path)
    path.write_bytes(whole[: start + 20])  # while it is open
    with pytest.raises(ValueError, match=r"record 4 .*shorter"):
        records.read(3)
    path.with_suffix(".idx").unlink()
    with pytest.raises(FileNotFoundError, match=r"train\.idx is missing"):
        RecordFile(path)


@pytest.mark.parametrize(
    ("line", "named"), [("x\t0", "line 2"), ("1", "line 2"), ("1\t-4", "line 2"), ("0\t8", "record 0 twice")]
)
def test_a_damaged_index_is_named(tmp_path, line, named):
    path = write_records(tmp_path, {0: packed(0, b"image")})
    with path.with_suffix(".idx").open("a") as index:
        index.write(f"{line}\n")
    with pytest.raises(ValueError, match=named):
        RecordFile(path)


def test_an_index_that_was_cut_short_is_named(tmp_path):
    index = write_faces(tmp_path, people=4, images=2).with_suffix(".idx")
    lines = index.read_text().splitlines(keepends=True)
    index.write_text("".join(lines[:6]))
    with pytest.raises(ValueError, match=r"train\.idx .*5 of 8 images"):
        RecordFile(index.with_suffix(".rec"))


def test_labels_that_are_none_and_people_that_property_does_not_know(tmp_path):
    with pytest.raises(ValueError, match=r"record 3 .*1\.5"):
        RecordFile(write_records(tmp_path / "half", {3: packed(1.5, b"")})).labels()
    write_faces(tmp_path, people=4, images=1)
    (tmp_path / "property").write_text("3,112,112")
    with pytest.raises(ValueError, match="3 people"):
        read_table("records", tmp_path)


def test_a_table_of_records_knows_its_people(tmp_path):
    write_faces(tmp_path, people=11, images=2)
    table = read_table(layout_of(tmp_path), tmp_path)
    assert table.names == tuple(str(person) for person in range(11))
    assert table.labels.tolist() == [person for person in range(11) for _ in range(2)]
    assert table.splits is None
    assert table.pack.read(3) == face(1, 2)


def read_all(records, places, found):
    found.put([records.read(place) for place in places])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_share_a_file(tmp_path, method):
    records = RecordFile(write_faces(tmp_path, people=6, images=4))
    if method == "spawn":  # what a spawned worker gets
        again = pickle.loads(pickle.dumps(records))
        assert [again.read(place) for place in range(24)] == [records.read(place) for place in range(24)]
        return
    context, orders = multiprocessing.get_context("fork"), [list(range(24)), list(range(23, -1, -1))]
    answers = [context.SimpleQueue() for _ in orders]
    workers = [
        context.Process(target=read_all, args=(records, order * 20, answer))
        for order, answer in zip(orders, answers, strict=True)
    ]
    for worker in workers:
        worker.start()
    expected = [face(place // 4, place % 4 + 1) for place in range(24)]
    assert answers[0].get() == expected * 20
    assert answers[1].get() == expected[::-1] * 20
    for worker in workers:
        worker.join()


def test_loaders_read_the_same_with_and_without_workers(tmp_path):
    records = RecordFile(write_faces(tmp_path, people=4, images=4))
    labels = torch.from_numpy(records.labels())
    images = ImageDataset(
        PackStore(records, list(range(16)), shorter_side=112), labels, test_transform(resize=112, crop=112)
    )
    draws = [[(place, 0) for place in range(start, start + 4)] for start in range(0, 16, 4)]
    alone, helped = (list(load_batches(images, draws, workers=workers)) for workers in (0, 2))
    assert len(alone) == 4
    for one, other in zip(alone, helped, strict=True):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)


def use_all(path):
    """Reads everything that training would; only our own errors may come."""
    try:
        table = read_table("records", path.parent)
        store = PackStore(table.pack, range(len(table.paths)), shorter_side=None)
    except (ValueError, FileNotFoundError):
        return
    for item in range(len(store)):
        problem = problem_of(store, item)
        assert not problem or store.name(item) in problem or "record" in problem


def mutate_records(tmp_path_factory, examples):
    folder = tmp_path_factory.mktemp("mutated")
    path = write_faces(folder, people=3, images=2, size=28)
    whole, index = path.read_bytes(), path.with_suffix(".idx").read_bytes()

    @settings(max_examples=examples, deadline=5000, database=None)
    @given(damage(whole), st.one_of(st.just(index), damage(index)))
    def check(content, lines):
        path.write_bytes(content)
        path.with_suffix(".idx").write_bytes(lines)
        use_all(path)

    check()


def test_mutated_records_raise_only_our_errors(tmp_path_factory):
    mutate_records(tmp_path_factory, 40)


@pytest.mark.slow
def test_500_mutated_records_raise_only_our_errors(tmp_path_factory):
    mutate_records(tmp_path_factory, 500)
