"""The map and the lists as the API serves them: made once, with progress, and again after changes."""

import threading
import time

import numpy as np
import pytest
from starlette.testclient import TestClient
from support.tiny_index import glyph_index, vector_index

from softwarp.events import Progress
from softwarp.index.index import Index
from softwarp.index.store import IndexStore
from softwarp.serve.app import create_app
from softwarp.serve.live import BackgroundWork
from softwarp.serve.map_file import POINT


def client_of(index):
    return TestClient(create_app(index), base_url="http://localhost")


def finished(client, path):
    """The answer once the work behind it is done."""
    while (answer := client.get(path).json())["state"] == "working":
        time.sleep(0.02)
    assert answer["state"] == "ready", answer["what"]
    return answer


@pytest.fixture(scope="module")
def mapped(tmp_path_factory):
    return glyph_index(tmp_path_factory.mktemp("mapped"), classes=3)


def test_a_map_is_made_and_kept(mapped):
    with client_of(mapped) as client:
        assert client.get("/api/map/points").status_code == 404  # not yet
        about = finished(client, "/api/map")
        assert (about["images"], about["of"], about["method"]) == (12, 12, "pca")
        points = np.frombuffer(client.get("/api/map/points").content, POINT)
        assert sorted(points["id"].tolist()) == mapped.ids.tolist()
        assert client.get("/api/map/atlases/0").headers["content-type"] == "image/jpeg"
        assert client.get("/api/map/atlases/1").status_code == 404
    before = (mapped.folder / "map.sqlite").stat().st_mtime_ns
    with client_of(Index.open(mapped.folder)) as client:
        assert finished(client, "/api/map")["version"] == about["version"]
    assert (mapped.folder / "map.sqlite").stat().st_mtime_ns == before


def test_duplicates_and_outliers_are_listed(tmp_path):
    vectors = np.eye(40, 41, dtype=np.float32)  # as far from each other
    vectors[20:, 40] = 9  # and in two heaps
    vectors[1] = vectors[0] + 0.001
    labels = ["a"] * 20 + ["b"] * 20
    labels[30] = "a"
    with client_of(vector_index(tmp_path / "index", vectors, labels=labels)) as client:
        found = finished(client, "/api/duplicates")
        assert found["count"] == len(found["groups"]) == 1
        assert [each["id"] for each in found["groups"][0]["images"]] == [1, 2]
        assert found["groups"][0]["images"][1]["distance"] == pytest.approx(0.001 * 41**0.5, rel=1e-3)
        assert client.get("/api/duplicates?start=1000").json()["groups"] == []
        odd = finished(client, "/api/outliers")["images"][0]
        assert (odd["id"], odd["class"], odd["suggested"]) == (31, "a", "b")


def test_lists_are_made_again_when_the_index_has_changed(tmp_path):
    index = vector_index(tmp_path / "index", np.zeros((3, 2), np.float32))
    with client_of(index) as client:
        (group,) = finished(client, "/api/duplicates")["groups"]
        assert len(group["images"]) == 3
        Index.open(index.folder).store.remove(["0.jpg"])
        (group,) = finished(client, "/api/duplicates")["groups"]
        assert [each["id"] for each in group["images"]] == [2, 3]


def test_work_that_ends_while_it_is_answered_about_is_not_ready_yet(tmp_path, monkeypatch):
    """Else the page would stop asking, and show that nothing was found."""
    index = vector_index(tmp_path / "index", np.zeros((3, 2), np.float32))
    found, worker, gate = index.duplicates(), [], threading.Event()

    def slow(index, **keywords):
        worker.append(threading.current_thread())
        gate.wait()
        return found

    def find(store, ids):
        gate.set()
        worker[0].join()
        return whole(store, ids)

    whole = IndexStore.find
    monkeypatch.setattr(Index, "duplicates", slow)
    with client_of(index) as client:
        monkeypatch.setattr(IndexStore, "find", find)
        first = client.get("/api/duplicates").json()
        assert (first["state"], first["groups"]) == ("working", [])
        assert client.get("/api/duplicates").json()["count"] == 1


def test_work_that_fails_says_why(tmp_path):
    index = vector_index(tmp_path / "index", np.eye(3, dtype=np.float32))  # without classes
    with client_of(index) as client:
        while (answer := client.get("/api/outliers").json())["state"] == "working":
            time.sleep(0.02)
        assert answer["state"] == "failed"
        assert "classes" in answer["what"]


def test_a_job_shows_its_progress():
    job = BackgroundWork(lambda on_event: on_event(Progress("counting", 3, 4)) or "done")
    job.wait()
    assert job.result == "done"
    assert job.status() == {"state": "ready", "what": "counting", "done": 3, "total": 4}
