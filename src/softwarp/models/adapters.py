"""Low-rank adapters (Hu et al. 2022) by peft: small matrices beside frozen layers, merged after training.

A linear layer `W x` becomes `(W + alpha / rank B A) x`, where only `A` [rank, inputs] and `B` [outputs, rank]
are trained. `B` starts at zero, so that training starts at the frozen network.
"""

import copy
import hashlib
from collections.abc import Mapping
from typing import TypeVar

from torch import Tensor, nn

NETWORK = TypeVar("NETWORK", bound=nn.Module)
ADAPTED = "lora_"  # stands in the names of all that peft adds


def add_adapters(network: nn.Module, *, rank: int, alpha: int, dropout: float = 0.0) -> None:
    """Put an adapter beside every linear layer of a network, in place, and freeze everything else.

    Raises:
        ValueError: there is no linear layer, or the package peft is missing.
    """
    names = [name for name, module in network.named_modules() if type(module) is nn.Linear]
    if not names:
        raise ValueError(
            f"adapters stand beside linear layers, but {type(network).__name__} has none; "
            "omit model.adapter, or take a transformer"
        )
    try:
        from peft import LoraConfig, LoraModel
    except ImportError:
        raise ValueError(
            "model.adapter needs `pip install 'softwarp[adapters]'`; model.adapter=null trains all weights"
        ) from None
    LoraModel(
        network, LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=names), "default"
    )


def has_adapters(network: nn.Module) -> bool:
    """Return whether there are adapters in a network."""
    return any(ADAPTED in name for name, _ in network.named_parameters())


def merged(network: NETWORK) -> NETWORK:
    """Return a copy whose adapters, if it has any, are part of the weights: a plain network."""
    plain = copy.deepcopy(network)
    if has_adapters(plain):
        from peft.tuners.lora import LoraLayer

        layers = [(name, layer) for name, layer in plain.named_modules() if isinstance(layer, LoraLayer)]
        for name, layer in layers:
            layer.merge()
            parent, _, child = name.rpartition(".")
            setattr(plain.get_submodule(parent), child, layer.get_base_layer())
    return plain


def trained_part(network: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what a checkpoint has to keep of a state of this network, of its average or of its merged form.

    That is all of it, or without what adapters leave frozen.
    """
    frozen = {_plain(name) for name in _frozen(network)}
    return {name: tensor for name, tensor in state.items() if _plain(name) not in frozen}


def digest_of_frozen(network: nn.Module) -> str:
    """Return a hash of the weights that adapters leave frozen; empty if there are none."""
    frozen, digest = _frozen(network), hashlib.sha256()
    for name, tensor in network.state_dict().items():
        if name in frozen:
            digest.update(tensor.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest() if frozen else ""


def _frozen(network: nn.Module) -> set[str]:
    if not has_adapters(network):
        return set()
    return {name for name, weight in network.named_parameters() if not weight.requires_grad}


def _plain(name: str) -> str:
    """A name as it is without adapters, outside of torch's AveragedModel."""
    return name.removeprefix("module.").replace(".base_layer.", ".")
