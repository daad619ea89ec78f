"""Embeddings as OpenAI's clients ask for them: the vectors that the index holds, and refusals they read."""

import base64
import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient
from support.pictures import noise
from support.tiny_index import tiny_model, vector_index

from softwarp.index.index import Index
from softwarp.serve.app import create_app
from softwarp.serve.limits import Limits

HOME = "http://127.0.0.1"
TOKEN = "a-token-of-the-tests"


@pytest.fixture(scope="module")
def client(index):
    with TestClient(create_app(index), base_url=HOME) as client:
        yield client


def ask(client, **settings):
    return client.post("/v1/embeddings", json=settings)


def vectors(answer):
    return np.array([each["embedding"] for each in answer.json()["data"]], np.float32)


def text(content):
    return base64.b64encode(content).decode()


def png(image):
    content = io.BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


def message(refused, status):
    assert refused.status_code == status, refused.text
    (error,) = refused.json().values()
    assert set(error) == {"message", "type", "param", "code"}
    return error["message"]


def test_an_embedding_is_that_of_the_index(client, index):
    files = [index.file(item).read_bytes() for item in index.items[:20]]  # more than a batch
    lines = base64.encodebytes(files[1]).decode()  # 76 letters a line
    given = [f"data:image/png;base64,{text(files[0])}", lines, *map(text, files[2:])]
    answer = ask(client, model="tiny", input=given).json()
    assert [each["index"] for each in answer["data"]] == list(range(20))
    assert {each["object"] for each in answer["data"]} == {"embedding"}
    assert (answer["object"], answer["model"]) == ("list", "tiny")
    assert answer["usage"] == {"prompt_tokens": 0, "total_tokens": 0}
    found = np.array([each["embedding"] for each in answer["data"]])
    np.testing.assert_allclose(found, index.vectors[:20], atol=1e-4)
    one = ask(client, input=given[0], encoding_format="base64", dimensions=16, user="me").json()["data"]
    floats = np.frombuffer(base64.b64decode(one[0]["embedding"]), "<f4")
    np.testing.assert_allclose(floats, index.vectors[0], atol=1e-4)


def test_embeddings_have_length_one_where_cosine_counts(tmp_path):
    model = replace(tiny_model(4), distance="cosine")
    served = Index.create(tmp_path, dimensions=4, distance="cosine", model=model)
    with TestClient(create_app(served), base_url=HOME) as client:
        found = vectors(ask(client, input=text(png(noise(32, 32)))))
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)


def test_the_model_has_a_name_and_no_other_is_there(client):
    (model,) = client.get("/v1/models").json()["data"]
    assert (model["id"], model["object"]) == ("tiny", "model")
    assert client.get("/v1/models/tiny").json() == model
    assert "'tiny'" in message(client.get("/v1/models/clip/large"), 404)
    assert "'tiny'" in message(ask(client, model="clip", input="x"), 404)


@pytest.mark.parametrize(
    ("given", "status", "cause"),
    [
        ({}, 400, "input: Field required"),
        ({"input": []}, 400, "1 to 64"),
        ({"input": ["x"] * 65}, 400, "1 to 64"),
        ({"input": [[1, 2]]}, 400, "input"),
        ({"input": "https://example.org/a.png"}, 400, "input 0: give the image file in base64"),
        ({"input": "data:image/png,abc"}, 400, "input 0: give the image file in base64"),
        ({"input": "café"}, 400, "input 0: give the image file in base64"),
        ({"input": ""}, 415, "input 0: not an image"),
        ({"input": [text(png(noise(8, 8))), text(b"no image")]}, 415, "input 1: not an image"),
        ({"input": text(png(noise(64, 64))[:2000])}, 400, "input 0: the image cannot be read"),
        ({"input": text(png(Image.new("1", (8000, 8000))))}, 413, "50,000,000"),
        ({"input": "x", "dimensions": 8}, 400, "16"),
        ({"input": "x", "encoding_format": "int8"}, 400, "encoding_format"),
        ({"input": "x", "dimension": 16}, 400, "dimension"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_embedded_is_refused(client, given, status, cause):
    assert cause in message(ask(client, **given), status)


def test_every_refusal_below_v1_is_openai_s(index, tmp_path):
    home = {"base_url": HOME}
    with TestClient(create_app(index, token=TOKEN), **home) as client:
        refused = ask(client, input="x")
        assert "token" in message(refused, 401)
        assert refused.json()["error"]["code"] == "invalid_api_key"
        client.headers["authorization"] = f"Bearer {TOKEN}"  # as clients send their key
        assert client.get("/v1/models").status_code == 200
        assert "Not Found" in message(client.get("/v1/chat"), 404)
        broken = client.post("/v1/embeddings", content="{", headers={"content-type": "application/json"})
        message(broken, 400)
        assert client.get("/api/nothing").json() == {"detail": "Not Found"}
    with TestClient(create_app(index, limits=Limits(upload_bytes=1000)), **home) as client:
        assert "1,000" in message(ask(client, input="x" * 2000), 413)
    with TestClient(create_app(index, limits=Limits(requests=0)), **home) as client:
        refused = client.get("/v1/models")
        message(refused, 503)
        assert refused.json()["error"]["type"] == "server_error"
        assert refused.headers["retry-after"]
    plain = vector_index(tmp_path / "index", np.eye(4, dtype=np.float32))
    with TestClient(create_app(plain), **home) as client:
        assert "no model" in message(ask(client, input="x"), 400)
        assert client.get("/v1/models").json()["data"] == []
        assert "no model" in message(client.get("/v1/models/tiny"), 404)
