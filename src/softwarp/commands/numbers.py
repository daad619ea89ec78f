"""Numbers on the command line."""

import math

import typer


def finite(value: float | None) -> float | None:
    """Return the number; refuse nan and inf, which pass every comparison with a bound, or none."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a number to work with; give a finite one.")
    return value
