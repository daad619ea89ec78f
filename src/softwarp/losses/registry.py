"""Losses by name. `losses/__init__.py` registers those that ship with softwarp; you may add your own."""

from typing import Any

from torch import nn

from softwarp.losses.contract import WRAPPED, Card, settings_of
from softwarp.losses.own_file import is_own, own_loss
from softwarp.names import did_you_mean

LOSSES: dict[str, type[nn.Module]] = {}


def build_loss(name: str, num_classes: int, embedding_size: int, **settings: Any) -> nn.Module:
    """Return the loss of that name; for an unknown name, a ValueError suggests the nearest.

    >>> build_loss("l2_softmax", 10, 4, alpha=2.0)
    L2SoftmaxLoss(num_classes=10, embedding_size=4, alpha=2.0)
    """
    loss = find_loss(name)
    known = settings_of(loss)
    for setting in settings.keys() - known.keys() if WRAPPED not in known.values() else ():
        answer = did_you_mean(setting, known, f"it has {', '.join(known) or 'none'}")
        raise ValueError(f"{name} has no setting {setting!r}; {answer}")
    try:
        return loss(num_classes, embedding_size, **settings)
    except TypeError as error:  # text where a number belongs
        given = ", ".join(f"{key}={value!r} (default {known.get(key)})" for key, value in settings.items())
        raise ValueError(f"{name} cannot be built with {given}: {error}") from error


def find_loss(name: str) -> type[nn.Module]:
    """Return the class of that name, or in a file (my_loss.py:MyLoss); a ValueError suggests the nearest."""
    if is_own(name):
        return own_loss(name)
    if name not in LOSSES:
        answer = did_you_mean(name.lower(), LOSSES, "`softwarp losses` lists them", most=3)
        raise ValueError(f"no loss is called {name!r}; {answer}")
    return LOSSES[name]


def card_of(name: str) -> Card:
    """Return the card of the loss of that name.

    >>> card_of("proxy_nca_pp").year
    2020
    """
    card = getattr(find_loss(name), "card", None)
    if not isinstance(card, Card):
        raise ValueError(f"the loss {name} has no card; give its class one, as examples/own_loss.py does")
    return card
