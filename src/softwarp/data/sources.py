"""From the data part of a recipe to what training and evaluation read: data sets of whole batches."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from softwarp.data.class_groups import Positions, random_roles
from softwarp.data.glyphs import STYLES, glyph_name, load_glyphs
from softwarp.data.image_cache import ImageCache
from softwarp.data.images import Batch, ImageDataset, test_transform, train_transform
from softwarp.data.readers import ImageTable
from softwarp.data.splits import Division, Judged, SplitPlan, divide, limit, protocol_line
from softwarp.data.stores import FileStore, MemoryStore, PackStore, Store
from softwarp.data.tables import find_root, read_table

if TYPE_CHECKING:
    from softwarp.recipe.schema import DataPart


class Images(Protocol):
    """A data set that returns a batch for a list of draws (item, seed)."""

    def __len__(self) -> int: ...
    def __getitems__(self, draws: list[tuple[int, int]]) -> Batch: ...
    def paths_without(self, items: Tensor) -> list[str]: ...


@dataclass(frozen=True)
class Items:
    """The file and class of each image of a data set, in order.

    `role` is train, validation, test, query or gallery; the fold that a plan holds out is validation. Files
    are relative to `root`, except for absolute paths in a CSV file. A glyph has a code point and style
    instead of a file, and no root.
    """

    role: str
    root: str | None
    files: tuple[str, ...]
    classes: tuple[str, ...]  # the class name of each image


@dataclass(frozen=True)
class Source:
    """Everything that a run reads.

    Labels count from 0: those of `train` and `kept` index `names`, those of queries and gallery
    `evaluated_names`.
    """

    train: Images
    labels: Tensor
    plain: Images  # the training images as evaluation would see them
    queries: Images
    query_labels: Tensor
    gallery: Images | None
    gallery_labels: Tensor | None
    names: list[str]
    evaluated_names: list[str]
    train_items: Items
    query_items: Items
    gallery_items: Items | None
    sha256: str  # hash of the pixels (glyphs), or of the list of files and labels
    notes: tuple[str, ...]  # what was left out or is missing, one line each
    protocol: str  # one line: which classes and images train, and which are judged
    closed: bool  # whether the classes that are judged train, too
    kept: Images | None = None  # images of training classes, held out; they search `plain`
    kept_labels: Tensor | None = None
    kept_items: Items | None = None
    shards: Tensor | None = None  # the file that each training image is in, if they are packed into several


def load_source(
    data: "DataPart",
    plan: SplitPlan,
    *,
    table: ImageTable | None = None,
    advance: Callable[[], None] | None = None,
) -> Source:
    """Return the data that a recipe names, divided by its plan.

    Args:
        table: the data set's table if it has been read before; many trainings on one folder read it once.
        advance: called after each image that is decoded into the cache.
    """
    if data.name == "glyphs":
        return glyph_source(plan=plan, max_classes=data.max_classes)
    if table is None or data.strict:  # strict: whatever is missing by now
        table = read_table(data.name, find_root(data.name, data.root), depth=data.depth, strict=data.strict)
    return image_source(data, plan, table, advance=advance)


def glyph_source(*, plan: SplitPlan, max_classes: int | None = None) -> Source:
    """Return the built-in glyphs.

    A quarter of the characters is for test and a quarter, `validation`, for search: these are never trained
    on and are in no fold, so they can be used to choose settings for every protocol, except for one whose
    test classes are the second half.
    """
    glyphs = load_glyphs()
    labels = glyphs.labels.numpy()
    files = [glyph_name(character, style) for character in glyphs.characters for style in STYLES]
    roles = random_roles(labels, validation=0.25, test=0.25)
    table = ImageTable(Path(), tuple(files), labels, tuple(glyphs.characters), tuple(roles))
    division = divide(labels, roles, plan, keep_validation=True, max_classes=max_classes)
    division = limit(division, labels, max_classes)

    def images(positions: Positions, labels: Tensor) -> tuple[Images, Images]:
        store = MemoryStore(glyphs.images[positions], [files[item] for item in positions.tolist()])
        plain = ImageDataset(store, labels, _as_it_is)
        return plain, plain

    return _source(table, division, images, judged=plan.split, root=None, sha256=glyphs.sha256)


def image_source(
    data: "DataPart", plan: SplitPlan, table: ImageTable, *, advance: Callable[[], None] | None = None
) -> Source:
    """Return the images of a table, divided by class according to the plan."""
    if data.cache and table.pack is not None:
        raise ValueError(f"data.cache keeps decoded image files, but {data.root} holds {data.name}; omit it")
    division = divide(table.labels, table.splits, plan, names=table.names, max_classes=data.max_classes)
    division = limit(division, table.labels, data.max_classes)
    to_train = train_transform(
        data.train_transform,
        resize=data.resize,
        crop=data.crop,
        scale=data.scale,
        color_jitter=data.color_jitter,
        erase=data.erase,
        interpolation=data.interpolation,
        crop_mode=data.crop_mode,
    )
    to_test = test_transform(
        resize=data.resize, crop=data.crop, interpolation=data.interpolation, crop_mode=data.crop_mode
    )

    def images(positions: Positions, labels: Tensor) -> tuple[Images, Images]:
        store: Store
        if data.cache:
            paths = tuple(table.paths[item] for item in positions.tolist())
            store = ImageCache.open(
                table.root,
                paths,
                shorter_side=data.resize,
                interpolation=data.interpolation,
                advance=advance,
            )
        else:
            store = store_of(table, positions, shorter_side=data.resize)
        random = ImageDataset(store, labels, to_train, strict=data.strict)
        return random, ImageDataset(store, labels, to_test, strict=data.strict, replace=False)

    return _source(
        table, division, images, judged=plan.split, root=str(table.root), sha256=hash_of_list(table)
    )


def store_of(table: ImageTable, positions: Positions, *, shorter_side: int | None) -> Store:
    """Return the images of a table at these positions."""
    if table.pack is not None:
        return PackStore(table.pack, positions.tolist(), shorter_side=shorter_side)
    paths = tuple(table.paths[item] for item in positions.tolist())
    return FileStore(table.root, paths, shorter_side=shorter_side)


def _source(
    table: ImageTable,
    division: Division,
    images: Callable[[Positions, Tensor], tuple[Images, Images]],  # those of training, those of evaluation
    *,
    judged: Judged,
    root: str | None,
    sha256: str,
) -> Source:
    """The source whose images are at these positions of the table."""

    def side(positions: Positions, classes: Positions, role: str) -> tuple[Images, Images, Tensor, Items]:
        own = table.labels[positions]
        labels = torch.from_numpy(np.searchsorted(classes, own))
        files = tuple(table.paths[item] for item in positions.tolist())
        items = Items(role, root, files, tuple(table.names[label] for label in own.tolist()))
        return *images(positions, labels), labels, items

    searched = division.queries if division.gallery is None else division.gallery
    trained = np.unique(table.labels[division.train])
    evaluated = np.union1d(table.labels[division.queries], table.labels[searched])
    train, plain, labels, train_items = side(division.train, trained, "train")
    role = judged if division.gallery is None else "query"
    _, queries, query_labels, query_items = side(division.queries, evaluated, role)
    gallery, gallery_labels, gallery_items = None, None, None
    kept, kept_labels, kept_items = None, None, None
    if division.gallery is not None and np.array_equal(division.gallery, division.train):
        gallery, gallery_labels, gallery_items = plain, labels, replace(train_items, role="gallery")
    elif division.gallery is not None:
        _, gallery, gallery_labels, gallery_items = side(division.gallery, evaluated, "gallery")
    if division.kept is not None:
        _, kept, kept_labels, kept_items = side(division.kept, trained, "validation")
    return Source(
        train=train,
        labels=labels,
        plain=plain,
        queries=queries,
        query_labels=query_labels,
        gallery=gallery,
        gallery_labels=gallery_labels,
        names=[table.names[label] for label in trained.tolist()],
        evaluated_names=[table.names[label] for label in evaluated.tolist()],
        train_items=train_items,
        query_items=query_items,
        gallery_items=gallery_items,
        sha256=sha256,
        notes=(*table.notes, *([division.note] if division.note else [])),
        protocol=protocol_line(division, table.labels, judged),
        closed=division.closed,
        kept=kept,
        kept_labels=kept_labels,
        kept_items=kept_items,
        shards=None if table.shards is None else torch.from_numpy(table.shards[division.train]).long(),
    )


def _as_it_is(image: Image.Image | Tensor) -> Tensor:
    assert isinstance(image, Tensor)
    return image


def hash_of_list(table: ImageTable) -> str:
    """Return a hash of the files' names, classes and splits, in order."""
    splits = table.splits or [""] * len(table.paths)
    rows = zip(table.paths, (table.names[label] for label in table.labels.tolist()), splits, strict=True)
    lines = "\n".join("\t".join(row) for row in rows)
    return hashlib.sha256(lines.encode(errors="surrogateescape")).hexdigest()
