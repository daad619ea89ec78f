"""Imports follow the arrows: a file imports what stands in a lower layer, and no circle closes."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "softwarp"
# From the bottom to the top; a folder stands for its files, which may import one another.
LAYERS = (
    {"events", "files", "memory", "processes", "provenance", "explorer"},
    {"figures", "index_table"},
    {"losses", "metrics", "models", "data", "embedding_files", "index_store", "index_faiss"},
    {"recipe"},
    {"recipe_files", "overrides", "budget", "stops", "class_rows"},
    {"runs", "own_data", "space", "step_batches"},
    {"evaluate", "schedule", "repeats", "tasks", "model_folder"},
    {"inference", "job", "tables", "comparisons", "choice"},
    {"bars", "start", "embed_files", "claims", "verify"},
    {"train", "index_updates", "index_sources", "samplers", "remote_postgres", "remote_qdrant"},
    {"trial_queue", "index_queries"},
    {"tune", "retrieve", "embed_tree", "cost", "variants"},
    {"paper_strategy", "benchmark", "insights", "index_info", "remote", "sweeps", "corrections"},
    {"reality_check", "reality_table", "classify"},
    {"report"},
    {"export"},
    {"export_check"},
    {"studies", "serve"},
    {"commands"},
    {"cli"},
    {"__main__", "__init__"},
)


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
    (level,) = [level for level, names in enumerate(LAYERS) if module.split(".")[0] in names]
    return level


def test_every_import_leads_down():
    assert len(MODULES) > 80
    wrong = [
        f"{module} imports {other}"
        for module, path in MODULES.items()
        for other in imports_of(path)
        if layer_of(other) > layer_of(module)
        or (layer_of(other) == layer_of(module) and module.split(".")[0] != other.split(".")[0])
    ]
    assert not wrong, wrong


def test_no_circle_closes():
    graph = {module: imports_of(path) - {module} for module, path in MODULES.items()}
    assert graph["train"] >= {"job", "evaluate"}
    TopologicalSorter(graph).prepare()  # raises CycleError with the circle
