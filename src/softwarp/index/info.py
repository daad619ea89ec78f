"""What there is to know of an index at a glance."""

from datetime import datetime
from typing import Any

from softwarp.index.index import Index
from softwarp.index.table import TABLE


def facts_of(index: Index) -> dict[str, Any]:
    """Return counts, model, kind, folders, size and time of an index, ready for JSON."""
    classes = index.store.classes()
    changed = (index.folder / TABLE).stat().st_mtime
    return {
        "index": str(index.folder),
        "images": len(index),
        "classes": len(classes),
        "without_class": len(index) - sum(classes.values()),
        "model": index.model_name,
        "distance": index.distance,
        "dimensions": index.dimensions,
        "kind": index.kind,
        "recall@10": index.recall,
        "whole": not index.damaged,
        "root": str(index.root),
        "sources": index.store.settings["sources"],
        "bytes": sum(path.stat().st_size for path in index.folder.rglob("*") if path.is_file()),
        "removed_rows": len(index.store.removed),
        "changed": datetime.fromtimestamp(changed).astimezone().isoformat(timespec="seconds"),
    }
