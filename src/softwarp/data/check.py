"""Which images of a table cannot be decoded: found in one pass before a training that would stop at them."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from softwarp.data.decode import read_image
from softwarp.data.tables import Table

BLOCK = 1024  # images handed out at a time, so that an interrupt need not wait for the rest


@dataclass(frozen=True)
class Broken:
    """An image that cannot be used, its path as the table has it, and why."""

    path: str
    reason: str


def check_images(
    table: Table, *, workers: int | None = None, advance: Callable[[], None] | None = None
) -> list[Broken]:
    """Return the images that cannot be decoded whole, in the table's order.

    Args:
        workers: threads, one for each core unless told; Pillow decodes side by side in threads.
        advance: called after each image.
    """

    def check(path: str) -> Broken | None:
        try:
            read_image(table.root / path)
        except (ValueError, OSError) as error:
            return Broken(path, str(error))
        return None

    broken = []
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        for start in range(0, len(table.paths), BLOCK):
            for found in pool.map(check, table.paths[start : start + BLOCK]):
                if found is not None:
                    broken.append(found)
                if advance is not None:
                    advance()
    return broken
