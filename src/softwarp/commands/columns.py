"""Rows as columns of text, in which the name of a file is never broken up, so that it can be copied."""

import shutil
from collections.abc import Sequence

import typer

from softwarp.files import printable

ENDLESS = 10**6  # letters of a line that goes into a file or a pipe


def print_columns(heads: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: int) -> None:
    """Print rows below their heads; the last column, a name, has lines of its own if there is no room.

    Args:
        numbers: how many of the first columns are numbers.
    """
    from rich.cells import cell_len

    lines = [[printable(cell).replace("\n", "\\n") for cell in row] for row in (heads, *rows)]
    widths = [max(cell_len(line[place]) for line in lines) for place in range(len(heads))]
    wrapped = sum(widths) + 2 * len(widths) - 2 > shutil.get_terminal_size((ENDLESS, 0)).columns
    for number, line in enumerate(lines):
        room = [" " * (width - cell_len(cell)) for width, cell in zip(widths, line, strict=True)]
        cells = [
            space + cell if place < numbers else cell + space
            for place, (space, cell) in enumerate(zip(room, line, strict=True))
        ]
        told = "  ".join(cells[:-1])
        below = f"{told.rstrip()}\n{' ' * widths[0]}"
        typer.secho(f"{below if wrapped else told}  {line[-1]}", bold=number == 0)
