"""The JSON API on a small index: answers, refusals, who may ask."""

import io
import os
import struct
import sys
import zlib

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient
from support.pictures import noise
from support.tiny_index import brute_force, glyph_index, vector_index

from softwarp.data.decode import FORMAT_OF, reads_heic
from softwarp.index.images import NewImage
from softwarp.index.index import Index
from softwarp.serve.app import create_app
from softwarp.serve.limits import Limits

HOME = "http://127.0.0.1"
TOKEN = "a-token-of-the-tests"


@pytest.fixture(scope="module")
def client(index):
    with TestClient(create_app(index), base_url=HOME) as client:
        yield client


def encoded(image, kind="PNG", **settings):
    content = io.BytesIO()
    image.save(content, kind, **settings)
    return content.getvalue()


def upload(client, content, name="query.png", **query):
    return client.post("/api/search", files={"image": (name, content)}, params=query)


def png_of_size(width, height):
    """A whole PNG of zeros that says how large it is; a megabyte becomes a gigabyte of pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes((1 + (width + 7) // 8) * height))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_every_field_and_parameter_is_described(client):
    described = client.get("/openapi.json").json()
    schemas = described["components"]["schemas"].items()
    fields = [(name, *each) for name, schema in schemas for each in schema["properties"].items()]
    operations = [(path, each) for path, methods in described["paths"].items() for each in methods.values()]
    parameters = [(path, one["name"], one) for path, each in operations for one in each.get("parameters", [])]
    assert len(fields) > 30
    assert [where for *where, each in fields + parameters if not each.get("description")] == []
    for path, each in operations:
        json = each["responses"]["200"]["content"].get("application/json")
        assert json is None or "$ref" in json["schema"], path


def test_an_upload_finds_what_brute_force_finds(client, index):
    query = index.root / "U+0042" / "DejaVuSans.png"
    answer = upload(client, query.read_bytes(), k=5).json()
    truth = brute_force(index.model().embed(query).numpy(), np.asarray(index.vectors), "euclidean")[0]
    order = np.argsort(truth)[:5]
    assert [each["id"] for each in answer["results"]] == index.ids[order].tolist()
    assert [each["distance"] for each in answer["results"]] == pytest.approx(truth[order], abs=1e-4)
    assert answer["results"][0]["path"] == "U+0042/DejaVuSans.png"
    assert answer["results"][0]["class"] == "U+0042"
    assert [each["same_file"] for each in answer["results"]] == [True, False, False, False, False]
    assert sum(each["count"] for each in answer["votes"]) == 4  # it does not vote for itself
    assert answer["votes"] == sorted(answer["votes"], key=lambda each: (-each["count"], each["nearest"]))


def test_the_same_image_in_other_forms_finds_itself(client, index):
    glyph = Image.open(index.root / "U+0043" / "DejaVuSans.png")
    turned = glyph.transpose(Image.Transpose.ROTATE_90)
    exif = turned.getexif()
    exif[0x0112] = 6  # to be turned by 270 degrees
    scene = noise(90, 60)
    scene.paste(glyph.convert("RGB"), (50, 20))
    files = {"image": ("scene.png", encoded(scene))}
    cut = client.post("/api/search", files=files, data={"box": "50,20,32,32"}, params={"k": 1}).json()
    for answer in (upload(client, encoded(turned, exif=exif), k=1).json(), cut):
        (found,) = answer["results"]
        assert found["path"] == "U+0043/DejaVuSans.png"
        assert found["distance"] < 1e-3


def test_neighbours_leave_the_image_itself_out(client, index):
    answer = client.get("/api/images/8/neighbours", params={"k": 4}).json()
    truth = brute_force(np.asarray(index.vectors[7:8]), np.asarray(index.vectors), "euclidean")[0]
    assert [each["id"] for each in answer["results"]] == index.ids[np.argsort(truth)[1:5]].tolist()
    every = client.get("/api/images/8/neighbours", params={"k": 100}).json()["results"]
    assert len(every) == len(index) - 1


def test_a_copy_is_told_and_has_no_vote(tmp_path):
    served = vector_index(tmp_path / "index", np.eye(2, dtype=np.float32), labels=["a", "b"])
    served.append(np.eye(2, dtype=np.float32), [NewImage(f"copy {each}", "a", b"same") for each in range(2)])
    with TestClient(create_app(served), base_url=HOME) as client:
        answer = client.get("/api/images/3/neighbours").json()
    told = {each["path"]: each["same_file"] for each in answer["results"]}
    assert told == {"0.jpg": False, "1.jpg": False, "copy 1": True}
    assert {each["class"]: each["count"] for each in answer["votes"]} == {"a": 1, "b": 1}


def test_filters_hold_for_searching_and_listing(client):
    only = {"class": "U+0043", "path": "*Bold*"}
    found = client.get("/api/images/8/neighbours", params=only).json()["results"]
    assert {each["path"] for each in found} == {
        "U+0043/DejaVuSans-Bold.png",
        "U+0043/DejaVuSans-BoldOblique.png",
    }
    listed = client.get("/api/images", params=only | {"count": 1}).json()
    assert listed["total"] == 2
    assert len(listed["images"]) == 1
    assert set(client.get("/api/ids", params=only).json()["ids"]) == {each["id"] for each in found}
    refused = client.get("/api/ids", params={"class": "dodo"})
    assert refused.status_code == 404
    assert "dodo" in refused.json()["detail"]


def test_nothing_is_found_beyond_a_distance(client, index):
    query = (index.root / "U+0042" / "DejaVuSans.png").read_bytes()
    for ask in (
        lambda **only: upload(client, query, **only),
        lambda **only: client.get("/api/images/8/neighbours", params=only),
    ):
        whole = ask(k=10).json()
        assert whole["nearest"] == whole["results"][0]["distance"]
        near = ask(k=10, within=whole["results"][4]["distance"]).json()
        assert near["results"] == whole["results"][:5]
        assert sum(each["count"] for each in near["votes"]) <= 5
        only = {"class": "U+0043"}
        filtered = ask(**only).json()
        nothing = ask(within=1e-9, **only).json()
        assert (nothing["results"], nothing["votes"]) == ([], [])
        assert nothing["nearest"] == filtered["results"][0]["distance"]
        assert ask(path="none").json()["nearest"] is None
        assert {ask(within=wrong).status_code for wrong in (-1, "nan", "inf", "far")} == {422}


@pytest.mark.parametrize("path", ["/api/images", "/api/ids", "/api/images/0/neighbours"])
def test_a_misspelt_filter_is_refused(client, path):
    answer = client.get(path, params={"clas": "U+0041"})
    assert answer.status_code == 422
    assert "'clas'" in answer.json()["detail"]


def test_a_sample_is_spread_over_the_collection(client):
    listed = client.get("/api/images", params={"count": 6}).json()
    assert [each["class"] for each in listed["images"]] == [f"U+004{digit}" for digit in "123456"]


def test_pictures_and_the_list_of_a_selection(client, index):
    thumbnail = client.get("/api/images/8/thumbnail")
    assert thumbnail.content == index.thumbnail(8)
    assert thumbnail.headers["content-type"] == "image/jpeg"
    large = Image.open(io.BytesIO(client.get("/api/images/8/picture").content))
    assert large.size == (32, 32)
    rows = client.post("/api/csv", json={"ids": [9, 8, 9]}).text.splitlines()
    assert rows == [
        "id,path,class",
        "9,U+0043/DejaVuSans-Bold.png,U+0043",
        "8,U+0042/DejaVuSans.png,U+0042",
    ]


@pytest.mark.parametrize(
    ("content", "status", "cause"),
    [
        (b"", 415, "JPEG"),
        (b"no image at all", 415, "JPEG"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", 415, "JPEG"),
        (encoded(noise(64, 64))[:2000], 400, "cannot be read"),
        (encoded(noise(64, 64), "JPEG")[:-900], 400, "truncated"),
        (encoded(noise(64, 64), "TGA"), 415, "JPEG"),
        (png_of_size(8000, 8000), 413, "50,000,000"),  # more than we allow, less than Pillow does
        (png_of_size(30_000, 30_000), 413, "50,000,000"),  # more than Pillow allows
    ],
    ids=["empty", "text", "svg", "cut png", "cut jpeg", "tga", "bomb", "large bomb"],
)
def test_what_is_no_image_is_refused(client, content, status, cause):
    refused = upload(client, content)
    assert refused.status_code == status
    assert cause in refused.json()["detail"]


@pytest.mark.parametrize("kind", sorted(set(FORMAT_OF.values())))
def test_every_kind_of_image_that_an_index_takes_is_taken(client, kind):
    assert reads_heic()
    answer = upload(client, encoded(noise(64, 64), kind))
    assert answer.status_code == 200, answer.text


def test_heic_without_its_package_is_refused_with_what_installs_it(client, monkeypatch):
    monkeypatch.setattr("softwarp.serve.uploads.reads_heic", lambda: False)
    refused = upload(client, b"\0\0\0\x18ftypheic" + bytes(40))
    assert refused.status_code == 415
    assert "softwarp[heic]" in refused.json()["detail"]


def test_a_bomb_is_never_decoded(client, monkeypatch):
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda image: pytest.fail("decoded"))
    assert upload(client, png_of_size(8000, 8000)).status_code == 413


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "a/b.png", "..\\x.png", "..", "a\x1b[2J.png", "n" * 300]
)
def test_hostile_names_are_refused(client, name):
    refused = upload(client, encoded(noise(32, 32)), name=name)
    assert refused.status_code == 400
    assert "name" in refused.json()["detail"]


def test_names_that_people_have_are_taken(client):
    for name in ("Bild\u202f1.png", "写真.jpg", "a b (1).png", "…"):
        assert upload(client, encoded(noise(32, 32)), name=name).status_code == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/images/..%2f..%2fetc%2fpasswd/thumbnail", 404),
        ("/..%2f..%2fetc%2fpasswd", 404),
        ("/page/index.html", 404),
        ("/api/images/99999999999999999999/thumbnail", 422),
        ("/api/images/-1", 422),
        ("/api/images/12345", 404),
        ("/api/images/12345/neighbours", 404),
        ("/api/images/12345/picture", 404),
        ("/api/images/8/neighbours?k=0", 422),
        ("/api/images/8/neighbours?k=1000000", 422),
        ("/api/images/8/neighbours?path=" + "*" * 5000, 422),
    ],
)
def test_what_is_not_there_is_refused(client, path, status):
    assert client.get(path).status_code == status


def test_refusals_do_not_repeat_what_json_cannot_hold(client):
    headers = {"content-type": "application/json"}
    for content in ('{"ids": ["\\ud800"]}', '{"ids": [1e999]}', '{"ids": [NaN]}', '{"ids": 5}', "[", "{}"):
        assert client.post("/api/csv", content=content, headers=headers).status_code == 422
    assert client.post("/api/csv", json={"ids": [2**70]}).status_code == 422


def test_large_requests_are_refused_before_they_are_read(index):
    app = create_app(index, limits=Limits(upload_bytes=10_000))
    with TestClient(app, base_url=HOME) as client:
        sent = []

        def endless():
            for _ in range(1000):
                sent.append(1)
                yield bytes(1000)

        announced = upload(client, bytes(20_000))
        assert announced.status_code == 413
        assert "10,000" in announced.json()["detail"]
        kind = {"content-type": "multipart/form-data; boundary=x"}
        assert client.post("/api/search", content=endless(), headers=kind).status_code == 413


def test_headers_keep_pages_apart(client):
    for path in ("/", "/api/index", "/api/images/8/thumbnail", "/nothing"):
        headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert "unsafe" not in headers["content-security-policy"]
        assert "default-src 'none'" in headers["content-security-policy"]


def test_other_hosts_and_other_sites_are_refused(client):
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", ""):
        assert client.get("/api/index", headers={"host": host}).status_code == 421
    for host in ("localhost:8000", "127.0.0.1", "[::1]:8000"):
        assert client.get("/api/index", headers={"host": host}).status_code == 200
    for headers in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}, {"origin": "null"}):
        assert client.get("/api/index", headers=headers).status_code == 403
    assert client.get("/api/index", headers={"origin": HOME}).status_code == 200


def test_the_token_is_needed_everywhere(index):
    app = create_app(index, token=TOKEN)
    with TestClient(app, base_url="http://photos.example", follow_redirects=False) as client:
        for path in ("/", "/page.js", "/api/index", "/openapi.json", "/api/images/8/thumbnail"):
            assert client.get(path).status_code == 401
            assert client.get(path, headers={"authorization": f"Bearer {TOKEN}x"}).status_code == 401
            assert client.get(path, headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
        assert client.get("/?token=wrong").status_code == 401
        assert client.get(f"/api/index?token={TOKEN}").status_code == 401  # only the page takes it from there
        welcome = client.get(f"/?token={TOKEN}")
        assert welcome.headers["location"] == "/"
        cookie = welcome.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert client.get("/api/index").status_code == 200  # by the cookie


@pytest.mark.parametrize(
    "others",
    [
        "",
        "theme=dark",
        'prefs={"a": 1, "b": [2]}',
        "a[b]=1",
        "caf\xe9=1",
        "path=/x; lonely",
        'broken="never closed',
        "=nameless",
        "softwarp_token=of-another-port-of-this-host",
        "expires=Wed, 21 Oct 2026 07:28:00 GMT; max-age=3",
    ],
)
def test_the_cookie_is_found_beside_any_other(index, others):
    """A browser sends the cookies of all ports of a host, in forms that no standard knows."""
    own = f"softwarp_token={TOKEN}"
    with TestClient(create_app(index, token=TOKEN), base_url="http://photos.example") as client:
        for sent in (f"{others}; {own}", f"{own}; {others}", f'{others};softwarp_token="{TOKEN}"'):
            headers = {"cookie": sent.encode("latin-1")}
            assert client.get("/api/index", headers=headers).status_code == 200, sent
        wrong = {"cookie": f"{others}; {own}x; x{own}".encode("latin-1")}
        assert client.get("/api/index", headers=wrong).status_code == 401


def test_healthz_needs_no_token_and_says_how_many_images_there_are(index):
    with TestClient(create_app(index, token=TOKEN), base_url="http://photos.example") as client:
        answer = client.get("/healthz")
        assert (answer.status_code, answer.json()) == (200, {"status": "ok", "images": len(index)})
        assert answer.headers["cache-control"] == "no-store"
        assert client.get("/healthz/").status_code == 401
        assert client.get("/healthz", headers={"origin": "https://evil.example"}).status_code == 403
    with TestClient(create_app(index), base_url=HOME) as client:
        assert client.get("/healthz").status_code == 200
        assert client.get("/healthz", headers={"host": "evil.example"}).status_code == 421


def test_too_many_requests_are_asked_to_come_back(index):
    with TestClient(create_app(index, limits=Limits(requests=0)), base_url=HOME) as client:
        refused = client.get("/api/index")
        assert refused.status_code == 503
        assert refused.headers["retry-after"]


def test_an_index_without_a_model_can_be_walked_through(tmp_path):
    served = vector_index(tmp_path / "index", np.eye(4, dtype=np.float32), labels=["a", "a", "b", "b"])
    with TestClient(create_app(served), base_url=HOME) as client:
        assert client.get("/api/index").json()["uploads"] is False
        assert upload(client, encoded(noise(32, 32))).status_code == 400
        assert len(client.get("/api/images/1/neighbours").json()["results"]) == 3
        assert client.get("/api/images/1/thumbnail").status_code == 404
        assert client.get("/api/images/1/picture").status_code == 404


@pytest.mark.skipif(sys.platform != "linux", reason="pipes")
def test_a_picture_that_became_a_pipe_keeps_nobody_waiting(tmp_path):
    served = glyph_index(tmp_path, classes=1, styles=2)
    path = served.file(served.items[0])
    path.unlink()
    os.mkfifo(path)
    with TestClient(create_app(served), base_url=HOME) as client:
        assert client.get("/api/images/1/picture").status_code == 404
        assert client.get("/api/images/2/picture").status_code == 200


def test_names_that_are_not_unicode_are_shown_and_found(tmp_path):
    odd = os.fsdecode(b"caf\xe9")
    vectors = np.eye(3, dtype=np.float32)
    served = vector_index(tmp_path / "index", vectors, labels=[odd, "<b>", None])
    with TestClient(create_app(served), base_url=HOME) as client:
        names = [each["name"] for each in client.get("/api/index").json()["classes"]]
        assert names == ["<b>", "caf\\udce9"]
        assert client.get("/api/ids", params={"class": names[1]}).json()["ids"] == [1]
        assert client.post("/api/csv", json={"ids": [1]}).content.endswith(b",caf\xe9\n")


def test_changes_by_another_process_are_seen(tmp_path):
    served = glyph_index(tmp_path, classes=2)
    with TestClient(create_app(served), base_url=HOME) as client:
        assert client.get("/api/index").json()["images"] == 8
        other = Index.open(served.folder)
        other.remove([other.root / "U+0041"])
        assert client.get("/api/index").json()["images"] == 4
        assert client.get("/api/images/1/neighbours").status_code == 404
        query = (served.root / "U+0041" / "DejaVuSans.png").read_bytes()
        found = upload(client, query).json()["results"]
        assert {each["class"] for each in found} == {"U+0042"}
