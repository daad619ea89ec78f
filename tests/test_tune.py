"""Hyper-parameter search: on validation classes, resumed where it stopped."""

import pytest
from support.tiny_runs import PHASE, tiny

from softwarp import tune


def test_a_search_resumes_where_it_stopped(tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    recipe = tiny(phases=[PHASE])
    first = tune.search(recipe, tmp_path, trials=1)
    with monkeypatch.context() as patch:
        patch.setattr(tune, "training", interrupt)
        with pytest.raises(KeyboardInterrupt):
            tune.search(recipe, tmp_path, trials=2)
    both = tune.search(recipe, tmp_path, trials=2)
    assert len(both.trials) == 2  # the interrupted one does not count
    assert len({trial.settings["phases.0.learning_rate"] for trial in both.trials}) == 2
    assert first.best in both.trials
    assert both.trials[0].value >= both.trials[1].value
    assert both.best_recipe().loss.settings["k1"] == both.best.settings["loss.settings.k1"]
    impossible = tiny(batches={"classes": 21, "samples": 1})
    with pytest.raises(ValueError, match="only 20 classes"):
        tune.search(impossible, tmp_path / "impossible", trials=2)
