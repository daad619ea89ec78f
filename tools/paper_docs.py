"""Writes docs/paper.md from docs/paper.yaml: every part of the paper, and where it is here. make docs"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from softwarp.commands.paper_table import read_paper_table
from softwarp.files import write_text
from softwarp.recipe.files import read_settings

PAGE = Path("docs/paper.md")
PARTS = Path("docs/paper.yaml")
RESULTS = Path("results")
HEAD = """# The paper, part by part

Every section, figure, table and equation of *Realigned Softmax Warping for Deep Metric Learning* (DeMoor &
Prevost), in the order of its text, and where it is here. The section that discusses a part is in brackets;
"diagram" means that there is nothing to compute. [Reproduce the paper](reproduce.md) has the first
commands, [studies](studies.md) the results, claim by claim. `make docs` writes this page from
`docs/paper.yaml`, and a test counts the parts.
"""
TITLES = {
    "sections": "Sections",
    "figures": "Figures",
    "tables": "Tables",
    "equations": "Equations and statements",
}
HEADS = ("", "about", "here", "recipes", "result", "what differs, and why")


def main() -> None:
    """Write the page."""
    write_text(PAGE, page(read_settings(PARTS)))


def page(parts: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the page: a table of each kind of part."""
    return HEAD + "".join(f"\n## {TITLES[kind]}\n\n{table(parts[kind])}" for kind in TITLES)


def table(parts: Sequence[Mapping[str, Any]]) -> str:
    """Return a row per part."""
    lines = [HEADS, ("---",) * len(HEADS), *map(row, parts)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def row(part: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of a part; those of a study and of a table of recipes are made."""
    place = f" ({part['in']})" if "in" in part else ""
    if part.get("diagram"):
        return (part["name"] + place, part["about"], "diagram", "", "", "nothing to compute")
    study = part.get("study")
    here = f"`softwarp study {study}`" if study else part["here"]
    return (part["name"] + place, part["about"], here, recipes(part), links(results(part)), part["differs"])


def recipes(part: Mapping[str, Any]) -> str:
    """Return the recipes of a part: named, or counted if it is a table of them."""
    if "table" in part:
        rows = (each for group in read_paper_table(part["table"])["groups"] for each in group["rows"])
        named = [name for each in rows for name in each.get("recipes", {}).values()]
        return f"{len(set(named))}: `softwarp recipes --table {part['table']}`"
    return ", ".join(f"`{name}`" for name in part.get("recipes", ()))


def results(part: Mapping[str, Any]) -> list[str]:
    """Return the names of the result files of a part."""
    made = f"study_{part.get('study')}"
    return [*part.get("results", ()), *([made] if (RESULTS / f"{made}.json").is_file() else [])]


def links(names: Sequence[str]) -> str:
    """Return links to result files."""
    return ", ".join(f"[{name}](../results/{name}.json)" for name in names)


if __name__ == "__main__":
    main()
