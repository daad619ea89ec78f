"""What a loss says of itself: the command line, the docs table and the trainer read it from here."""

import inspect
from dataclasses import dataclass, field
from typing import Any, Literal

KINDS = ("proxies", "classifier", "pairs", "ranking", "graph")


@dataclass(frozen=True)
class Card:
    """A loss in words, and how it is trained when a recipe says no more than its name.

    `search_space` maps a setting to ("log" | "float" | "int", low, high); learning rates are searched
    besides.
    """

    title: str
    citation: str
    year: int
    equation: str  # one line of plain text
    kind: Literal["proxies", "classifier", "pairs", "ranking", "graph"]
    networks: str = ""  # what it trains besides proxies or a classifier, gone at test
    min_classes: int = 1  # that a batch needs
    min_samples: int = 1  # of each class that a batch needs
    classes: int = 32  # in a batch, as published
    samples: int = 4  # of each class in a batch, as published
    optimizer: str = "adam"  # as published
    proxy_rate_ratio: float = 100.0  # learning rate of the loss's own parameters over that of the model
    search_space: dict[str, tuple[str, float, float]] = field(default_factory=dict)
    notes: str = ""  # where it differs from the official code, which constants are ours

    def check_batch(self, labels: Any) -> None:
        """Raise a ValueError when a batch with these labels cannot serve this loss."""
        counts = labels.unique(return_counts=True)[1]
        if len(counts) < self.min_classes or int(counts.min()) < self.min_samples:
            raise ValueError(
                f"{self.title} needs at least {self.min_classes} classes with {self.min_samples} samples "
                f"each in a batch, got {len(counts)} classes with {int(counts.min())} or more; raise "
                "batches.classes or batches.samples, or lower batches.accumulate"
            )

    def needs(self) -> str:
        """Return what a batch must hold, in a few words."""
        if self.min_classes == self.min_samples == 1:
            return "any batch"
        if self.min_classes == 1:
            return f"{self.min_samples} samples of each class"
        return f"{self.min_classes} classes x {self.min_samples} samples"


def defaults_of(loss_class: type) -> dict[str, Any]:
    """Return the settings of a loss that have a default, as a recipe writes them.

    >>> from softwarp.losses import RecallAtKLoss
    >>> defaults_of(RecallAtKLoss)["cutoffs"]
    [1, 2, 4, 8, 16]
    """
    parameters = list(inspect.signature(loss_class).parameters.values())[2:]
    found = {each.name: each.default for each in parameters if each.default not in (each.empty, None)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def settings_of(loss_class: type) -> dict[str, str]:
    """Return the default of each setting of a loss as text, "required" where there is none.

    >>> from softwarp.losses import ProxyNCAppLoss
    >>> settings_of(ProxyNCAppLoss)
    {'scale': '9.0', 'proxy_init': 'proxy_nca_pp'}
    """
    parameters = list(inspect.signature(loss_class).parameters.values())[2:]
    return {parameter.name: _default(parameter) for parameter in parameters}


def _default(parameter: inspect.Parameter) -> str:
    if parameter.kind is parameter.VAR_KEYWORD:
        return "those of the wrapped loss"
    return "required" if parameter.default is parameter.empty else str(parameter.default)
