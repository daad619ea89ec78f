"""What a visitor may ask for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds on what one request may cost, and on how many are served at once."""

    upload_bytes: int = 20 * 2**20  # the size of a whole request
    pixels: int = 50_000_000  # the size of an image, as its header says
    seconds: float = 30.0  # how long a request may take to arrive completely
    requests: int = 256  # requests served at the same time; more are asked to come back later
    batch: int = 16  # images that the model embeds together
    results: int = 200  # images in an answer
    inputs: int = 64  # images that one request for embeddings may send
