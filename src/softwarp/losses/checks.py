"""Checks of the settings that losses are made with."""

import math
from collections.abc import Collection


def check_positive(**settings: float) -> None:
    """Raise a ValueError that names the first setting which is not positive and finite."""
    for name, value in settings.items():
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be positive and finite, got {value}")


def check_not_negative(**settings: float) -> None:
    """Raise a ValueError that names the first setting which is negative or not finite."""
    for name, value in settings.items():
        if not (value >= 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be at least 0 and finite, got {value}")


def check_whole(*, at_least: int = 1, **settings: int) -> None:
    """Raise a ValueError that names the first setting which is not a whole number, or too small."""
    for name, value in settings.items():
        if int(value) != value or value < at_least:
            raise ValueError(f"{name} must be a whole number, at least {at_least}, got {value}")


def check_share(**settings: float) -> None:
    """Raise a ValueError that names the first setting which is not at least 0 and below 1."""
    for name, value in settings.items():
        if not 0 <= value < 1:
            raise ValueError(f"{name} must be at least 0 and below 1, got {value}")


def check_sizes(num_classes: int, embedding_size: int) -> tuple[int, int]:
    """Return both if they are whole numbers of at least 1."""
    check_whole(num_classes=num_classes, embedding_size=embedding_size)
    return num_classes, embedding_size


def check_choice(value: str, choices: Collection[str], name: str) -> None:
    """Raise a ValueError that lists the choices, unless the value is one of them."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
