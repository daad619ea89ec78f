"""docs/losses.md: made from the cards and from results/."""

import json
from pathlib import Path

import pytest
from losses_docs import learned, page
from losses_on_glyphs import losses_to_study

from softwarp.losses import LOSSES, TripletLoss

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "results" / "losses_on_glyphs.json"
BENCHMARK = ROOT / "results" / "benchmark_losses.json"


def test_the_docs_are_made_from_the_cards():
    assert (ROOT / "docs" / "losses.md").read_text() == page(RESULT, BENCHMARK), "run make docs"


def test_a_loss_without_results_has_a_row_and_empty_cells(monkeypatch):
    monkeypatch.setitem(LOSSES, "another_triplet", TripletLoss)
    (row,) = [line for line in page(RESULT, BENCHMARK).splitlines() if "| `another_triplet` |" in line]
    cells = [cell.strip() for cell in row.split("|")]
    assert (cells[2], cells[7:9]) == ("Triplet", ["", ""])


def test_only_losses_without_a_row_are_trained():
    known = [name for name in LOSSES if name not in ("hist", "cbml")]
    assert losses_to_study(known, (), False) == ["cbml", "hist"]
    assert losses_to_study(LOSSES, ["arcface"], False) == ["arcface"]
    assert losses_to_study(known, (), True) == list(LOSSES)
    with pytest.raises(ValueError, match="'arcfaec'"):
        losses_to_study(known, ["arcfaec"], False)


def test_every_loss_ended_above_the_untrained_network():
    rows = json.loads(RESULT.read_text())["losses"]
    assert len(rows) > 40
    assert set(rows) <= set(LOSSES)  # a new loss has its row once the study has seen it
    assert [name for name, row in rows.items() if not learned(row)] == []


def test_learned_means_better_in_every_metric():
    before = {"recall@1": 0.7, "map@r": 0.3}
    assert learned({"recall@1": 0.8, "map@r": 0.4, "untrained": before})
    assert not learned({"recall@1": 0.8, "map@r": 0.3, "untrained": before})
    assert not learned({"recall@1": 0.6, "map@r": 0.4, "untrained": before})
