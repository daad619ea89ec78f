"""What a build looks at before it begins, and what it takes back if no image can be read."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from softwarp.data.trees import root_of
from softwarp.index.sources import images_in
from softwarp.index.store import IndexStore
from softwarp.index.table import TABLE
from softwarp.index.updates import weights_digest

if TYPE_CHECKING:
    from softwarp.inference import EmbeddingModel


def root_and_unlabelled(places: Sequence[Path], out: Path) -> tuple[Path, list[str]]:
    """Return the folder that the names of these images start from, and the names that no list labels."""
    if out.is_file():
        raise ValueError(f"{out} is a file; an index is a folder, choose another one")
    root = root_of(places)
    _, files, labels = images_in(places, root)
    return root, [name for name in files if name not in labels]


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
