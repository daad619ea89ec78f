"""From the words of a recipe to what training and evaluation read: data sets that give whole batches."""

import functools
import hashlib
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from softwarp.data.glyphs import load_glyphs
from softwarp.data.image_cache import ImageCache
from softwarp.data.images import Batch, ImageDataset, test_transform, train_transform
from softwarp.data.splits import Division, Protocol, divide, items_of, split_classes
from softwarp.data.tables import Table, read_table


class Images(typing.Protocol):
    """A data set that gives a batch for a list of draws (item, seed)."""

    def __len__(self) -> int: ...
    def __getitems__(self, draws: list[tuple[int, int]]) -> Batch: ...
    def paths_without(self, items: Tensor) -> list[str]: ...


@dataclass(frozen=True)
class Source:
    """All that a run reads. Labels count from 0 in training; `names` are the training classes'."""

    train: Images
    labels: Tensor
    plain: Images  # the training images as evaluation would see them
    queries: Images
    query_labels: Tensor
    gallery: Images | None
    gallery_labels: Tensor | None
    names: list[str]
    sha256: str  # of the pixels (glyphs), or of the list of files and labels


class TensorImages:
    """Images that are in memory already; nothing is changed at random.

    >>> TensorImages(torch.zeros(5, 1, 2, 2), torch.arange(5)).__getitems__([(3, 0), (1, 0)]).labels
    tensor([3, 1])
    """

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, draws: list[tuple[int, int]]) -> Batch:
        items = torch.tensor([item for item, _ in draws])
        return Batch(images=self.images[items], labels=self.labels[items], items=items, broken=[])

    def paths_without(self, items: Tensor) -> list[str]:
        return []  # nothing in memory is broken


def glyph_source(*, protocol: str, max_classes: int | None = None) -> Source:
    """Return the embedded glyphs; its validation classes are never trained on, whatever the protocol."""
    glyphs = load_glyphs()
    split = split_classes(len(glyphs.characters))
    train, evaluated = split.train[:max_classes], getattr(split, protocol)[:max_classes]
    items, labels = items_of(glyphs.labels, train)
    images = TensorImages(glyphs.images[items], labels)
    queries, query_labels = items_of(glyphs.labels, evaluated)
    return Source(
        train=images,
        labels=labels,
        plain=images,
        queries=TensorImages(glyphs.images[queries], query_labels),
        query_labels=query_labels,
        gallery=None,
        gallery_labels=None,
        names=[glyphs.characters[label] for label in train.tolist()],
        sha256=glyphs.sha256,
    )


def image_source(
    name: str,
    root: Path,
    *,
    protocol: Protocol,
    transform: str,
    resize: int,
    crop: int,
    scale: tuple[float, float],
    max_classes: int | None = None,
    cache: bool = False,
    strict: bool = False,
    advance: Callable[[], None] | None = None,
) -> Source:
    """Return the images of a data set on disk, divided by class as the protocol says."""
    table = read_table(name, root)
    division = limit(
        divide(table.labels, table.splits, protocol=protocol, names=table.names), table.labels, max_classes
    )
    to_train = train_transform(transform, resize=resize, crop=crop, scale=scale)
    to_test = test_transform(resize=resize, crop=crop)

    @functools.cache  # the training images serve twice, and opening reads every file
    def open_cache(paths: tuple[str, ...]) -> ImageCache:
        return ImageCache.open(table.root, paths, shorter_side=resize, advance=advance)

    def images(items: Tensor, labels: Tensor, how: Callable[..., Tensor], replace: bool) -> ImageDataset:
        paths = tuple(table.paths[item] for item in items.tolist())
        kept = open_cache(paths) if cache else None
        return ImageDataset(
            table.root, paths, labels, how, shorter_side=resize, strict=strict, cache=kept, replace=replace
        )

    classes, labels = table.labels[division.train].unique(return_inverse=True)
    query_labels = table.labels[division.queries]
    gallery_labels = table.labels[division.gallery] if division.gallery is not None else None
    return Source(
        train=images(division.train, labels, to_train, True),
        labels=labels,
        plain=images(division.train, labels, to_test, False),
        queries=images(division.queries, query_labels, to_test, False),
        query_labels=query_labels,
        gallery=images(division.gallery, gallery_labels, to_test, False)
        if division.gallery is not None and gallery_labels is not None
        else None,
        gallery_labels=gallery_labels,
        names=[table.names[label] for label in classes.tolist()],
        sha256=fingerprint(table),
    )


def limit(division: Division, labels: Tensor, max_classes: int | None) -> Division:
    """Return the division with no more than so many classes on either side: the first ones."""
    if max_classes is None:
        return division

    def first(items: Tensor, classes: Tensor) -> Tensor:
        return items[torch.isin(labels[items], classes[:max_classes])]

    evaluated = labels[division.queries].unique()
    return Division(
        train=first(division.train, labels[division.train].unique()),
        queries=first(division.queries, evaluated),
        gallery=None if division.gallery is None else first(division.gallery, evaluated),
    )


def fingerprint(table: Table) -> str:
    """Return a hash of the files' names and labels, in order."""
    lines = "\n".join(
        f"{path}\t{label}" for path, label in zip(table.paths, table.labels.tolist(), strict=True)
    )
    return hashlib.sha256(lines.encode()).hexdigest()
