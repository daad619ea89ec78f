"""A real server: slow clients, many clients at once, batches."""

import asyncio
import http.client
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from support.tiny_server import serving

from softwarp.serve.app import create_app
from softwarp.serve.batches import Batches
from softwarp.serve.connections import Connection
from softwarp.serve.limits import Limits

BOUNDARY = "frontier"


def multipart(content):
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="image"; filename="q.png"\r\n\r\n'
    return head.encode() + content + f"\r\n--{BOUNDARY}--\r\n".encode()


def ask(port, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        headers = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"} if body else {}
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def begin_upload(port, share):
    """A connection that has sent the head of an upload and some of its body."""
    body = multipart(bytes(10_000))
    client = socket.create_connection(("127.0.0.1", port), timeout=60)
    head = (
        f"POST /api/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n"
    )
    client.sendall(head.encode() + body[: int(share * len(body))])
    return client


def test_slow_clients_do_not_hold_up_others(index):
    query = (index.root / "U+0042" / "DejaVuSans.png").read_bytes()
    with serving(create_app(index)) as port:
        slow = [begin_upload(port, 0.5) for _ in range(50)]
        status, answer = ask(port, "POST", "/api/search?k=1", multipart(query))
        assert status == 200
        assert answer["results"][0]["path"] == "U+0042/DejaVuSans.png"
        for client in slow:
            client.close()


def test_a_request_that_does_not_arrive_ends(index):
    class Impatient(Connection):
        seconds = 0.2

    with serving(create_app(index, limits=Limits(seconds=0.2)), http=Impatient) as port:
        with begin_upload(port, 0.5) as client:
            assert client.recv(100).startswith(b"HTTP/1.1 408")
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: loc")
            assert client.recv(100) == b""  # closed
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(b"GET /api/index HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 200")


def test_uvicorn_alone_waits_for_half_a_head(index):
    """Why there is `serve/connections.py`: it can go when this test fails."""
    with (
        serving(create_app(index), http="h11", timeout_keep_alive=0) as port,
        socket.create_connection(("127.0.0.1", port), timeout=0.5) as client,
    ):
        client.sendall(b"GET / HTTP/1.1\r\nHost: loc")
        with pytest.raises(TimeoutError):
            client.recv(100)


def test_a_request_that_is_half_there_does_not_hold_up_the_end(index, capfd):
    with serving(create_app(index)) as port:
        half = begin_upload(port, 0.5)
        assert ask(port, "GET", "/api/index")[0] == 200  # the half has arrived by now
    half.close()
    assert capfd.readouterr().err == ""  # nothing was waited for and then cancelled


def test_many_clients_at_once_each_get_their_own_answer(index):
    files = sorted(index.root.glob("*/*.png"))
    with serving(create_app(index)) as port, ThreadPoolExecutor(len(files)) as pool:
        asked = [
            pool.submit(ask, port, "POST", "/api/search?k=1", multipart(file.read_bytes())) for file in files
        ]
        for file, future in zip(files, asked, strict=True):
            status, answer = future.result()
            assert status == 200
            assert answer["results"][0]["path"] == f"{file.parent.name}/{file.name}"


def test_images_that_wait_are_embedded_together():
    sizes, open_gate = [], threading.Event()

    def embed(pixels):
        open_gate.wait()
        sizes.append(len(pixels))
        if (pixels == 9).any():
            raise ValueError("nine")
        return pixels.float().flatten(1) * 2

    async def all_at_once():
        batches = Batches(embed, largest=4)
        numbers = [*range(7), 9]
        asked = [asyncio.create_task(batches.embed(torch.full((1, 1, 1), number))) for number in numbers]
        await asyncio.sleep(0)
        open_gate.set()
        return await asyncio.gather(*asked, return_exceptions=True)

    found = asyncio.run(all_at_once())
    assert sizes == [4, 4]
    assert [each.item() for each in found[:4]] == [0.0, 2.0, 4.0, 6.0]
    assert all(isinstance(each, ValueError) for each in found[4:])
    assert isinstance(found[0], np.ndarray)
    with pytest.raises(ValueError, match="nine"):
        raise found[4]
