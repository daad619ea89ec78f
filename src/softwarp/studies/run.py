"""A study from its trainings to its files: summary, table, figures and their numbers."""

from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from softwarp.events import OnEvent, shown
from softwarp.figures import write_drawing
from softwarp.files import write_json
from softwarp.runs.provenance import environment
from softwarp.tables import Table, write_table


class StudyOutcome(NamedTuple):
    """What a study found: its summary, and the table of it."""

    summary: dict[str, Any]
    table: Table

    def _repr_html_(self) -> str:
        return self.table.html()


def study_name(study: ModuleType) -> str:
    """Return what a study is called: as its file is."""
    return Path(str(study.__file__)).stem


def run_study(
    study: ModuleType,
    output: Path | str,
    *,
    quick: bool = False,
    results: Path | None = None,
    command: str = "",
    on_event: OnEvent | None = None,
    **options: Any,
) -> StudyOutcome:
    """Return what a study found, after writing summary, table and figures into its folder.

    The same call resumes a study that was stopped.

    Args:
        study: its module, such as `softwarp.studies.alpha`, or what `softwarp.studies.load_study` returns.
        output: folder of the study.
        quick: takes under a minute, and gives poor figures.
        results: also writes the summary to study_NAME.json in this folder.
        command: that makes it again, for the summary.
        on_event: called with notes and progress; by default bars on a terminal or in a notebook.
        options: of the study's own `main`, such as words=["data.root=CUB_200_2011"] and seeds=3.
    """
    name, folder = study_name(study), Path(output)
    with shown(on_event) as listener:
        found = study.main(**options, output=folder, quick=quick, on_event=listener)
    about = {"study": name, "paper": study.PAPER, "command": command}
    summary = about | found | {"environment": environment()}
    table: Table = study.table(summary)
    summary["title"] = table.title
    write_json(folder / "summary.json", summary)
    if results is not None:
        write_json(results / f"study_{name}.json", summary)
    write_table(folder / "table", table)
    for stem, drawing in study.draw(summary).items():
        write_drawing(folder / stem, drawing)
    return StudyOutcome(summary, table)
