"""Phases and their learning rates, and the memory of how validation went."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from softwarp.recipe import Phase


@dataclass
class State:
    """How far a run is and what it remembers; all of it is in the checkpoint."""

    step: int = 0  # batches done, over all phases
    loss: float = 0.0  # sum over the present epoch
    best: float = -math.inf  # of the metric that is followed
    best_epoch: int = 0
    since_best: int = 0  # looks at the validation classes without gain
    since_drop: int = 0  # the same since a plateau last lowered the rates
    drops: int = 0  # of the present phase
    broken: list[str] = field(default_factory=list)  # images that were skipped
    seconds: float = 0.0  # that it took so far
    notes: dict[str, Any] = field(default_factory=dict)  # for the result

    def look(self, value: float, epoch: int) -> bool:
        """Take note of a validation; return whether it is the best so far."""
        if value > self.best:
            self.best, self.best_epoch, self.since_best, self.since_drop = value, epoch, 0, 0
            return True
        self.since_best += 1
        self.since_drop += 1
        return False


def factor(phase: Phase, epoch: float, drops: int = 0) -> float:
    """Return what the phase's learning rates are multiplied with, `epoch` epochs after its start.

    >>> phase = Phase(epochs=4, learning_rate=1, proxy_learning_rate=1, schedule="cosine")
    >>> [round(factor(phase, epoch), 3) for epoch in (0, 1, 2, 3, 4)]
    [1.0, 0.854, 0.5, 0.146, 0.0]
    """
    if phase.schedule == "step":
        return phase.gamma ** int(epoch // phase.step_epochs)
    if phase.schedule == "cosine":
        return (1 + math.cos(math.pi * epoch / phase.epochs)) / 2
    if phase.schedule == "plateau":
        return phase.gamma**drops
    return 1.0


def stretches(phases: tuple[Phase, ...], epoch_steps: int) -> Iterator[tuple[int, Phase, int, int]]:
    """Yield each phase with its number, first step and last step plus one."""
    first = 0
    for number, phase in enumerate(phases):
        yield number, phase, first, first + phase.epochs * epoch_steps
        first += phase.epochs * epoch_steps
