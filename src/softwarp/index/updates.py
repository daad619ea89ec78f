"""Brings a store up to date: adds, removes and refreshes images, compacts it, builds its faiss index."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from softwarp.data.trees import FoundImages, absolute, class_notes, find_images, is_list, name_of
from softwarp.events import OnEvent, Work
from softwarp.index.faiss_index import (
    FEWEST,
    add_rows,
    choose_kind,
    find_effort,
    make_index,
    open_mapped,
    read_index,
    write_index,
)
from softwarp.index.images import NewImage
from softwarp.index.searching import as_stored
from softwarp.index.sources import by_name, held_by, images_in, label_of, refuse_losses
from softwarp.index.store import IndexStore

if TYPE_CHECKING:
    from softwarp.inference import EmbeddingModel

REMOVED = 0.1  # share of removed rows from which the files are written again
TAIL = 0.05  # share of rows that are not in the faiss index yet from which they are added to it


@dataclass
class Changes:
    """What an update did."""

    added: int = 0
    changed: int = 0
    removed: int = 0
    unchanged: int = 0
    broken: list[str] = field(default_factory=list)  # why each of these files cannot be read
    notes: list[str] = field(default_factory=list)  # what was left out, and how classes are named


def weights_digest(model: "EmbeddingModel") -> str:
    """Return a digest of the model's weights, and of a backbone's own pooling."""
    from softwarp.models.pooling import VECTORS  # torch comes with the model, not before

    digest = hashlib.sha256()
    if model.network.pooling in VECTORS:  # indexes of before know no other than ours, and do not name it
        digest.update(model.network.pooling.encode())
    for name, tensor in model.network.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()


def embed_into(
    store: IndexStore,
    model: "EmbeddingModel",
    files: Mapping[str, Path],
    *,
    labels: Mapping[str, str] | None = None,
    thumbnails: bool = True,
    on_event: OnEvent | None = None,
) -> Changes:
    """Embed those files, by name, that are new or changed; a batch counts once it is safe on disk.

    Args:
        labels: of files, by name; the class of any other is its folder.
    """
    from softwarp.index.embed_files import embed_files

    labels = labels or {}
    before, changes, done = store.digests(), Changes(), 0
    names = {path: name for name, path in files.items()}
    depth, splits = store.settings["depth"], store.settings["splits"]
    todo = list(names)
    bar = Work(on_event, "embedding", total=len(todo))
    for batch in embed_files(model, todo, known=lambda path: before.get(names[path]), thumbnails=thumbnails):
        items = [
            NewImage(
                name,
                label_of(name, labels, depth=depth, splits=splits),
                each.digest,
                each.thumbnail,
            )
            for each, name in ((each, names[each.path]) for each in batch.files)
        ]
        if items:
            store.append(as_stored(store, batch.vectors, [item.path for item in items]), items)
        # One that could not even be read is not known to have changed: its disk may be at fault.
        lost = [names[each.path] for each in batch.broken if each.digest and names[each.path] in before]
        changes.removed += store.remove(lost) if lost else 0
        old = sum(item.path in before for item in items)
        changes.added += len(items) - old
        changes.changed += old
        changes.unchanged += batch.seen - len(items) - len(batch.broken)
        changes.broken += [each.broken for each in batch.broken]
        done += batch.seen
        bar.reach(done)
    relabelled = store.relabel(labels, keep=False) if labels else 0
    changes.changed += relabelled
    changes.unchanged -= relabelled
    return changes


def add(
    store: IndexStore,
    model: "Callable[[], EmbeddingModel]",
    places: Sequence[Path],
    on_event: OnEvent | None = None,
) -> Changes:
    """Embed the images of files, folders and CSV lists that are new, and remember the places."""
    root, settings = Path(store.settings["root"]), store.settings
    found, files, labels = images_in(places, root)
    store.include(files)
    sources = [str(absolute(place)) for place in places if place.is_dir() or is_list(place)]
    store.put(sources=list(dict.fromkeys([*settings["sources"], *sources])))
    _remember(store, found, before=store.lists())  # a refresh removes what is no longer listed
    changes = embed_into(store, model(), files, labels=labels, on_event=on_event)
    changes.notes += found.notes
    if settings["depth"] is None:
        named = (name for name in files if name not in labels)
        changes.notes += class_notes(named, splits=settings["splits"])
    return changes


def remove(store: IndexStore, places: Sequence[Path]) -> Changes:
    """Remove images by name, or all of folders and CSV files; only `add` brings them back."""
    names, lists = [item.path for item in store.items()], store.lists()
    held = held_by([absolute(place) for place in places], names, lists, Path(store.settings["root"]))
    gone = [name for name in names if any(name in inside for inside in held.values())]
    return Changes(removed=store.remove(gone, exclude=True))


def refresh(
    store: IndexStore,
    model: "Callable[[], EmbeddingModel]",
    remove_missing: bool,
    on_event: OnEvent | None = None,
) -> Changes:
    """Embed what is new or has changed in the index's folders and CSV files, and remove what is gone."""
    root, sources = Path(store.settings["root"]), [Path(source) for source in store.settings["sources"]]
    found = find_images(sources)
    files, labels = by_name(found, root)
    names, lists = [item.path for item in store.items()], store.lists()
    unlisted = set().union(*lists.values()) - files.keys()
    files |= {name: root / name for name in names if name not in files}
    gone = {name for name in names if name in unlisted or not files[name].is_file()}
    held = held_by(sources, names, lists, root)
    refuse_losses(names, gone, held=held, index=store.folder, remove_missing=remove_missing)
    left_out = gone | store.excluded()
    there = {name: path for name, path in files.items() if name not in left_out}
    removed = store.remove(gone)
    _remember(store, found)  # last: after a kill in between, the next refresh must still see what is gone
    changes = embed_into(store, model(), there, labels=labels, on_event=on_event)
    changes.removed += removed
    changes.notes += found.notes
    return changes


def _remember(store: IndexStore, found: FoundImages, *, before: Mapping[str, set[str]] | None = None) -> None:
    """Keep what CSV files list, and listed before, to see later what is gone from them."""
    root = Path(store.settings["root"])
    for file, labels in found.lists.items():
        listed = {name_of(path, root) for path in labels}
        store.put_list(str(file), listed | (before or {}).get(str(file), set()))


def compact_and_index(store: IndexStore, on_event: OnEvent | None = None) -> None:
    """Write the files again if many rows were removed, and bring the faiss index up to date."""
    if len(store.removed) > REMOVED * len(store.ids):
        store.compact()
    rows, settings = len(store.ids), store.settings
    kind = settings["wanted"]
    if kind == "auto":
        kind = choose_kind(rows, settings["dimensions"])
    if kind == "flat" or rows < FEWEST[kind]:
        if settings["kind"] != "flat" or settings.get("search"):
            store.put(search=None, kind="flat", indexed=0)
    elif settings["kind"] != kind or rows - settings["indexed"] > TAIL * rows or not _is_whole(store):
        _write_faiss(store, kind, on_event)
    store.reload()
    store.sweep()


def _is_whole(store: IndexStore) -> bool:
    path = store.search_file()
    return path is not None and open_mapped(path) is not None


def _write_faiss(store: IndexStore, kind: str, on_event: OnEvent | None) -> None:
    """Extend the faiss index, or build it, and measure its recall."""
    total, index = len(store.ids), None
    bar = Work(on_event, f"building {kind}", total=total)
    if store.settings["kind"] == kind and _is_whole(store):
        bar.reach(store.settings["indexed"])
        index = read_index(store.folder / store.settings["search"])
        add_rows(index, store.vectors[store.settings["indexed"] :], advance=bar.advance)
    if index is None:
        index = make_index(kind, store.vectors, advance=bar.advance)
    effort, recall = find_effort(index, kind, store.vectors)
    # A name that is new: what another process reads stays as it is.
    path = store.folder / f"search-{store.settings['generation']}-{store.settings['change']}.faiss"
    size = write_index(index, path)
    store.put(
        search=path.name, search_bytes=size, kind=kind, indexed=total, effort=effort.value, recall=recall
    )
