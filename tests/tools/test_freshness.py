"""No table in the docs hides that its result is older than what it measures."""

import json
from pathlib import Path

import freshness
import pytest

from softwarp.runs.provenance import RULES

ROOT = Path(__file__).parents[2]
RESULTS = {path.stem: path for path in sorted((ROOT / "results").glob("*.json"))}
# To be made again. A result that gets older has to be added here and shows it below its table; one that was
# made again has to be taken out.
OLDER = {
    "own_folders",
}


def test_every_result_says_which_rules_it_depends_on():
    assert set(freshness.NEEDS) == set(RESULTS)
    assert set().union(*freshness.NEEDS.values()) <= set(RULES)


@pytest.mark.parametrize("name", freshness.NEEDS)
def test_every_result_says_which_code_made_it(name):
    found = list(freshness.codes(json.loads(RESULTS[name].read_text())))
    assert found
    assert all(len(code["commit"]) == 40 and set(code["rules"]) <= set(RULES) for _, code in found)


def test_results_that_are_older_than_a_rule_are_known():
    assert {name for name in freshness.NEEDS if freshness.stale(name, read(name))} == OLDER


@pytest.mark.parametrize("name", sorted(OLDER))
def test_the_docs_say_that_a_table_is_older_than_a_rule(name):
    pages = [page.read_text() for page in (*ROOT.glob("docs/*.md"), ROOT / "README.md")]
    said = freshness.note(name, read(name)).strip()
    assert any(name in page and said in page for page in pages)


def test_one_part_that_is_older_makes_the_whole_older():
    new, old = ({"environment": {"code": {"rules": RULES | change}}} for change in ({}, {"metrics": 0}))
    assert freshness.stale("demo", {"rows": {"a": new, "b": new}}) == []
    assert freshness.stale("demo", {"rows": {"a": new, "b": old}}) == ["metrics"]
    assert freshness.stale("demo", {"rows": {}}) == ["automatic", "metrics", "recipe"]


def test_rows_that_start_at_random_do_not_depend_on_class_means():
    old = {"environment": {"code": {"rules": RULES | {"automatic_from_means": 0}}}}
    assert freshness.stale("automatic_warp", {"rows": {"tuned warp from random": old}}) == []
    assert freshness.stale("automatic_warp", {"rows": {"tuned warp from features": old}}) == [
        "automatic_from_means"
    ]


def read(name):
    return json.loads(RESULTS[name].read_text())
