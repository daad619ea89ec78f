"""Phases and their learning rates."""

import math
from collections.abc import Iterator

from softwarp.recipe.phases import Phase


def factor(phase: Phase, epoch: float, drops: int = 0) -> float:
    """Return the factor for the phase's learning rates, `epoch` epochs after its start.

    >>> phase = Phase(epochs=4, learning_rate=1, proxy_learning_rate=1, schedule="cosine")
    >>> [round(factor(phase, epoch), 3) for epoch in (0, 1, 2, 3, 4)]
    [1.0, 0.854, 0.5, 0.146, 0.0]
    """
    if phase.schedule == "step":
        return phase.gamma ** int(epoch // phase.step_epochs)
    if phase.schedule == "cosine":
        return (1 + math.cos(math.pi * epoch / phase.epochs)) / 2
    if phase.schedule == "polynomial":
        before, whole = phase.span or (0.0, float(phase.epochs))
        return float((1 - (before + epoch) / whole) ** phase.power)
    if phase.schedule == "plateau":
        return phase.gamma**drops
    return 1.0


def warm_up(phase: Phase, step: int) -> float:
    """Return the upper limit of that factor during warm-up, `step` batches after the phase's start.

    >>> phase = Phase(epochs=1, learning_rate=1, proxy_learning_rate=1, warm_up_steps=4)
    >>> [warm_up(phase, step) for step in range(6)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    """
    return min(1.0, (step + 1) / phase.warm_up_steps) if phase.warm_up_steps else 1.0


def stretches(phases: tuple[Phase, ...], epoch_steps: int) -> Iterator[tuple[int, Phase, int, int]]:
    """Yield each phase with its number, first step and last step plus one."""
    first = 0
    for number, phase in enumerate(phases):
        yield number, phase, first, first + phase.epochs * epoch_steps
        first += phase.epochs * epoch_steps
