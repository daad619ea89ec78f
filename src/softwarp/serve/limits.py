"""What a visitor may ask for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds on what one request may cost, and on how many are served at once."""

    upload_bytes: int = 20 * 2**20  # of a whole request
    pixels: int = 50_000_000  # of an image, as its header says
    seconds: float = 30.0  # until a request has arrived completely
    requests: int = 256  # at the same time; more are asked to come back later
    batch: int = 16  # images that the model embeds together
    results: int = 200  # images in an answer
