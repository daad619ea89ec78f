"""softwarp's own folder of pretrained weights: for each network added a file, and a record of what it is."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from softwarp.files import atomic_write, cache_folder, write_json
from softwarp.names import did_you_mean

UNKNOWN = "unknown"
CURE = "free disk space, or choose another folder with SOFTWARP_WEIGHTS"


class AddedWeights(BaseModel):
    """What is known of weights in the folder: NAME.json."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    name: str  # of the network; a timm name with a tag is another one than without
    sha256: str  # of the file that was given
    original: str  # its name
    licence: str = UNKNOWN
    source: str = ""  # where it came from, in the words of whoever added it
    added: str  # the date
    file: str  # with the tensors, beside the record
    file_sha256: str

    @property
    def path(self) -> Path:
        return weights_folder() / Path(self.file).name


def weights_folder() -> Path:
    """Return softwarp's folder of weights: `SOFTWARP_WEIGHTS`, or `weights` in the cache folder."""
    return Path(os.environ.get("SOFTWARP_WEIGHTS") or cache_folder() / "weights")


def added_weights() -> list[AddedWeights]:
    """Return what was added, by name."""
    return [_read_record(path) for path in sorted(weights_folder().glob("[!.]*.json"))]


def find_added(name: str) -> AddedWeights | None:
    """Return the weights that were added under exactly this name; None if there are none."""
    path = _record_path(name)
    return _read_record(path) if path.parent == weights_folder() and path.is_file() else None


def checked_file(added: AddedWeights) -> Path:
    """Return the file of added weights; a ValueError if it is not the one that was written."""
    cure = f"add them again: softwarp weights add FILE --as {added.name}"
    if not added.path.is_file():
        raise FileNotFoundError(f"{added.path}, the weights of {added.name}, is gone; {cure}")
    if sha256_of(added.path) != added.file_sha256:
        raise ValueError(
            f"{added.path}, the weights of {added.name}, is damaged: its SHA-256 is wrong; {cure}"
        )
    return added.path


def store_weights(weights: Mapping[str, Tensor], *, about: Mapping[str, str]) -> AddedWeights:
    """Return the record of tensors that were written to the folder, as they are, in place of earlier ones.

    The record is written last and names its file, so that there are either the old weights or the new.

    Args:
        about: the fields of the record, without those of its file.
    """
    from safetensors.torch import save

    name, before = about["name"], find_added(about["name"])
    # clones, because safetensors refuses tensors that share memory
    content = save({key: tensor.clone().contiguous() for key, tensor in weights.items()}, {"format": "pt"})
    digest = hashlib.sha256(content).hexdigest()
    record = AddedWeights(**about, file=f"{name}.{digest[:12]}.safetensors", file_sha256=digest)
    try:
        with atomic_write(record.path) as file:
            file.write(content)
        write_json(_record_path(name), record.model_dump())
    except OSError as error:
        raise OSError(f"{weights_folder()} cannot take the weights ({error.strerror}); {CURE}") from None
    if before and before.path != record.path:
        before.path.unlink(missing_ok=True)
    return record


def remove_weights(name: str) -> AddedWeights:
    """Return the record of weights that were removed from the folder."""
    added = find_added(name)
    if added is None:
        known = [each.name for each in added_weights()]
        answer = did_you_mean(name, known, f"there are {', '.join(known)}" if known else "there are none")
        raise ValueError(f"no weights were added as {name}; {answer}")
    try:
        _record_path(name).unlink()
        added.path.unlink(missing_ok=True)
    except OSError as error:
        raise OSError(f"the weights of {name} cannot be removed ({error})") from None
    return added


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _record_path(name: str) -> Path:
    return weights_folder() / f"{name}.json"


def _read_record(path: Path) -> AddedWeights:
    try:
        return AddedWeights.model_validate_json(path.read_bytes())
    except ValidationError:
        raise ValueError(
            f"{path} is damaged; remove it, and add the weights again: softwarp weights add FILE "
            f"--as {path.name.removesuffix('.json')}"
        ) from None
