"""`softwarp serve` under load, beside the bare model.

    python benchmarks/serve.py                 # a minute; writes results/benchmark_serve.json

Fifty clients on loopback each send one photograph (500 x 375, JPEG) after the other and wait for the ten
nearest of 10,000 images. Clients, server and model share the cores, so the answers per second are beside what
the bare model embeds alone, and latency is beside that of one image: with fifty clients in line, no server
can answer the median one sooner than fifty divided by the images per second. A thumbnail is asked for after
each search. The model is efficientnet_lite0.
"""

import argparse
import asyncio
import io
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

RESULT = Path(__file__).parents[1] / "results" / "benchmark_serve.json"
CLIENTS, IMAGES, PHOTOGRAPHS = 50, 10_000, 16


def photographs() -> list[bytes]:
    """Smooth noise: the size of its JPEG is that of a photograph."""
    from PIL import Image

    generator, found = np.random.default_rng(0), []
    for _ in range(PHOTOGRAPHS):
        coarse = Image.fromarray(generator.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        content = io.BytesIO()
        coarse.resize((500, 375), Image.Resampling.BICUBIC).save(content, "JPEG", quality=90)
        found.append(content.getvalue())
    return found


def make_index(folder: Path, thumbnail: bytes) -> None:
    """Random vectors in place of embeddings: searching them costs the same."""
    from softwarp.index.images import NewImage
    from softwarp.index.index import Index
    from softwarp.inference import load

    model = load("efficientnet_lite0")
    size = model.network.embedding_size
    index = Index.create(folder, dimensions=size, distance="cosine", model=model)
    vectors = np.random.default_rng(0).standard_normal((IMAGES, size), dtype=np.float32)
    items = [NewImage(f"{row}.jpg", f"class {row % 100}", b"", thumbnail) for row in range(IMAGES)]
    index.append(vectors, items)


def bare_model(pictures: list[bytes], folder: Path) -> dict[str, float]:
    """Seconds for one image, decoded and embedded, and images per second in batches of ready tensors."""
    import torch

    from softwarp.inference import load

    model = load("efficientnet_lite0")
    files = [folder / f"{number}.jpg" for number in range(len(pictures))]
    for file, content in zip(files, pictures, strict=True):
        file.write_bytes(content)
    seconds = []
    for file in [*files, *files]:
        start = time.perf_counter()
        model.embed(file)
        seconds.append(time.perf_counter() - start)
    ready = torch.stack([model.transform(model.read(file)) for file in files])
    start = time.perf_counter()
    for _ in range(5):
        model.embed(ready)
    return {
        "one_image_milliseconds": round(1000 * statistics.median(seconds[5:]), 1),
        "images_per_second": round(5 * len(files) / (time.perf_counter() - start), 1),
    }


def start_server(index: Path) -> tuple[subprocess.Popen[str], int]:
    words = [sys.executable, "-m", "softwarp", "serve", str(index), "--port", "0"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    for line in server.stdout:
        if line.startswith("open http://127.0.0.1:"):
            return server, int(line.split(":")[2].split("/")[0])
    raise ValueError("the server did not start")


async def ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> tuple[int, float]:
    """Status and seconds of one request on an open connection."""
    start = time.perf_counter()
    writer.write(request)
    await writer.drain()
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.partition("content-length: ")[2].split("\r\n")[0])
    await reader.readexactly(length)
    return int(head.split()[1]), time.perf_counter() - start


def upload(content: bytes) -> bytes:
    body = b'--x\r\nContent-Disposition: form-data; name="image"; filename="q.jpg"\r\n\r\n' + content
    body += b"\r\n--x--\r\n"
    kind = "Content-Type: multipart/form-data; boundary=x"
    head = f"POST /api/search?k=10 HTTP/1.1\r\nHost: localhost\r\n{kind}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def client(number: int, port: int, pictures: list[bytes], end: float, answers: dict[str, Any]) -> None:
    """Search and look at a result, again and again on one connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    turn = number
    while time.perf_counter() < end:
        turn += 1
        thumbnail = (
            f"GET /api/images/{1 + turn % IMAGES}/thumbnail HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        )
        for kind, request in (
            ("search", upload(pictures[turn % len(pictures)])),
            ("thumbnail", thumbnail),
        ):
            try:
                status, seconds = await ask(reader, writer, request)
            except (OSError, ValueError, EOFError) as error:
                answers["errors"].append(f"{type(error).__name__}: {error}")
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                continue
            if status == 200:
                answers[kind].append(seconds)
            else:
                answers["errors"].append(f"{kind}: status {status}")
    writer.close()


async def load(port: int, pictures: list[bytes], seconds: float) -> dict[str, Any]:
    answers: dict[str, Any] = {"search": [], "thumbnail": [], "errors": []}
    end = time.perf_counter() + seconds
    start = time.perf_counter()
    await asyncio.gather(*(client(number, port, pictures, end, answers) for number in range(CLIENTS)))
    took = time.perf_counter() - start
    result: dict[str, Any] = {
        "clients": CLIENTS,
        "seconds": round(took, 1),
        "errors": len(answers["errors"]),
        "causes": sorted(set(answers["errors"]))[:5],
    }
    for kind in ("search", "thumbnail"):
        values = 1000 * np.array(answers[kind])
        result[kind] = {
            "answers": len(values),
            "per_second": round(len(values) / took, 1),
            **{f"p{share}_milliseconds": round(float(np.percentile(values, share)), 1) for share in (50, 99)},
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    import torch

    from softwarp.files import write_json
    from softwarp.runs.provenance import code

    pictures = photographs()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_index(folder / "index", pictures[0])
        before = bare_model(pictures, folder)
        server, port = start_server(folder / "index")
        try:
            asyncio.run(load(port, pictures, 2.0))  # warm
            served = asyncio.run(load(port, pictures, options.seconds))
        finally:
            server.terminate()
            server.wait()
        after = bare_model(pictures, folder)
    # Before and after, as a shared machine changes meanwhile.
    bare = {key: round((before[key] + after[key]) / 2, 1) for key in before}
    least = 1000 * CLIENTS / bare["images_per_second"]
    result = {
        "machine": {
            "code": code(),
            "system": f"{platform.system()} {platform.machine()}",
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        "images": IMAGES,
        "bare_model": bare,
        "served": served,
        "searches_per_second_of_bare_model": round(
            served["search"]["per_second"] / bare["images_per_second"], 3
        ),
        "p50_of_least_possible": round(served["search"]["p50_milliseconds"] / least, 3),
    }
    write_json(options.output, result)
    print(options.output.read_text())


if __name__ == "__main__":
    main()
