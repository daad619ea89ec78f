"""What training will do with a table: which classes train, which are judged, which images are broken."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from softwarp.data.class_groups import Positions
from softwarp.data.decode import decode_image
from softwarp.data.duplicates import Looks
from softwarp.data.readers import ImageTable
from softwarp.data.splits import Division, Judged, SplitPlan, divide, protocol_line

BLOCK = 1024  # images submitted at a time, so that an interrupt need not wait for the rest


@dataclass(frozen=True)
class Broken:
    """An image that cannot be used: its path in the table, and the reason."""

    path: str
    reason: str


@dataclass(frozen=True)
class ClassGroup:
    """The classes that train, or that are judged: their names and number of images."""

    classes: tuple[str, ...]
    images: int


@dataclass(frozen=True)
class Prospect:
    """What training would do when judged on `split`; `refusal` says why it would refuse, if it would.

    `protocol` says in a line what is judged, `note` what is left out; `closed` is as in `Division`.
    """

    split: Judged
    trained: ClassGroup | None
    judged: ClassGroup | None
    refusal: str | None
    protocol: str = ""
    note: str = ""
    closed: bool = False


def check_images(
    table: ImageTable,
    *,
    workers: int | None = None,
    advance: Callable[[], None] | None = None,
    looks: Looks | None = None,
) -> list[Broken]:
    """Return the images that cannot be fully decoded, in the table's order.

    Args:
        workers: threads, by default one per core; Pillow decodes in parallel in threads.
        advance: called after each image.
        looks: keeps what tells copies from other images.
    """

    def check(position: int) -> Broken | None:
        path = table.paths[position]
        try:
            content = table.content(position)
            image = decode_image(content, path if table.pack else str(table.root / path))
            if looks is not None:
                looks.add(position, content, image)
        except (ValueError, OSError) as error:
            return Broken(path, str(error))
        return None

    broken = []
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        for start in range(0, len(table.paths), BLOCK):
            for found in pool.map(check, range(start, min(start + BLOCK, len(table.paths)))):
                if found is not None:
                    broken.append(found)
                if advance is not None:
                    advance()
    return broken


def foresee(table: ImageTable, broken: Sequence[Broken], split: Judged) -> Prospect:
    """Return what training would do with the table, judged on that split."""
    try:
        division = divide(table.labels, table.splits, SplitPlan(split), names=table.names)
    except ValueError as error:
        return Prospect(split, None, None, str(error))
    unusable = _unusable(table, broken, division)
    refusal = None
    if unusable:
        few = f"no image of class {unusable[0]!r} can be read ({len(unusable)} such classes)"
        refusal = f"{few}; fix its images or leave the class out"
    judged = division.queries
    if division.gallery is not None and not division.closed:
        judged = np.union1d(division.queries, division.gallery)
    return Prospect(
        split,
        _group(table, division.train),
        _group(table, judged),
        refusal,
        protocol_line(division, table.labels, split),
        division.note,
        division.closed,
    )


def roles(table: ImageTable, prospect: Prospect) -> dict[str, str]:
    """Return the role of each class by name: its splits or, without splits, held out or train."""
    if table.splits is not None:
        found: dict[str, dict[str, None]] = {name: {} for name in table.names}
        for label, split in zip(table.labels.tolist(), table.splits, strict=True):
            found[table.names[label]][split] = None
        return {name: ", ".join(splits) for name, splits in found.items()}
    judged = set(prospect.judged.classes) if prospect.judged else set()
    trained = set(prospect.trained.classes) if prospect.trained else set()
    return {
        name: "held out" if name in judged else "train" if name in trained else "" for name in table.names
    }


def sizes(table: ImageTable) -> dict[str, int]:
    """Return how many images each class has, by name."""
    counts = np.bincount(table.labels, minlength=len(table.names))
    return dict(zip(table.names, counts.tolist(), strict=True))


def _group(table: ImageTable, items: Positions) -> ClassGroup:
    classes = np.unique(table.labels[items]).tolist()
    return ClassGroup(tuple(table.names[label] for label in classes), len(items))


def _unusable(table: ImageTable, broken: Sequence[Broken], division: Division) -> list[str]:
    """The training classes of which no image can be read."""
    lost = {image.path for image in broken}
    labels = table.labels[division.train]
    whole = [table.paths[item] not in lost for item in division.train.tolist()]
    return [table.names[label] for label in np.setdiff1d(labels, labels[whole]).tolist()]
