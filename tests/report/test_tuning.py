"""The page of a search: its numbers, and that nothing is loaded from elsewhere."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.tiny_runs import PHASE, tiny

from softwarp.report.page import write_page
from softwarp.report.tuning import (
    bound_sentences,
    importances,
    rising_sentences,
    search_parts,
    short_table,
    states,
    trials_table,
)
from softwarp.tuning.search import Study, Trial
from softwarp.tuning.space import Parameter

SPACE = {
    "phases.0.learning_rate": Parameter("log", 1e-4, 1e-1),
    "loss.settings.scale": Parameter("auto", 0.1, 10.0),
    "batches.samples": Parameter("int", 2, 4),
    "optimizer.name": Parameter("choice", choices=("adam", "<sgd>")),
}


def trial(number, value, state="complete"):
    settings = {
        "phases.0.learning_rate": value / 10,
        "loss.settings.scale": f"auto:{(number * 7 % 10) + 0.2:.4g}",
        "batches.samples": 2 + number % 3,
        "optimizer.name": ("adam", "<sgd>")[number % 2],
    }
    return Trial(number, settings, value, state, "", 1.0, ((1, value),), Path(f"trial-{number:04d}"))


@pytest.fixture
def study():
    trials = [trial(number, 0.9 - 0.05 * number) for number in range(12)]
    others = [trial(12, 0.2, "pruned"), trial(13, 0.01, "blew up")]
    return Study(tiny(phases=[PHASE]), SPACE, "map@r", (*trials, *others))


def test_the_parameter_that_decides_is_the_most_important(study):
    found = importances(study)
    assert next(iter(found)) == "phases.0.learning_rate"
    assert sum(found.values()) == pytest.approx(1)
    few = Study(study.recipe, SPACE, "map@r", study.trials[:3])
    assert importances(few) == {}


def test_tables_show_the_best_first_in_percent(study):
    wide, narrow = trials_table(study), short_table(study)
    assert [row[2].text for row in wide.rows][:2] == ["90.0", "85.0"]
    assert [row[2].best for row in wide.rows] == [True] + [False] * 9
    assert "scale auto:0.2" in narrow.rows[0][2].text
    assert narrow.rows[0][3].text == "90.0"
    assert states(study) == "12 complete, 1 pruned, 1 blew up"


def test_the_course_of_a_search_is_the_best_so_far():
    """In the order in which trials began; one that was pruned found nothing."""
    order = [trial(2, 0.6), trial(0, 0.5), trial(3, 0.4), trial(1, 0.9, "pruned")]
    assert Study(tiny(phases=[PHASE]), SPACE, "map@r", tuple(order)).course() == (0.5, 0.5, 0.6, 0.6)


def test_a_best_value_on_a_bound_is_said(study):
    sentences = bound_sentences(study)
    assert [re.findall(r"best (\S+) ", sentence) for sentence in sentences] == [
        ["phases.0.learning_rate"],
        ["batches.samples"],
    ]
    assert "upper bound of log:0.0001:0.1" in sentences[0]
    assert "lower bound of int:2:4" in sentences[1]


def test_the_page_is_whole_and_safe(study, tmp_path):
    write_page(
        tmp_path / "page.html", "search", search_parts({"": study}, "seed: 0"), note="softwarp tune <x>"
    )
    page = (tmp_path / "page.html").read_text()
    assert page.count("data:image/svg") == 4  # history, importances, slices, parallel coordinates
    assert not re.search(r'(src|href)="http|url\(http|<script', page)
    assert "softwarp tune &lt;x&gt;" in page
    assert "<sgd>" not in page
    assert len((tmp_path / "page-figures" / "slices.csv").read_text().splitlines()) == 15
    alone = Study(study.recipe, SPACE, "map@r", study.trials[:1])
    assert "Importances" not in [part.title for part in search_parts({"": alone}, "seed: 0")]


def test_a_best_trial_that_was_still_rising_is_said(study):
    def sentences(*looks):
        best = replace(study.best, looks=tuple(enumerate(looks, 1)))
        return rising_sentences(replace(study, trials=(best, *study.trials[1:])))

    assert "after 3 epochs" in sentences(0.1, 0.2, 0.3)[0]
    assert sentences(0.1, 0.3, 0.3) == []
    assert sentences(0.9) == []  # a single look shows no curve
