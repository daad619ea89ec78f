"""Single images, embedded in the batches that happen to be waiting."""

import asyncio
from collections.abc import Callable
from typing import Any

import anyio
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Vector = NDArray[np.float32]


class Batches:
    """A model that is called by one thread at a time, with all images that have come in meanwhile."""

    def __init__(self, embed: Callable[[Tensor], Any], largest: int) -> None:
        self._embed, self._largest = embed, largest
        self._waiting: list[tuple[Tensor, asyncio.Future[Vector]]] = []
        self._worker: asyncio.Task[None] | None = None

    async def embed(self, pixels: Tensor) -> Vector:
        """Return the vector [D] of one image."""
        future: asyncio.Future[Vector] = asyncio.get_running_loop().create_future()
        self._waiting.append((pixels, future))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await future

    async def _work(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[: self._largest], self._waiting[self._largest :]
            try:
                vectors = await anyio.to_thread.run_sync(self._call, [pixels for pixels, _ in batch])
            except Exception as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
            else:
                for (_, future), vector in zip(batch, vectors, strict=True):
                    if not future.done():
                        future.set_result(vector)

    def _call(self, pixels: list[Tensor]) -> NDArray[np.float32]:
        return np.asarray(self._embed(torch.stack(pixels)), np.float32)
