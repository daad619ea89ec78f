"""`softwarp losses` and docs/losses.md: both made from the cards."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from softwarp.cli import app, main
from softwarp.losses import LOSSES, card_of
from softwarp.losses.card import Card, settings_of
from softwarp.studies.losses_docs import learned, page

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "results" / "losses_on_glyphs.json"


def run(*arguments):
    return CliRunner(env={"COLUMNS": "300"}).invoke(app, ["losses", *arguments], catch_exceptions=False)


def test_all_losses_are_listed():
    result = run()
    assert result.exit_code == 0
    lines = result.output.splitlines()
    for name, loss in LOSSES.items():
        (line,) = [line for line in lines if line.strip("│ ").split(" ")[0] == name]
        card = card_of(name)
        for word in (card.title, str(card.year), loss.distance, card.kind, card.needs()):
            assert word in line


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_explained(name):
    result, card = run(name), card_of(name)
    assert result.exit_code == 0
    for text in (card.citation, card.equation, card.needs()):
        assert text in result.output
    for setting, default in settings_of(LOSSES[name]).items():
        assert f"{setting} = {default}" in result.output
    for setting, (_, low, _high) in card.search_space.items():
        assert f"{setting}: {low:g} to" in result.output


def test_a_misspelt_loss_is_answered_with_the_nearest(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["softwarp", "losses", "arcfaec"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert "no loss is called 'arcfaec'; did you mean arcface" in capsys.readouterr().err


def test_the_docs_are_made_from_the_cards():
    text = (ROOT / "docs" / "losses.md").read_text()
    assert text == page(RESULT, RESULT.with_name("benchmark_losses.json")), (
        "run python -m softwarp.studies.losses_docs"
    )


def test_needs_in_words():
    card = Card(title="a", citation="b", year=1, equation="c", kind="pairs")
    assert card.needs() == "any batch"
    assert Card(**{**vars(card), "min_samples": 3}).needs() == "3 samples of each class"
    assert Card(**{**vars(card), "min_classes": 2}).needs() == "2 classes x 1 samples"


def test_every_loss_ended_above_the_untrained_network():
    rows = json.loads(RESULT.read_text())["losses"]
    assert set(rows) == set(LOSSES)
    assert [name for name, row in rows.items() if not learned(row)] == []


def test_learned_means_better_in_every_metric():
    before = {"recall@1": 0.7, "map@r": 0.3}
    assert learned({"recall@1": 0.8, "map@r": 0.4, "untrained": before})
    assert not learned({"recall@1": 0.8, "map@r": 0.3, "untrained": before})
    assert not learned({"recall@1": 0.6, "map@r": 0.4, "untrained": before})
