"""docs/paper.md leaves out no part of the paper, and all that cites a figure or table has its number."""

import re
from pathlib import Path

import pytest
from paper_docs import TITLES, page, results, row

from softwarp.commands.paper_table import TABLES
from softwarp.recipe.files import find_recipe, read_recipe, read_settings, recipe_names
from softwarp.studies import listed_studies

ROOT = Path(__file__).parents[2]
PARTS = read_settings(ROOT / "docs" / "paper.yaml")
ALL = [part for kind in TITLES for part in PARTS[kind]]
# Counted in the LaTeX of the paper.
SECTIONS = (
    *("1", "2", "2.1", "2.2", "2.3", "2.4", "3", "3.1", "3.2", "3.3", "3.4", "4"),
    *(f"4.{number}" for number in range(1, 9)),
    *("4.8.1", "4.8.2", "5", "A", "B", "B.1", "B.2", "B.3", "C", "C.1", "C.2"),
    *("D", "D.1", "D.1.1", "D.1.2", "D.2", "D.2.1", "D.3", "D.4"),
)
COUNTS = {"Fig.": 12, "Table": 8, "Eq.": 16}
CITED = re.compile(r"\b(Figs?\.|Tables?|Eqs?\.) ?(\d+(?:(?:, | and | to )\d+)*)")


def cited(text):
    """Figures, tables and equations that a text names, like ("Fig.", 6)."""
    return {
        (kind.replace("s", ""), int(number))
        for kind, numbers in CITED.findall(text)
        for number in re.findall(r"\d+", numbers)
    }


def test_no_part_of_the_paper_is_left_out():
    assert tuple(part["name"] for part in PARTS["sections"]) == SECTIONS
    for kind, word in (("figures", "Fig."), ("tables", "Table")):
        assert [part["name"] for part in PARTS[kind]] == [f"{word} {n + 1}" for n in range(COUNTS[word])]
    names = [part["name"] for part in PARTS["equations"]]
    assert [name for name in names if name.startswith("Eq.")] == [f"Eq. {n + 1}" for n in range(16)]
    assert set(names) >= {"Lemma 3.1", "Prop. 3.2"}
    for part in [*PARTS["figures"], *PARTS["tables"], *PARTS["equations"]]:
        assert part["in"] in SECTIONS


def test_parts_have_no_unknown_keys():
    """A comma in a text without quotes would start a key."""
    known = {"name", "in", "about", "diagram", "study", "here", "recipes", "results", "table", "differs"}
    for part in ALL:
        assert set(part) <= known, part["name"]


def test_the_page_is_made_from_the_parts(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert page(PARTS) == (ROOT / "docs" / "paper.md").read_text(), "run make docs"
    for part in ALL:
        assert all(row(part)[place] for place in (0, 1, 2, 5)), part["name"]


def test_diagrams_are_the_three_that_compute_nothing():
    assert [part["name"] for part in ALL if part.get("diagram")] == ["Fig. 1", "Fig. 2", "Fig. 4"]


def test_what_the_page_names_exists(monkeypatch):
    monkeypatch.chdir(ROOT)
    studies = {study.name for study in listed_studies()}
    assert {part["study"] for part in ALL if "study" in part} <= studies
    for part in ALL:
        for name in part.get("recipes", ()):
            assert name in recipe_names()
        for name in results(part):
            assert (ROOT / "results" / f"{name}.json").is_file()
        assert part.get("table", TABLES[0]) in TABLES
        for name in re.findall(r"softwarp study (\w+)", part.get("here", "")):
            assert name in studies


def test_every_recipe_of_a_table_is_reached_from_its_row():
    by_table = {part["name"]: part for part in PARTS["tables"]}
    for name in recipe_names():
        table = read_recipe(find_recipe(name)).paper.get("table")
        if table:
            assert name in by_table[table].get("recipes", ()) or "table" in by_table[table], name


@pytest.mark.parametrize("study", listed_studies(), ids=lambda study: study.name)
def test_a_study_and_all_that_lists_it_have_the_numbers_of_the_paper(study):
    typed = {part["name"] for part in ALL if part.get("study") == study.name}
    typed = {name for name in typed if name.startswith(("Fig.", "Table"))}
    assert {f"{kind} {number}" for kind, number in cited(study.paper)} == typed
    before = (ROOT / "docs" / "studies.md").read_text().partition(f"<!-- study: {study.name} -->")[0]
    heading = re.findall(r"^## (.*)$", before, flags=re.MULTILINE)[-1]
    assert cited(heading) <= cited(study.paper)


def test_no_text_cites_what_the_paper_does_not_have():
    files = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]
    files += [path for folder in ("src", "tests", "tools") for path in (ROOT / folder).rglob("*.py")]
    files += (ROOT / "results").glob("study_*.json")
    assert len(files) > 300
    for path in files:
        for kind, number in cited(path.read_text()):
            assert 1 <= number <= COUNTS[kind], f"{path.name}: {kind} {number}"
