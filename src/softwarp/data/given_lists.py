"""A DataFrame, or paths and labels -> a CSV file of images."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from softwarp.files import write_csv

COLUMNS = ("path", "label", "split")


def write_list(data: Any, file: Path) -> Path:
    """Write the images of a DataFrame with columns path and label, or of (paths, labels); return the file.

    A column split, or a third sequence, may say train, validation or test.
    """
    columns = _columns(data)
    write_csv(file, [tuple(columns), *zip(*columns.values(), strict=True)])
    return file


def _columns(data: Any) -> dict[str, list[str]]:
    """Path and label, perhaps split, of every image."""
    given: dict[str, Iterable[Any]]
    if hasattr(data, "columns"):  # a DataFrame of pandas, polars or others
        given = {name: data[name] for name in COLUMNS if name in data.columns}
        if missing := [name for name in COLUMNS[:2] if name not in given]:
            there = ", ".join(map(str, data.columns))
            raise ValueError(f"the DataFrame has no column {' and '.join(missing)}; it has {there}")
    elif isinstance(data, tuple | list) and len(data) in (2, 3):
        given = dict(zip(COLUMNS, data, strict=False))
    else:
        raise ValueError(
            f"a {type(data).__name__} is not a set of images; give a folder, a CSV file, a DataFrame "
            "with columns path and label, a pair (paths, labels), or a recipe"
        )
    columns = {name: [str(each) for each in column] for name, column in given.items()}
    counts = {name: len(column) for name, column in columns.items()}
    if len(set(counts.values())) > 1 or not counts["path"]:
        said = ", ".join(f"{count:,} {name}s" for name, count in counts.items())
        raise ValueError(f"every image needs a path and a label, but there are {said}")
    return columns | {"path": [str(Path(path).absolute()) for path in columns["path"]]}
