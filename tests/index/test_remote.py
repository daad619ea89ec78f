"""Indexes in real databases: pushed, resumed, searched."""

import os
import subprocess
import sys
from contextlib import closing
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pytest
from support.databases import KINDS, databases
from support.tiny_index import brute_force, tiny_model, vector_index

from softwarp.index import qdrant as remote_qdrant
from softwarp.index import remote
from softwarp.index.images import NewImage
from softwarp.index.index import Index
from softwarp.index.postgres import pattern_of
from softwarp.index.remote import open_remote, push

pytest.importorskip("qdrant_client", reason="needs qdrant-client: pip install 'softwarp[qdrant]'")
pytest.importorskip("pgvector", reason="needs pgvector: pip install 'softwarp[postgres]'")


@pytest.fixture(scope="module")
def new_table():
    with databases("postgresql") as new:
        yield new


@pytest.fixture(scope="module", params=KINDS)
def new_url(request):
    if request.param == "postgresql":
        yield request.getfixturevalue("new_table")
        return
    with databases(request.param) as new:
        yield new


@pytest.fixture
def url(new_url):
    return new_url()


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(remote, "BATCH", 16)
    monkeypatch.setattr(remote_qdrant, "SCROLLED", 7)


def points(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, 12)).astype(np.float32)


def found(url, queries, k=10, **settings):
    with closing(open_remote(url)) as index:
        return index.search(queries, k, **settings).queries


def paths(answers):
    return [[each.path for each in answer] for answer in answers]


@pytest.mark.parametrize("distance", ["euclidean", "cosine"])
def test_a_pushed_index_answers_as_brute_force_does(tmp_path, url, distance):
    vectors, queries = points(60), points(5, seed=1)
    index = vector_index(tmp_path / "index", vectors, distance=distance, labels=["wren"] * 60)
    assert (push(index, url).sent, len(index)) == (60, 60)
    exact = brute_force(queries, vectors, distance)
    answers = found(url, queries)
    assert [[each.id - 1 for each in answer] for answer in answers] == np.argsort(exact)[:, :10].tolist()
    away = [[each.distance for each in answer] for answer in answers]
    np.testing.assert_allclose(away, np.sort(exact)[:, :10], rtol=1e-4, atol=1e-5)
    assert answers[0][0].label == "wren"
    assert len(found(url, queries[0], k=100)[0]) == 60
    limit = (away[0][3] + away[0][4]) / 2
    assert found(url, queries[0], within=limit)[0] == answers[0][:4]


def test_only_changes_are_sent_and_removals_are_mirrored(tmp_path, url):
    index = vector_index(tmp_path / "index", points(40))
    sent = []
    assert push(index, url, on_event=sent.append).sent == 40
    assert [(each.work, each.done, each.total) for each in sent] == [
        ("pushing", done, 40) for done in (0, 16, 32, 40)
    ]
    again = push(index, url)
    assert (again.sent, again.removed, again.unchanged) == (0, 0, 40)
    index.append(points(2, seed=3), [NewImage("7.jpg", digest=b"new"), NewImage("more.jpg")])
    index.store.remove(["0.jpg", "1.jpg"])
    third = push(index, url)
    assert (third.sent, third.removed, third.unchanged) == (2, 3, 37)
    (answer,) = found(url, points(2, seed=3)[:1], k=50)
    assert sorted(each.path for each in answer) == sorted(item.path for item in index.items)
    assert answer[0].path == "7.jpg"
    assert answer[0].digest == b"new".hex()
    assert answer[0].distance == pytest.approx(0, abs=1e-5)


def test_a_push_does_not_empty_a_collection(tmp_path, url):
    index = vector_index(tmp_path / "index", points(20))
    push(index, url)
    index.remove([f"{row}.jpg" for row in range(12)])
    with pytest.raises(ValueError, match=r"has 20 images.*only 8.*--remove-missing"):
        push(index, url)
    assert len(found(url, points(1), k=100)[0]) == 20
    assert push(index, url, remove_missing=True).removed == 12
    index.remove([f"{row}.jpg" for row in range(20)])
    with pytest.raises(ValueError, match=r"has no images.*has 8"):
        push(index, url, remove_missing=True)
    assert len(found(url, points(1), k=100)[0]) == 8


def test_an_image_that_moved_is_sent_again(tmp_path, url):
    index = vector_index(tmp_path / "index", points(3))
    push(index, url)
    index.store.table.execute("UPDATE items SET label = ? WHERE id = 2", [b"wren"])
    assert push(index, url).sent == 1
    assert paths(found(url, points(1), where="class=wren")) == [["1.jpg"]]


def test_filters_are_those_of_an_index(tmp_path, url):
    names = ["2024/a b.jpg", "2024/sub/c.png", "2025/a.jpg", "2025/[x].jpg", "2025/100%_é.jpg", "r\\n.jpg"]
    index = Index.create(tmp_path / "index", dimensions=12, distance="euclidean")
    labels = ["wren", None, 'it\'s "odd" %s', "wren", "robin", "wren"]
    items = [
        NewImage(f"{copy}/{name}", label)
        for copy in range(5)
        for name, label in zip(names, labels, strict=True)
    ]
    index.append(points(30), items)
    push(index, url)
    query = points(1, seed=5)
    for where in (
        ["class=wren"],
        ['class=it\'s "odd" %s'],
        ["path=none/*"],
        ["path=*2024/*"],
        ["path=?/2025/[[]x].jpg"],
        ["path=*%_é*", "class=robin"],
        ["path=*[!g]"],
        ["path=3/*"],
        ["path=*\\n.jpg"],
    ):
        ids, _ = index.nearest(query, 4, where=where)
        assert [each.id for each in found(url, query, 4, where=where)[0]] == ids[0].tolist(), where
    with pytest.raises(ValueError, match="size=1"):
        found(url, query, where="size=1")


def test_names_that_are_not_text_are_kept_apart(tmp_path, url):
    index = Index.create(tmp_path / "index", dimensions=12, distance="euclidean")
    odd = [os.fsdecode(name) for name in (b"\xff\n'.jpg", b"\xfe\n'.jpg", b'"; DROP TABLE photos; --.jpg')]
    index.append(points(3), [NewImage(name, name) for name in odd])
    assert push(index, url).sent == 3
    assert push(index, url).sent == 0
    assert paths(found(url, points(3), k=1)) == [["\\xff\n'.jpg"], ["\\xfe\n'.jpg"], [odd[2]]]
    assert paths(found(url, points(1), where=f"class={odd[0]}")) == [["\\xff\n'.jpg"]]


def test_a_collection_of_something_else_is_refused(tmp_path, url):
    with pytest.raises(ValueError, match="index push"):
        open_remote(url)
    push(vector_index(tmp_path / "index", points(3)), url)
    other = Index.create(tmp_path / "other", dimensions=12, distance="euclidean", root=tmp_path)
    with pytest.raises(ValueError, match=str(tmp_path)):
        push(other, url)
    for number, changes in enumerate(({"distance": "cosine"}, {"model": tiny_model(12)})):
        settings = {"dimensions": 12, "distance": "euclidean"} | changes
        with pytest.raises(ValueError, match="another model"):
            push(Index.create(tmp_path / f"changed-{number}", **settings), url)
    with pytest.raises(ValueError, match="12 dimensions"):
        found(url, points(1)[:, :5])
    with pytest.raises(ValueError, match="k is 0"):
        found(url, points(1), k=0)
    assert len(found(url, points(1))[0]) == 3


@pytest.mark.parametrize(
    ("address", "cause"),
    [
        ("mysql://host/photos", "mysql"),
        ("qdrant://127.0.0.1:1/photos", "127.0.0.1"),
        ("qdrant://127.0.0.1:1", "collection"),
        ("postgresql://user:secret@127.0.0.1:1/photos", "127.0.0.1"),
        ("postgresql://127.0.0.1:1/photos?table=a;b", "a;b"),
    ],
)
def test_an_address_that_leads_nowhere_is_told_without_its_password(address, cause):
    with pytest.raises((ValueError, OSError), match=cause) as told:
        open_remote(address)
    assert "secret" not in str(told.value)


def test_the_table_has_an_hnsw_index_of_the_distance(tmp_path, new_table):
    import psycopg

    narrow, wide = new_table(), new_table()
    push(vector_index(tmp_path / "index", points(5), distance="cosine"), narrow)
    index = Index.create(tmp_path / "wide", dimensions=2001, distance="euclidean")
    index.append(np.ones((1, 2001)), [NewImage("1.jpg")])
    push(index, wide)  # too wide for an index of pgvector, and found nevertheless
    assert len(found(wide, np.ones(2001))[0]) == 1
    server, _, table = narrow.rpartition("table=")
    with closing(psycopg.connect(server.rstrip("?&"))) as connection:
        query = "SELECT indexdef FROM pg_indexes WHERE tablename = %s"
        kinds = [str(kind) for (kind,) in connection.execute(query, [table])]
        assert sum("USING hnsw (embedding vector_cosine_ops)" in kind for kind in kinds) == 1
        _globs_match_as_in_python(connection)


def _globs_match_as_in_python(connection):
    generator = np.random.default_rng(0)
    letters = np.array(list("abc-[]!*?^\\.\n"))
    pairs = [
        ("".join(generator.choice(letters, 6)), "".join(generator.choice(letters, generator.integers(1, 7))))
        for _ in range(1000)
    ]
    pairs += [(name, f"[{glob}]*") for name, glob in pairs] + [(name, f"*[!{glob}]*") for name, glob in pairs]
    pairs += [("!", "[!]*"), ("[!]", "[!]*"), ("]", "[]]"), ("a", "[!]]"), ("b", "[a-]"), ("-", "[a-]")]
    query = "SELECT name ~ pattern FROM unnest(%s::text[], %s::text[]) AS each (name, pattern)"
    names, globs = zip(*pairs, strict=True)
    answers = connection.execute(query, [list(names), [pattern_of(glob) for glob in globs]]).fetchall()
    expected = [fnmatchcase(*pair) for pair in pairs]
    assert 0.05 < np.mean(expected) < 0.95
    assert [pair for pair, (got,), want in zip(pairs, answers, expected, strict=True) if got != want] == []


def kill(folder, times):
    words = [sys.executable, Path(__file__).parents[1] / "support" / "kill_push.py", folder, str(times)]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == [str(times)] * 2, done.stdout + done.stderr


def test_a_push_survives_a_kill(tmp_path):
    kill(tmp_path, 1)


@pytest.mark.slow
def test_a_push_survives_many_kills(tmp_path):
    kill(tmp_path, 10)
