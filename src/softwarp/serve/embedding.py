"""Uploaded files -> vectors: decoded by a few threads, embedded in the batches that wait for the model."""

from collections.abc import Callable
from typing import TypeVar

import anyio
import numpy as np
from numpy.typing import NDArray

from softwarp.serve.batches import Batches
from softwarp.serve.limits import Limits
from softwarp.serve.live import LiveIndex
from softwarp.serve.uploads import pixels_of

WORKERS = 2  # requests that decode or scan at the same time; more would only share the cores

Made = TypeVar("Made")


class Workers:
    """A few threads for what decodes or scans."""

    def __init__(self) -> None:
        self._limiter = anyio.CapacityLimiter(WORKERS)

    async def run(self, function: Callable[[], Made]) -> Made:
        """Return what the function returns, when it is its turn."""
        return await anyio.to_thread.run_sync(function, limiter=self._limiter)


class UploadEmbedder:
    """The model of an index, for images that visitors send."""

    def __init__(self, live: LiveIndex, workers: Workers, limits: Limits) -> None:
        self._live, self._workers, self._limits = live, workers, limits
        self._batches = Batches(lambda pixels: live.now().model().embed(pixels), limits.batch)

    async def embed(self, content: bytes, box: str | None = None) -> NDArray[np.float32]:
        """Return the vector of an image file, or of a part of it; refuse what is no such image."""
        model = self._live.now().model
        pixels = await self._workers.run(lambda: pixels_of(content, model(), self._limits, box))
        return await self._batches.embed(pixels)
