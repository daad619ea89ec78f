"""Writes the results of studies into docs/studies.md, and their figures into docs/images: make docs

What a result says in words, its claims and which figure it redraws, is made again from its numbers first.
"""

import json
from pathlib import Path
from typing import Any

from freshness import note

from softwarp.figures import svg
from softwarp.files import write_json, write_text
from softwarp.report.claims import claims_table
from softwarp.studies import listed_studies, load_study

DOCS = Path("docs")
RESULTS = Path("results")


def main() -> None:
    """Write the words of the results, the page and the figures."""
    for study in listed_studies():
        if summary := read_summary(study.name, RESULTS):
            write_json(RESULTS / f"study_{study.name}.json", renewed(study.name, summary))
    page = DOCS / "studies.md"
    write_text(page, with_results(page.read_text(), RESULTS))
    for study in listed_studies():
        if summary := read_summary(study.name, RESULTS):
            for name, drawing in load_study(study.name).draw(summary).items():
                write_text(DOCS / "images" / f"study_{name}.svg", svg(drawing.figure))


def with_results(text: str, results: Path) -> str:
    """Return the page, with what is between each pair of markers made from `results`, if it is there."""
    for study in listed_studies():
        start, end = f"<!-- study: {study.name} -->\n", f"<!-- end of study: {study.name} -->"
        before, _, rest = text.partition(start)
        if rest:
            summary = read_summary(study.name, results)
            text = (
                before + start + (section(study.name, summary) if summary else "") + end + rest.split(end)[1]
            )
    return text


def section(name: str, summary: dict[str, Any]) -> str:
    """Return figures, table and claims of a study, and the command that made them."""
    module = load_study(name)
    figures = "".join(f"![{each}](images/study_{each}.svg)\n\n" for each in module.draw(summary))
    claims = claims_table(summary["claims"]).markdown() + "\n" if summary.get("claims") else ""
    source = f"By `{summary['command']}` ([results/study_{name}.json](../results/study_{name}.json)).\n"
    shown = module.table(summary)
    source += note(f"study_{name}", summary)
    return f"{figures}{shown.title}:\n\n{shown.markdown()}\n{claims}{source}"


def renewed(name: str, summary: dict[str, Any]) -> dict[str, Any]:
    """Return a result with the words that its study has for these numbers today."""
    module = load_study(name)
    words = {"paper": module.PAPER, "title": module.table(summary).title} | (
        {"claims": module.claims_of(summary)} if "claims" in summary else {}
    )
    return {key: words.get(key, value) for key, value in summary.items()}


def read_summary(name: str, results: Path) -> dict[str, Any] | None:
    """Return what a study left in `results`; None if it was not run yet."""
    path = results / f"study_{name}.json"
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.is_file() else None
    return found


if __name__ == "__main__":
    main()
