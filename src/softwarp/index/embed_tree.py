"""Any tree of images -> one .safetensors file of embeddings, names, digests and classes; resumable.

What is embedded is kept in the folder FILE.part until the file is whole.
"""

import json
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from softwarp.data.trees import class_notes, has_splits, root_of
from softwarp.events import OnEvent
from softwarp.files import atomic_write
from softwarp.index.images import IndexedImage
from softwarp.index.rows import BLOCK
from softwarp.index.sources import images_in
from softwarp.index.store import IndexStore
from softwarp.index.updates import Changes, embed_into, weights_digest

SIZES = {"F32": 4, "I64": 8, "U8": 1}


def embed_tree(
    model: Path | str,
    places: Sequence[Path],
    out: Path,
    *,
    listed: bool = False,
    depth: int | None = None,
    on_event: OnEvent | None = None,
) -> Changes:
    """Write the embeddings of all images in these files, folders and CSV lists, unless they were before.

    The arrays of the file, a row per image, in the order of `find_images`:

    - `embeddings` [N, D], as the model returns them; the metadata's `distance` says how to compare them.
    - `digests` [N, 16], of the files' content.
    - `names`, bytes: the paths below the metadata's `root`, each followed by a zero byte.
    - `classes`, bytes like `names`, and `labels` [N], their numbers, if all images are in class folders
      or lists.

    Args:
        model: what `softwarp.load` takes, or "auto" for the network here that suits the classes best.
        listed: missing files count as broken.
        depth: how many folders name the class, at most; None for all.
    """
    root = root_of(places)
    found, files, labels = images_in(places, root, listed=listed)
    folders = [name for name in files if name not in labels]
    from softwarp.index.network import named  # loads torch
    from softwarp.inference import load

    loaded = load(named(model, places, depth=depth, on_event=on_event))
    part = out.with_name(f"{out.name}.part")
    settings = {"root": str(root), "fingerprint": weights_digest(loaded), "depth": depth}
    splits, size = has_splits(folders), loaded.network.embedding_size
    store = IndexStore.create(part, dimensions=size, unit=False, splits=splits, **settings)
    for name, value in settings.items():
        if store.settings[name] != value:
            raise ValueError(
                f"{part} was begun with another model, --depth or other images; delete it to restart"
            )
    with store.writing():
        changes = embed_into(store, loaded, files, labels=labels, thumbnails=False, on_event=on_event)
        items = {item.path: item for item in store.items()}
        kept = [items[name] for name in files if name in items]
        metadata = {"model": loaded.source, "distance": loaded.distance, "root": str(root)}
        if kept:
            _write(out, store, kept, metadata)
    changes.notes += found.notes
    if depth is None:
        changes.notes += class_notes(folders, splits=splits)
    shutil.rmtree(part)
    if not kept:
        raise ValueError(f"none of {len(files):,} images can be read ({changes.broken[0]})")
    return changes


def _write(path: Path, store: IndexStore, items: Sequence[IndexedImage], metadata: dict[str, str]) -> None:
    """Write the file block by block: it may be larger than memory, which safetensors' own writer fills."""
    rows = store.rows_of(item.id for item in items)
    labels, tables = _tables(items)
    # Wide numbers first: each array starts at a multiple of its number's size.
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {"labels": ("I64", labels.shape)} if len(labels) else {}
    shapes["embeddings"] = ("F32", (len(rows), store.settings["dimensions"]))
    shapes |= {name: ("U8", table.shape) for name, table in tables.items()}
    with atomic_write(path) as file:
        file.write(_header(shapes, metadata))
        file.write(labels.tobytes())
        for start in range(0, len(rows), BLOCK):
            file.write(np.ascontiguousarray(store.vectors[rows[start : start + BLOCK]]).data)
        for table in tables.values():
            file.write(table.tobytes())


def _tables(items: Sequence[IndexedImage]) -> tuple[NDArray[np.int64], dict[str, NDArray[np.uint8]]]:
    """The number of each item's class, nothing if one has none; digests, names and classes as bytes."""
    digests = b"".join(bytes.fromhex(item.digest) for item in items)
    labels = [os.fsencode(item.label) for item in items if item.label is not None]
    classes, numbers = np.unique(np.array(labels, object), return_inverse=True)
    return numbers if len(labels) == len(items) else np.empty(0, np.int64), {
        "digests": np.frombuffer(digests, np.uint8).reshape(len(items), -1),
        "names": _text(os.fsencode(item.path) for item in items),
        "classes": _text(classes.tolist()),
    }


def _text(names: Iterable[bytes]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(name + b"\0" for name in names), np.uint8)


def _header(shapes: dict[str, tuple[str, tuple[int, ...]]], metadata: dict[str, str]) -> bytes:
    """The header of a .safetensors file: its length in 8 bytes, then JSON."""
    parts: dict[str, object] = {"__metadata__": {name: _plain(value) for name, value in metadata.items()}}
    end = 0
    for name, (kind, shape) in shapes.items():
        start, end = end, end + int(np.prod(shape)) * SIZES[kind]
        parts[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(parts).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _plain(text: str) -> str:
    """Text that JSON readers take: bytes of a name that are not UTF-8 become question marks."""
    return text.encode("utf-8", "replace").decode()
