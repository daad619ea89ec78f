"""Images packed into shards for training, and pairs of those that training holds out."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from softwarp.data.check import Broken, check_images
from softwarp.data.class_groups import given_or_drawn
from softwarp.data.readers import ImageTable
from softwarp.data.shards import SHARD_SIZE, check_free, write_shards
from softwarp.data.splits import SplitPlan, divide


def pack_faces(
    table: ImageTable,
    output: Path,
    *,
    shard_size: int = SHARD_SIZE,
    checked: Callable[[], None] | None = None,
    advance: Callable[[], None] | None = None,
) -> tuple[dict[str, int], list[Broken]]:
    """Pack a table's images into shards; return what was written, and the broken images that were left out.

    Images keep their split. Without splits they get the one that training would draw, so that the same
    people are held out whatever is trained on later.

    Args:
        checked: called for each image that was decoded, to see whether it is whole.
        advance: called for each image that was written.
    """
    check_free(output)
    splits = given_or_drawn(table.labels, table.splits)
    broken = check_images(table, advance=checked)
    lost = {image.path for image in broken}
    kept = np.array([path not in lost for path in table.paths])
    if not kept.any():
        raise ValueError(f"no image in {table.root} can be read; nothing was packed")
    written = write_shards(
        output, table, np.flatnonzero(kept).tolist(), splits, shard_size=shard_size, advance=advance
    )
    return written, broken


def draw_pairs(
    table: ImageTable, *, count: int, folds: int = 10, seed: int = 0
) -> list[tuple[int, str, str, int]]:
    """Return rows `fold, first, second, same` of pairs of images of the people that are held out for test.

    Half of the pairs of each fold show one person; folds have no people in common.
    """
    division = divide(table.labels, table.splits, SplitPlan("test"), names=table.names)
    if division.closed:
        raise ValueError(
            "training holds no people out: those of the split test are also in the split train; omit the "
            "splits, or put all images of a person on the same side"
        )
    held = division.queries
    people = np.unique(table.labels[held])
    groups = np.array_split(np.random.default_rng(seed).permutation(people), folds)
    if min(len(group) for group in groups) < 2:
        most = len(people) // 2
        cure = f"give --folds {most} or fewer" if most > 1 else "add people"
        raise ValueError(f"{len(people)} held-out people are too few for {folds} folds; {cure}")
    rows = []
    for fold, group in enumerate(groups, start=1):
        own = [held[table.labels[held] == person] for person in group]
        rows += [
            (fold, table.paths[first], table.paths[second], same)
            for first, second, same in _drawn(own, count // folds // 2, np.random.default_rng((seed, fold)))
        ]
    return rows


def _drawn(
    people: list[NDArray[np.int64]], each: int, random: np.random.Generator
) -> list[tuple[int, int, int]]:
    """`each` pairs of one person and as many of two, or as many as there are; no pair twice."""
    several = [images for images in people if len(images) > 1]
    most_same = sum(len(images) * (len(images) - 1) // 2 for images in several)
    count = sum(len(images) for images in people)
    each = min(each, most_same, count * (count - 1) // 2 - most_same)
    if each == 0:
        raise ValueError("a fold has no person with two images; lower --folds")
    found: dict[tuple[int, int], int] = {}
    while len(found) < 2 * each:
        same = int(len(found) < each)
        if same:
            place = random.choice(len(several), p=_shares(several))
            first, second = random.choice(several[place], 2, replace=False).tolist()
        else:
            one, other = random.choice(len(people), 2, replace=False)
            first, second = int(random.choice(people[one])), int(random.choice(people[other]))
        found.setdefault((min(first, second), max(first, second)), same)
    return [(first, second, same) for (first, second), same in found.items()]


def _shares(people: list[NDArray[np.int64]]) -> NDArray[np.float64]:
    pairs = np.array([len(images) * (len(images) - 1) / 2 for images in people])
    shares: NDArray[np.float64] = pairs / pairs.sum()
    return shares
