"""`softwarp recipes --table`: a table of the paper, with the recipes that train its rows."""

from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

TITLES = {"cub": "CUB-200-2011", "cars": "Cars196", "sop": "Online Products", "faces": "accuracy"}
TABLES = (1, 2, 5)  # those of the paper that have recipes
WIDTH = 100  # a narrower table would cut recipe names


def show_table(number: int) -> None:
    """Print that table of the paper, and why some figures have no recipe."""
    from rich.console import Console

    content = read_paper_table(number)
    console = Console()
    console = Console(width=max(WIDTH, console.width))
    console.print(as_table(content, number))
    console.print(content["legend"], markup=False, highlight=False)
    unknown = [row for group in content["groups"] for row in group["rows"] if "unknown" in row]
    if unknown:
        console.print("not known: the settings are unpublished, or we do not know them:")
    for row in unknown:
        console.print(f"  {row['method']} {row['model']}: {row['unknown']}", markup=False, highlight=False)


def read_paper_table(number: int) -> dict[str, Any]:
    """Return a table of the paper: columns, and rows in groups with published figures and names of recipes.

    >>> read_paper_table(1)["groups"][1]["rows"][0]["recipes"]["cub"]
    'cub_proxy_nca_pp'
    """
    from softwarp.recipe.files import read_settings

    if number not in TABLES:
        known = ", ".join(f"--table {each}" for each in TABLES)
        raise ValueError(
            f"there are no recipes for table {number} of the paper, only for {known}; "
            "Tables 3 and 4 are studies (`softwarp study`), 6 to 8 reality checks"
        )
    return read_settings(Path(str(files("softwarp") / "recipes" / f"table_{number}.yaml")))


def as_table(content: dict[str, Any], number: int) -> "Table":
    """Return the table: for each row the published figures, their deviations and the names of recipes."""
    from rich import box
    from rich.table import Table

    column, digits = partial(Table.add_column, no_wrap=True), content["digits"]
    table = Table(title=f"Table {number} of the paper, in percent", box=box.SIMPLE, padding=(0, 1))
    heads = {
        name: [metric.replace("recall", "R").replace("_", "-").upper() for metric in metrics]
        for name, metrics in content["columns"].items()
    }
    column(table, "method")
    for name, words in heads.items():
        column(table, f"{TITLES[name]}\n{_aligned(words, words, digits)}")
    for group in content["groups"]:
        table.add_section()
        table.add_row(f"[bold]{group['title']}")
        for row in group["rows"]:
            cells = [_cell(row, name, words, digits) for name, words in heads.items()]
            table.add_row(f"{row['method']}\n  {row['model']}", *cells)
    return table


def _cell(row: dict[str, Any], name: str, heads: list[str], digits: int) -> str:
    if name not in row:
        return _aligned(["-"], heads, digits)
    figures = ["-" if value is None else f"{value:.{digits}f}" for value in row[name]]
    spread = [f"±{value:.2f}".replace("0.", ".") for value in row.get("deviations", {}).get(name, ())]
    lines = [figures, spread] if spread else [figures]
    shown = "\n".join(_aligned(line, heads, digits) for line in lines)
    return f"{shown}\n{row.get('recipes', {}).get(name, 'not known')}"


def _aligned(words: list[str], heads: list[str], digits: int) -> str:
    widths = [max(3 + digits, len(head)) for head in heads]
    return " ".join(f"{word:>{width}}" for word, width in zip(words, widths, strict=False))
