"""What a build looks at before it begins, and what it takes back if no image can be read."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from softwarp.data.trees import absolute, has_splits, name_of, root_of
from softwarp.index.sources import images_in, label_of
from softwarp.index.store import IndexStore
from softwarp.index.table import TABLE
from softwarp.index.updates import weights_digest

if TYPE_CHECKING:
    from softwarp.inference import EmbeddingModel


@dataclass(frozen=True)
class Images:
    """What an index is built of.

    Args:
        places: files, folders and CSV files.
        root: the folder that names start from.
        depth: how many folders name the class, at most; None for all.
        splits: whether top folders are called train, val or test, and so name no class.
        classes: of those images that have one.
    """

    places: Sequence[Path]
    root: Path
    depth: int | None
    splits: bool
    classes: Mapping[Path, str]


def look_at(places: Sequence[Path], out: Path, *, depth: int | None) -> Images:
    """Return what is to become an index in that folder."""
    if out.is_file():
        raise ValueError(f"{out} is a file; an index is a folder, choose another one")
    root = root_of(places)
    _, files, listed = images_in(places, root)
    splits = has_splits([name for name in files if name not in listed])
    found = ((path, label_of(name, listed, depth=depth, splits=splits)) for name, path in files.items())
    return Images(places, root, depth, splits, {path: label for path, label in found if label is not None})


def name_in(out: Path, model: "EmbeddingModel | None") -> str:
    """Return how an index names its model: as `load` takes it, a folder of its own from where it is."""
    named = model.source if model is not None else ""
    return name_of(Path(named), absolute(out)) if named and Path(named).exists() else named


def refuse_other_index(store: IndexStore, model: "EmbeddingModel", root: Path) -> None:
    """Stop if the index in that folder was begun with another model, or with images of another root."""
    made = store.settings
    if made["fingerprint"] != weights_digest(model):
        name = made["model"] or "which has no name"
        raise ValueError(f"{store.folder} was built with another model, {name}; choose another folder")
    if Path(made["root"]) != root:
        raise ValueError(
            f"{store.folder} is an index of {made['root']}, not of {root}; choose another folder, or use add"
        )


def first_new(out: Path) -> Path | None:
    """Return the first folder on the way to this one, itself included, that does not exist yet."""
    return next((path for path in (*reversed(out.parents), out) if not path.exists()), None)


def discard(folder: Path, new: Path | None) -> None:
    """Delete an index without images, and the folders that were made for it, of which `new` is the first."""
    if new is not None:
        shutil.rmtree(new)
        return
    for path in folder.iterdir():
        if path.name == TABLE or path.suffix in (".f32", ".i64", ".faiss"):
            path.unlink()
