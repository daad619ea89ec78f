"""Imports follow the arrows: a file imports what stands in a lower layer, and no circle closes."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "softwarp"
# From the bottom to the top. A folder stands for its files, which may import one another; the parts of a
# layer may not.
LAYERS = (
    {"events", "files", "memory", "names", "processes", "explorer"},
    {"tables", "figures", "losses", "metrics", "models", "data"},
    {"recipe"},
    {"runs", "evaluation"},
    {"export"},
    {"inference"},
    {"frozen"},
    {"training"},
    {"tuning"},
    {"fair", "index", "faces"},
    {"report", "serve"},
    {"studies"},
    {"commands"},
)
FRONT = {"__init__", "__main__", "cli"}  # nothing imports them
HALL = 12  # files at the top, at most


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


MODULES = {module_of(path): path for path in SOURCE.rglob("*.py")}


def imports_of(path: Path) -> set[str]:
    """All modules of softwarp that a file imports, also inside functions; not those for types alone."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{name.name}" for name in node.names}
            found |= {name if name.removeprefix("softwarp.") in MODULES else node.module for name in inner}
    ours = {name.removeprefix("softwarp.") for name in found if name.startswith("softwarp.")}
    return ours & set(MODULES)


def layer_of(module: str) -> int:
    top = module.split(".")[0]
    (level,) = [level for level, names in enumerate((*LAYERS, FRONT)) if top in names]
    return level


def test_every_import_leads_down():
    assert len(MODULES) > 80
    wrong = [
        f"{module} imports {other}"
        for module, path in MODULES.items()
        if module not in FRONT
        for other in imports_of(path)
        if layer_of(other) > layer_of(module)
        or (layer_of(other) == layer_of(module) and module.split(".")[0] != other.split(".")[0])
    ]
    assert not wrong, wrong


def test_no_circle_closes():
    graph = {module: imports_of(path) - {module} for module, path in MODULES.items()}
    assert graph["training.train"] >= {"training.job", "training.judge"}
    TopologicalSorter(graph).prepare()  # raises CycleError with the circle


def test_the_hall_holds_what_everybody_needs():
    hall = [path.name for path in SOURCE.glob("*.py")]
    assert "files.py" in hall
    assert len(hall) <= HALL, hall
