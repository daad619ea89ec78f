"""Faces packed into tar shards: what is in them, how they are read, and that nothing damaged is taken."""

import io
import pickle
import tarfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image
from support.face_files import face, face_folder, write_faces
from support.pictures import two_broken

from softwarp.data.packing import draw_pairs, pack_faces
from softwarp.data.sampling import OPEN_SHARDS, Draws, RandomBatches
from softwarp.data.shards import Shards
from softwarp.data.splits import SplitPlan, divide
from softwarp.data.tables import layout_of, read_table


def pack(folder, output, **settings):
    return pack_faces(read_table(layout_of(folder), folder), output, **settings)


def test_every_file_comes_back_as_it_was_with_its_person(tmp_path):
    face_folder(tmp_path / "faces", people=6, images=3)
    written, broken = pack(tmp_path / "faces", tmp_path / "packed", shard_size=20_000)
    assert (written["images"], broken) == (18, [])
    assert written["shards"] > 2
    before, after = (read_table(layout_of(tmp_path / name), tmp_path / name) for name in ("faces", "packed"))
    assert after.names == before.names
    contents = {
        (before.root / path).read_bytes(): label
        for path, label in zip(before.paths, before.labels, strict=True)
    }
    found = {after.pack.read(place): label for place, label in enumerate(after.labels)}
    assert found == contents
    assert len(np.unique(after.shards)) == written["shards"]


def test_the_people_that_are_held_out_stay_the_same(tmp_path):
    """Also when all images of one are broken, who is then packed no more."""
    folder = face_folder(tmp_path / "faces", people=12, images=2)
    for path in (folder / "person_03").iterdir():
        path.write_text("no image")
    pack(folder, tmp_path / "packed")
    tables = [read_table(layout_of(each), each) for each in (folder, tmp_path / "packed")]
    held = []
    for table in tables:
        division = divide(table.labels, table.splits, SplitPlan("test"))
        held.append({table.names[label] for label in table.labels[division.queries]} - {"person_03"})
    assert held[0] == held[1]
    assert len(held[0]) >= 2


def test_any_tool_can_read_the_tar(tmp_path):
    """Samples of one name, image first, as webdataset has it; members are in the order of the index."""
    write_faces(tmp_path / "records", people=4, images=2)
    pack(tmp_path / "records", tmp_path / "packed")
    shards = Shards(tmp_path / "packed")
    with tarfile.open(tmp_path / "packed" / "shard-000000.tar") as tar:
        members = tar.getmembers()
        contents = [tar.extractfile(member).read() for member in members]
    assert [member.name for member in members[:4]] == [
        "000000000.jpg",
        "000000000.cls",
        "000000001.jpg",
        "000000001.cls",
    ]
    for place in range(8):
        assert contents[2 * place] == shards.read(place)
        assert int(contents[2 * place + 1]) == shards.columns["label"][place]
        assert members[2 * place].name == shards.name(place).split("/")[1]
    people = [int(shards.classes[label]) for label in shards.columns["label"]]
    assert {shards.read(place) for place in range(8)} == {face(p, n) for p in range(4) for n in (1, 2)}
    assert people != sorted(people)  # shuffled


def test_broken_images_are_left_out_and_named(tmp_path):
    written, broken = pack(two_broken(tmp_path / "images"), tmp_path / "packed")
    assert written["images"] == 6
    assert [image.path for image in broken] == ["owl/1.jpg", "wren/0.jpg"]
    shards = Shards(tmp_path / "packed")
    for place in range(6):
        Image.open(io.BytesIO(shards.read(place))).load()


def test_damaged_shards_are_named(tmp_path):
    face_folder(tmp_path / "faces", people=4, images=2)
    pack(tmp_path / "faces", tmp_path / "packed")
    path = tmp_path / "packed" / "shard-000000.tar"
    whole, shards = path.read_bytes(), Shards(tmp_path / "packed")
    place = int(shards.columns["offset"][5])
    path.write_bytes(whole[:place] + b"x" + whole[place + 1 :])
    with pytest.raises(ValueError, match=r"shard-000000\.tar/000000005\.jpg is damaged"):
        Shards(tmp_path / "packed").read(5)
    assert Shards(tmp_path / "packed").read(4)
    path.write_bytes(whole[:place])
    with pytest.raises(ValueError, match=r"000000005\.jpg is damaged"):
        Shards(tmp_path / "packed").read(5)
    path.unlink()
    with pytest.raises(ValueError, match=r"000000005\.jpg: No such file"):
        Shards(tmp_path / "packed").read(5)


def test_threads_may_read_more_shards_than_are_kept_open(tmp_path, monkeypatch):
    monkeypatch.setattr("softwarp.data.shards.HANDLES", 1)
    face_folder(tmp_path / "faces", people=8, images=4, size=28)
    pack(tmp_path / "faces", tmp_path / "packed", shard_size=8_000)
    shards = Shards(tmp_path / "packed")
    assert int(shards.columns["shard"].max()) > 1
    expected = [shards.read(place) for place in range(32)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(shards.read, [place % 32 for place in range(20_000)]))
    assert all(found[place] == expected[place % 32] for place in range(20_000))


def test_shards_of_other_tools_are_not_replaced(tmp_path):
    face_folder(tmp_path / "faces", people=4, images=2)
    theirs = tmp_path / "packed" / "shard-000000.tar"
    theirs.parent.mkdir()
    theirs.write_bytes(b"precious")
    with pytest.raises(ValueError, match=r"shard-000000\.tar"):
        pack(tmp_path / "faces", tmp_path / "packed")
    assert theirs.read_bytes() == b"precious"


def test_what_a_killed_attempt_left_is_replaced(tmp_path):
    face_folder(tmp_path / "faces", people=4, images=4)
    calls = iter(range(10))

    def stop():
        if next(calls, None) is None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(tmp_path / "faces", tmp_path / "packed", shard_size=20_000, advance=stop)
    assert list((tmp_path / "packed").glob("shard-*.tar"))
    written, _ = pack(tmp_path / "faces", tmp_path / "packed")
    assert (written["images"], written["shards"]) == (16, 1)
    assert len(list((tmp_path / "packed").glob("*.tar"))) == 1


def test_an_unfinished_or_damaged_index_is_refused(tmp_path):
    face_folder(tmp_path / "faces", people=4, images=2)
    pack(tmp_path / "faces", tmp_path / "packed")
    with pytest.raises(ValueError, match="already"):
        pack(tmp_path / "faces", tmp_path / "packed")
    index = tmp_path / "packed" / "index.npz"
    whole = index.read_bytes()
    index.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="damaged"):
        Shards(tmp_path / "packed")
    with np.load(io.BytesIO(whole)) as columns:
        np.savez(index, **{**columns, "label": columns["label"] + 4})
    with pytest.raises(ValueError, match="belong together"):
        Shards(tmp_path / "packed")
    index.unlink()
    with pytest.raises(FileNotFoundError, match=r"did not finish.*data\.name=folder"):
        read_table("shards", tmp_path / "packed")
    written, _ = pack(tmp_path / "faces", tmp_path / "packed")  # again, over what is left
    assert written["images"] == len(pickle.loads(pickle.dumps(Shards(tmp_path / "packed"))))


def test_an_epoch_shows_every_image_once_and_reads_few_shards_at_a_time():
    shards = torch.arange(4000) // 40  # a hundred of them
    batches = RandomBatches(4000, size=50, seed=3, shards=shards)
    epochs = [[item for batch in batches.of_epoch(epoch) for item in batch] for epoch in (0, 1)]
    assert all(sorted(items) == list(range(4000)) for items in epochs)
    assert epochs[0] != epochs[1]
    window = 40 * OPEN_SHARDS
    for start in range(0, 4000 - window + 1, window):
        read = {int(shards[item]) for item in epochs[0][start : start + window]}
        assert len(read) <= OPEN_SHARDS
        first = [int(shards[item]) for item in epochs[0][start : start + 100]]
        assert len(set(first)) > OPEN_SHARDS // 2  # and mixes them
    assert epochs[0] == [item for batch in batches.of_epoch(0) for item in batch]


def test_ranks_divide_the_stream_and_resume_at_the_very_sample():
    shards = torch.arange(360) // 30
    batches = RandomBatches(360, size=12, seed=0, shards=shards)
    whole = [draw for batch in Draws(batches, epochs=2) for draw in batch]
    for processes in (1, 2, 3):
        ranks = [list(Draws(batches, epochs=2, rank=rank, processes=processes)) for rank in range(processes)]
        assert [draw for step in zip(*ranks, strict=True) for share in step for draw in share] == whole
        for start in (0, 17, 30, 41):
            later = [
                list(Draws(batches, epochs=2, start=start, rank=rank, processes=processes))
                for rank in range(processes)
            ]
            assert later == [each[start:] for each in ranks]


def test_pairs_are_drawn_from_people_that_are_held_out(tmp_path):
    table = read_table("folder", face_folder(tmp_path / "faces", people=32, images=4, size=7))
    rows = draw_pairs(table, count=40, folds=2)
    held = {
        table.names[label]
        for label in table.labels[divide(table.labels, table.splits, SplitPlan("test")).queries]
    }
    assert len(rows) == 40
    assert sum(same for *_, same in rows) == 20
    by_fold = {1: set(), 2: set()}
    for fold, first, second, same in rows:
        people = first.split("/")[0], second.split("/")[0]
        assert (people[0] == people[1]) == same
        assert first != second
        by_fold[fold] |= set(people)
    assert by_fold[1] | by_fold[2] <= held
    assert not by_fold[1] & by_fold[2]
    assert len({frozenset(row[1:3]) for row in rows}) == 40
    with pytest.raises(ValueError, match="--folds 4 or fewer"):
        draw_pairs(table, count=40, folds=5)
    assert draw_pairs(table, count=40, folds=4)
