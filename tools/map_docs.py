"""Writes docs/map.md: every file of the package in a line, from its docstring. make docs"""

import ast
from pathlib import Path

from softwarp.files import write_text

SOURCE = Path("src/softwarp")
PAGE = Path("docs/map.md")
HEAD = """# Where everything is

A line per file, from its docstring, written by `make docs`. Imports lead down from layer to layer and never
back: `tests/test_arrows.py` holds them.

One image on its way through `softwarp.train("my_images")`, in the order of the calls: `training/entry.py` is
the door; `data/tables.py` and `data/folders.py` make a table of the folder; `training/own_recipe.py` chooses
a recipe for it, and `training/own_images.py` what fits into the time and whether training helps.
`training/train.py` trains: it divides the table (`data/sources.py`, by `data/splits.py`), builds model, loss
and optimizer (`training/job.py`, `training/start.py`), and goes through its loop, where `data/images.py`
makes batches, `models/embedder.py` embeddings, and `losses/` the loss. At its end `training/judge.py` asks
`evaluation.py` and `metrics/` for the figures, and `runs/run.py` writes `result.json`.

One query on its way through `softwarp serve`: `serve/page/page.js` sends the image, `serve/app.py` takes it,
`serve/uploads.py` makes pixels of it, and `serve/batches.py` a vector, by `inference.py`. `serve/lookup.py`
asks `index/index.py` for the nearest, which `index/searching.py` finds, by a scan or with
`index/faiss_index.py`, and answers in the form of `serve/answers.py`.
"""
ROOMS = (
    *(
        "recipe",
        "recipes",
        "losses",
        "metrics",
        "models",
        "data",
        "runs",
        "frozen",
        "training",
        "tuning",
        "fair",
        "index",
    ),
    *("export", "faces", "report", "serve", "explorer", "studies", "commands"),
)


def main() -> None:
    """Write the page."""
    write_text(PAGE, page(SOURCE))


def page(source: Path) -> str:
    """Return the page: the files at the top, then room by room."""
    rooms = {path.parent.name for path in source.glob("*/__init__.py")}
    if unknown := rooms ^ set(ROOMS):
        raise ValueError(f"ROOMS in tools/map_docs.py and the folders of {source} differ: {sorted(unknown)}")
    parts = [HEAD, "\n## At the top\n\n", table(source)]
    for room in ROOMS:
        parts += [f"\n## {room}/\n\n{about(source / room / '__init__.py')}\n\n", table(source / room)]
    return "".join(parts)


def table(folder: Path) -> str:
    """Return a row per file of a folder."""
    rows = [f"| `{path.name}` | {about(path)} |\n" for path in sorted(folder.glob("[!_]*.py"))]
    return "| file | about |\n|---|---|\n" + "".join(rows) if rows else ""


def about(path: Path) -> str:
    """Return the first line of a file's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not text:
        raise ValueError(f"{path} has no docstring that says what it is for")
    return text.partition("\n")[0].replace("|", "\\|")


if __name__ == "__main__":
    main()
