"""A finished run -> results/NAME.json, without the path of its data.

python tools/keep_run.py runs/cub_lite-validation "softwarp train cub_lite data.root=CUB_200_2011"
"""

import json
from pathlib import Path
from typing import Any

import typer

from softwarp.files import write_json
from softwarp.runs.run import Run


def collect(run: Run, command: str) -> dict[str, Any]:
    """Return the result with its recipe, history and environment, and the command that made it."""
    recipe = run.recipe().model_dump(mode="json")
    recipe["data"].pop("root")
    environment = json.loads((run.folder / "environment.json").read_text())
    return {
        "command": command,
        **run.result().model_dump(mode="json", by_alias=True),
        "history": run.history(),
        "recipe": recipe,
        "environment": environment,
    }


def main(folder: Path, command: str, results: Path = Path("results")) -> None:
    """Write results/NAME.json, NAME being that of the run's folder."""
    write_json(results / f"{folder.name}.json", collect(Run(folder), command))


if __name__ == "__main__":
    typer.run(main)
