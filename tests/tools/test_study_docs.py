"""docs/studies.md: what it shows is what results/ holds."""

import json
import re
from pathlib import Path

import pytest
from study_docs import read_summary, renewed, with_results
from support.study_rows import ABOUT, row

from softwarp.studies import listed_studies, load_study

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "studies.md").read_text()


def test_the_page_shows_what_results_hold():
    assert with_results(PAGE, ROOT / "results") == PAGE, "run make docs"


@pytest.mark.parametrize("study", listed_studies(), ids=lambda study: study.name)
def test_what_a_result_says_in_words_follows_from_its_numbers(study):
    summary = read_summary(study.name, ROOT / "results")
    if summary is not None:
        assert json.loads(json.dumps(renewed(study.name, summary))) == summary, "run make docs"


def test_a_claim_says_where_the_paper_makes_it():
    """Every claim names a section or caption of the paper; what it does not say in so many words is ours."""
    summaries = [read_summary(study.name, ROOT / "results") or {} for study in listed_studies()]
    places = {each["said"] for summary in summaries for each in summary.get("claims", [])}
    assert {"our reading", "section 4.4", "section 4.5", "caption of Fig. 10"} <= places
    assert all(re.match(r"our reading$|section [1-5]|caption of Fig\. \d+$", place) for place in places)
    phases = read_summary("phases", ROOT / "results")
    assert {each["said"] for each in phases["claims"]} == {"our reading"}


@pytest.mark.parametrize("study", listed_studies(), ids=lambda study: study.name)
def test_every_study_has_its_place_and_every_result_its_figures(study):
    assert PAGE.count(f"<!-- study: {study.name} -->") == 1
    summary = read_summary(study.name, ROOT / "results")
    if summary is not None:
        for name in load_study(study.name).draw(summary):
            assert (ROOT / "docs" / "images" / f"study_{name}.svg").is_file(), "run make docs"


def test_a_new_result_fills_its_place_alone(tmp_path):
    points = [{"value": value, **row(recall=0.9, map_r=0.5, avg_dtp=1.0)} for value in (1.0, 2.0)]
    summary = ABOUT | {
        "setting": "delta",
        "points": points,
        "no_warp": points[0],
        "command": "softwarp study delta",
    }
    claims = [{"claim": "a margin helps", "verdict": "not held", "numbers": "90.0"}]
    (tmp_path / "study_delta.json").write_text(json.dumps(summary | {"claims": claims}))
    page = with_results(PAGE, tmp_path)
    filled = page.partition("<!-- study: delta -->")[2].partition("<!-- end of study: delta -->")[0]
    assert "| 2 | **90.0 ± 0.1** |" in filled
    assert "| a margin helps | our reading | not held | 90.0 |" in filled
    assert "images/study_delta.svg" in filled
    assert "results/study_delta.json" in filled
    empty = "<!-- study: alpha -->\n<!-- end of study: alpha -->"
    assert empty in page
