"""Copies among the images of a table: the same files, and images that look the same; in linear memory.

Files are compared by a hash of their content. Images look the same if their 16 x 16 grey pixels, brought to
mean 0 and length 1, are closer than NEAR. Most resized and re-encoded copies of a photograph are closer than
that, and any two different photographs are much further apart.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from softwarp.data.decode import digest_of
from softwarp.data.readers import ImageTable

SIDE = 16
NEAR = 0.15
FLAT = 3.0  # grey levels: images with a smaller deviation show nothing that could be compared
NEIGHBOURS = 9  # images looked at for each image, which is one of them itself
DIRECTIONS = 12  # neighbours are searched along these; distances are never larger there

CopyPair = tuple[str, str]


class Looks:
    """What is kept of each image while all are decoded once: a hash and, for `deep`, small grey pixels."""

    def __init__(self, count: int, *, deep: bool = False) -> None:
        self.digests = [b""] * count
        self.small = np.zeros((count if deep else 0, SIDE * SIDE), np.uint8)

    def add(self, position: int, content: bytes, image: Image.Image) -> None:
        self.digests[position] = digest_of(content)
        if len(self.small):
            grey = image.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
            self.small[position] = np.asarray(grey).reshape(-1)


@dataclass
class Copies:
    """Pairs of copies, by path: under two labels, in two splits; and how many more there are."""

    labels: list[CopyPair] = field(default_factory=list)
    splits: list[CopyPair] = field(default_factory=list)
    others: int = 0  # pairs of one label and one split


def identical(table: ImageTable, looks: Looks) -> Copies:
    """Return the files with the same content."""
    groups: dict[bytes, list[int]] = defaultdict(list)
    for position, digest in enumerate(looks.digests):
        if digest:
            groups[digest].append(position)
    # The first with each of the others: if any two of them differ in label or split, one differs from it.
    pairs = ((first, other) for first, *rest in groups.values() for other in rest)
    return _sorted_out(table, pairs)


def alike(table: ImageTable, looks: Looks) -> tuple[Copies, int]:
    """Return the images that look the same in other files, and how many are too plain to be compared."""
    from scipy.spatial import cKDTree

    small = looks.small.astype(np.float32)
    small -= small.mean(1, keepdims=True)
    known = np.array([bool(digest) for digest in looks.digests])
    plain = known & (small.std(1) < FLAT)
    places = np.flatnonzero(known & ~plain)
    if len(places) < 2:
        return Copies(), int(plain.sum())
    units = small[places] / np.linalg.norm(small[places], axis=1, keepdims=True)
    axes = np.linalg.eigh(units.T @ units)[1][:, -DIRECTIONS:]
    # A projection is never longer, so no pair is missed; false ones are sorted out below.
    found = cKDTree(units @ axes).query(units @ axes, NEIGHBOURS, distance_upper_bound=NEAR)[1]
    pairs: dict[tuple[int, int], None] = {}
    for column in range(found.shape[1]):
        first = np.flatnonzero(found[:, column] < len(places))
        second = found[first, column]
        close = np.linalg.norm(units[first] - units[second], axis=1) < NEAR
        for one, other in zip(places[first[close]].tolist(), places[second[close]].tolist(), strict=True):
            if looks.digests[one] != looks.digests[other]:
                pairs[min(one, other), max(one, other)] = None
    return _sorted_out(table, sorted(pairs)), int(plain.sum())


def _sorted_out(table: ImageTable, pairs: Iterable[tuple[int, int]]) -> Copies:
    copies = Copies()
    for one, other in pairs:
        pair = table.paths[one], table.paths[other]
        labels = table.labels[one] != table.labels[other]
        splits = table.splits is not None and table.splits[one] != table.splits[other]
        if labels:
            copies.labels.append(pair)
        if splits:
            copies.splits.append(pair)
        copies.others += not (labels or splits)
    return copies
