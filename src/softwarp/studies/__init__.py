"""One file per study; those with a `PAPER` redraw a figure or table of the paper: `softwarp study`.

What such a file holds is written in docs/studies.md.
"""

import ast
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from softwarp.names import did_you_mean


class Listed(NamedTuple):
    """A study as `softwarp study` lists it."""

    name: str
    paper: str  # the figure or table that it redraws
    about: str  # the first line of its docstring


def listed_studies() -> list[Listed]:
    """Return the studies of the paper by name; their files are read, not imported: that takes seconds."""
    found = (_listed(path) for path in sorted(Path(__file__).parent.glob("*.py")))
    return [study for study in found if study is not None]


def load_study(name: str) -> ModuleType:
    """Return the module of a study: one of softwarp's by name, or any other by its file."""
    if name.endswith(".py"):
        return _load_file(Path(name))
    names = [study.name for study in listed_studies()]
    if name not in names:
        answer = did_you_mean(name, names, "`softwarp study` lists them")
        raise ValueError(f"there is no study {name}; {answer}")
    return import_module(f"softwarp.studies.{name}")


def _listed(path: Path) -> Listed | None:
    """What a file says of itself; None if it has no PAPER."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PAPER":
            about = (ast.get_docstring(tree) or "").partition("\n")[0]
            return Listed(path.stem, str(ast.literal_eval(node.value)), about)
    return None


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    if _listed(path) is None:
        raise ValueError(f"{path} is not a study: a Python file with PAPER, main, table and draw")
    spec = spec_from_file_location(f"study_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
