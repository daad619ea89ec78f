"""Any runs and studies -> one page."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from softwarp.fair.benchmark_result import Benchmark
from softwarp.fair.reality_table import RealityCheck
from softwarp.report.benchmark import benchmark_parts, best_runs, reality_parts
from softwarp.report.claims import claims_table
from softwarp.report.page import Illustration, Section, write_page
from softwarp.report.runs import machine, read_entries, run_parts
from softwarp.report.tuning import read_searches, search_parts
from softwarp.runs.result import read_json_as
from softwarp.tables import from_markdown

CURE = "make it again with the command that wrote the folder"


def write_report(path: Path, folders: Sequence[Path], command: str) -> None:
    """Write a page on what these folders hold: runs, demos, benchmarks, reality checks, searches, studies."""
    parts: list[Section] = []
    runs: list[Path] = []
    for folder in dict.fromkeys(folders):
        found, within = parts_of(folder)
        parts += found
        runs += within
    entries = read_entries(runs)
    parts += run_parts(entries)
    names = ", ".join(folder.resolve().name for folder in dict.fromkeys(folders))
    write_page(path, f"softwarp: {names}", parts, note=f"Made by: {command}")


def parts_of(folder: Path) -> tuple[list[Section], list[Path]]:
    """Return the parts of a folder, and the runs in it that are to be shown together with all others."""
    if (folder / "benchmark.json").is_file():
        outcome = read_json_as(Benchmark, folder / "benchmark.json", cure=CURE)
        return benchmark_parts(outcome), best_runs(folder, outcome)
    if (folder / "reality_check.json").is_file():
        return reality_parts(read_json_as(RealityCheck, folder / "reality_check.json", cure=CURE)), []
    if (folder / "trials.json").is_file():
        return search_parts(read_searches(folder), (folder / "best.yaml").read_text()), []
    if (folder / "demo.json").is_file():
        names = json.loads((folder / "demo.json").read_text())["runs"]
        return [], [folder / name for name in names]
    if (folder / "summary.json").is_file():
        return study_parts(folder), []
    return [], [folder]


def study_parts(folder: Path) -> list[Section]:
    """Return what `softwarp study` wrote into a folder: table, claims, figures."""
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    table = from_markdown((folder / "table.md").read_text())
    tables = [replace(table, title=summary.get("title", ""))]
    if summary.get("claims"):
        tables.append(claims_table(summary["claims"]))
    return [
        Section(
            title=f"Study {summary['study']}: {summary['paper']}",
            tables=tables,
            figures=[
                Illustration(each.stem, each.read_text(), caption=each.stem.replace("_", " "))
                for each in sorted(folder.glob("*.svg"))
            ],
            note=f"Made by: {summary['command']}; with {machine(summary['environment'])}. The numbers of "
            "each figure are in a CSV file in the study's folder.",
        )
    ]
