"""Labels that visitors correct, from the page to the index."""

import csv
import json
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from starlette.testclient import TestClient
from support.tiny_index import vector_index
from typer.testing import CliRunner

from softwarp.cli import app
from softwarp.index.index import Index
from softwarp.serve.app import create_app
from softwarp.serve.map_file import version_of

HOME = "http://localhost:8000"
TOKEN = "a-token-of-the-tests"


@pytest.fixture
def folder(tmp_path):
    """Two heaps of 20; one of the second is labelled as the first."""
    vectors = np.eye(40, 41, dtype=np.float32)
    vectors[20:, 40] = 9
    labels = ["a"] * 20 + ["b"] * 20
    labels[30] = "a"
    return vector_index(tmp_path / "photos.index", vectors, labels=labels).folder


def client_of(folder, **settings):
    return TestClient(create_app(Index.open(folder), **settings), base_url=HOME)


def first_outlier(client):
    while (answer := client.get("/api/outliers").json())["state"] == "working":
        time.sleep(0.02)
    return answer["images"][0] if answer["images"] else None


def rows(folder):
    with folder.with_name("photos.index.labels.csv").open(newline="") as file:
        return list(csv.reader(file))


def test_a_label_is_corrected_applied_and_seen(folder):
    with client_of(folder) as client:
        odd = first_outlier(client)
        assert (odd["id"], odd["class"], odd["suggested"], odd["corrected"]) == (31, "a", "b", None)
        answer = client.put("/api/images/31/label", json={"class": " b "})
        assert answer.json() == {"id": 31, "path": "30.jpg", "class": "a", "corrected": "b"}
        assert rows(folder) == [["path", "label"], ["30.jpg", "b"]]
        assert first_outlier(client)["corrected"] == "b"
        waiting = client.get("/api/labels").json()
        assert waiting == {
            "count": 1,
            "file": "photos.index.labels.csv",
            "command": "softwarp index apply photos.index",
        }
        before = version_of(Index.open(folder).store)
        shown = CliRunner().invoke(app, ["index", "apply", str(folder)], catch_exceptions=False)
        assert "labels changed: 1" in shown.output
        assert client.get("/api/images/31").json()["class"] == "b"
        assert client.get("/api/labels").json()["count"] == 0
        assert all(each["id"] != 31 for each in [first_outlier(client)] if each)
        assert version_of(Index.open(folder).store) != before  # the map shows classes
        again = CliRunner().invoke(app, ["index", "apply", str(folder)], catch_exceptions=False)
        assert "labels changed: 0, right already: 1" in again.output


def test_a_correction_is_taken_back_and_may_be_a_new_class(folder):
    with client_of(folder) as client:
        for name in ("b", 'a new <class>, "quoted"', "é"):
            assert client.put("/api/images/31/label", json={"class": name}).json()["corrected"] == name
        assert rows(folder)[1:] == [["30.jpg", "é"]]
        assert client.delete("/api/images/31/label").json()["corrected"] is None
        assert client.delete("/api/images/31/label").status_code == 200
        assert rows(folder)[1:] == []
        assert first_outlier(client)["corrected"] is None


@pytest.mark.parametrize("name", ["", "  ", "x" * 201, "a\nb", "\x00", "\udcff", None, 3])
def test_what_is_no_name_is_refused(folder, name):
    with client_of(folder) as client:
        answer = client.put(
            "/api/images/31/label",
            content=json.dumps({"class": name}),  # which escapes half a surrogate
            headers={"content-type": "application/json"},
        )
        assert answer.status_code in (400, 422)
        assert not folder.with_name("photos.index.labels.csv").exists()
        assert client.put("/api/images/99/label", json={"class": "b"}).status_code == 404


def test_only_who_may_ask_corrects(folder):
    foreign = ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"})
    with client_of(folder) as client:
        for headers in foreign:
            for ask in (
                client.delete,
                lambda path, headers: client.put(path, json={"class": "b"}, headers=headers),
            ):
                assert ask("/api/images/31/label", headers=headers).status_code == 403
        assert (
            client.put("/api/images/31/label", json={"class": "b"}, headers={"host": "evil"}).status_code
            == 421
        )
    with client_of(folder, token=TOKEN) as client:
        assert client.put("/api/images/31/label", json={"class": "b"}).status_code == 401
        assert client.delete("/api/images/31/label").status_code == 401
        assert not folder.with_name("photos.index.labels.csv").exists()
        right = {"authorization": f"Bearer {TOKEN}"}
        assert client.put("/api/images/31/label", json={"class": "b"}, headers=right).status_code == 200


def test_many_visitors_at_once_lose_nothing(folder):
    with client_of(folder) as client, client_of(folder) as other, ThreadPoolExecutor(8) as pool:

        def correct(number):
            return (
                (client, other)[number % 2]
                .put(f"/api/images/{number}/label", json={"class": "c"})
                .status_code
            )

        assert set(pool.map(correct, range(1, 41))) == {200}
    assert len(rows(folder)) == 41


def test_a_list_that_cannot_be_read_or_written_is_told(folder, monkeypatch):
    with client_of(folder) as client:
        folder.with_name("photos.index.labels.csv").write_text("nonsense\n")
        first_outlier_status = client.get("/api/outliers").status_code
        assert first_outlier_status == 409
        refused = client.put("/api/images/31/label", json={"class": "b"})
        assert refused.status_code == 409
        assert "path,label" in refused.json()["detail"]
        assert str(folder.parent) not in refused.json()["detail"]
        assert folder.with_name("photos.index.labels.csv").read_text() == "nonsense\n"
        folder.with_name("photos.index.labels.csv").unlink()

        def full(*inputs):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        refused = client.put("/api/images/31/label", json={"class": "b"})
        assert (refused.status_code, "No space" in refused.text) == (507, True)


def test_apply_names_what_is_unknown(folder, tmp_path, monkeypatch, capsys):
    (tmp_path / "l.csv").write_text("path,label\n1.jpg,z\n" + "".join(f"gone {n},z\n" for n in range(12)))
    shown = CliRunner().invoke(app, ["index", "apply", str(folder), str(tmp_path / "l.csv")])
    assert "labels changed: 1" in shown.output
    assert "not in the index: 12" in shown.output
    assert shown.stderr.count("not in the index: gone") == 10
    assert "2 more" in shown.stderr
    for name, cause in (("gone.csv", "gone.csv does not exist"), ("none.csv", "none of the 1")):
        (tmp_path / "none.csv").write_text("path,label\nx,z\n")
        done = CliRunner().invoke(app, ["index", "apply", str(folder), str(tmp_path / name)])
        assert cause in str(done.exception)
