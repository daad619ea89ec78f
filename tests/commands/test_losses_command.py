"""`softwarp losses`: made from the cards."""

import pytest
from typer.testing import CliRunner

from softwarp.cli import app, main
from softwarp.losses import LOSSES, card_of
from softwarp.losses.contract import Card, Training, settings_of


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
    for text in (card.citation, card.equation, card.needs(), str(card.training)):
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
    assert "did you mean arcface" in capsys.readouterr().err


def test_needs_in_words():
    training = Training(by="ours", batch=8, optimizer="sgd", rate_ratio=2.0, details="d")
    assert str(training) == "8 random images, sgd, its own parameters at 2 times the rate (ours: d)"
    words = {"title": "a", "citation": "b", "equation": "c", "kind": "proxies"}
    card = Card(**words, year=1, training=training, proxy_rate_ratio=1.0)
    assert card.needs() == "any batch"
    assert Card(**{**vars(card), "min_samples": 3}).needs() == "3 samples of each class"
    assert Card(**{**vars(card), "min_classes": 2}).needs() == "2 classes x 1 samples"
