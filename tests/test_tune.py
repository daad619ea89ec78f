"""Hyper-parameter search: on validation classes, resumed where it stopped."""

import pytest
from support.tiny_runs import PHASE, tiny

from softwarp import tune


def test_a_search_resumes_where_it_stopped_and_never_sees_test_classes(tmp_path, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    recipe = tiny(phases=[PHASE])
    first = tune.search(recipe, tmp_path, trials=1)
    with monkeypatch.context() as patch:
        patch.setattr(tune, "train", interrupt)
        with pytest.raises(KeyboardInterrupt):
            tune.search(recipe, tmp_path, trials=2)
    both = tune.search(recipe, tmp_path, trials=2)
    assert len(both) == 2  # the interrupted one does not count
    assert len({row["settings"]["learning_rate"] for row in both}) == 2
    assert first[0] in both
    assert both[0]["value"] >= both[1]["value"]
    assert set(both[0]["settings"]) == {"learning_rate", "proxy_learning_rate", "alpha", "k1", "k2", "scale"}
    impossible = tiny(batches={"classes": 21, "samples": 1})
    with pytest.raises(ValueError, match="only 20 classes"):
        tune.search(impossible, tmp_path / "impossible", trials=2)
    with pytest.raises(ValueError, match=r"evaluation\.split"):
        tune.search(tiny(evaluation={"split": "test"}), tmp_path, trials=1)
