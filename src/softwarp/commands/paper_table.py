"""`softwarp recipes --table`: a table of the paper, with the recipes that train its rows."""

from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

TITLES = {"cub": "CUB-200-2011", "cars": "Cars196", "sop": "Online Products"}
WIDTH = 100  # a narrower table would cut recipe names


def show_table(number: int) -> None:
    """Print that table of the paper, and why some figures have no recipe."""
    from rich.console import Console

    content = read_table(number)
    console = Console()
    console = Console(width=max(WIDTH, console.width))
    console.print(as_table(content, number))
    console.print(
        "I: BN-Inception, R: ResNet-50, followed by the embedding size. *: with additional components."
    )
    console.print("not known: the settings are unpublished, or we do not know them:")
    for row in (row for group in content["groups"] for row in group["rows"] if "unknown" in row):
        console.print(f"  {row['method']} {row['model']}: {row['unknown']}", markup=False, highlight=False)


def read_table(number: int) -> dict[str, Any]:
    """Return a table of the paper: columns, and rows in groups with published figures and names of recipes.

    >>> read_table(1)["groups"][1]["rows"][0]["recipes"]["cub"]
    'cub_proxy_nca_pp'
    """
    from softwarp.recipe import read_settings

    if number != 1:
        raise ValueError(f"there are no recipes for table {number} of the paper, only for --table 1")
    return read_settings(Path(str(files("softwarp") / "recipes" / "table_1.yaml")))


def as_table(content: dict[str, Any], number: int) -> "Table":
    """Return the table: two lines for each row, the published figures and the names of the recipes."""
    from rich import box
    from rich.table import Table

    column = partial(Table.add_column, no_wrap=True)
    table = Table(title=f"Table {number} of the paper, in percent", box=box.SIMPLE, padding=(0, 1))
    heads = {
        name: [metric.replace("recall", "R").upper() for metric in metrics]
        for name, metrics in content["columns"].items()
    }
    column(table, "method")
    for name, words in heads.items():
        column(table, f"{TITLES[name]}\n{_aligned(words, words)}")
    for group in content["groups"]:
        table.add_section()
        table.add_row(f"[bold]{group['title']}")
        for row in group["rows"]:
            cells = [_cell(row, name, words) for name, words in heads.items()]
            table.add_row(f"{row['method']}\n  {row['model']}", *cells)
    return table


def _cell(row: dict[str, Any], name: str, heads: list[str]) -> str:
    if name not in row:
        return _aligned(["-"], heads)
    figures = ["-" if value is None else f"{value:.1f}" for value in row[name]]
    return f"{_aligned(figures, heads)}\n{row.get('recipes', {}).get(name, 'not known')}"


def _aligned(words: list[str], heads: list[str]) -> str:
    return " ".join(f"{word:>{max(4, len(head))}}" for word, head in zip(words, heads, strict=False))
