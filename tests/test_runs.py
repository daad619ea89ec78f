import os
import random

import numpy as np
import pytest
import torch

from softwarp.overrides import write_out
from softwarp.recipe import parse_recipe
from softwarp.runs import Run, environment, random_state, set_random_state

RECIPE = parse_recipe(
    {
        "loss": {"name": "euclidean_softmax"},
        "phases": [{"epochs": 1, "learning_rate": 0.1, "proxy_learning_rate": 0.1}],
    }
)


def test_a_run_gives_back_what_it_was_given(tmp_path):
    run = Run.create(tmp_path / "run", RECIPE)
    run.log({"epoch": 1, "loss": 2.5})
    run.log({"epoch": 2, "loss": 1.5})
    run.save_checkpoint({"epoch": 2, "model": {"weight": torch.ones(2)}})
    run.save_embeddings(torch.ones(3, 2), torch.tensor([0, 1, 1]))
    run.save_model({"weight": torch.arange(6.0).view(2, 3).T.requires_grad_()})
    assert run.started()
    assert not run.finished()
    run.write_result({"map@r": 0.5})
    again = Run(tmp_path / "run")
    assert again.finished()
    assert write_out(again.recipe()) == write_out(RECIPE)
    assert [row["loss"] for row in again.history()] == [2.5, 1.5]
    assert torch.equal(again.load_checkpoint()["model"]["weight"], torch.ones(2))
    assert torch.equal(again.load_model()["weight"], torch.arange(6.0).view(2, 3).T)
    assert torch.equal(again.load_embeddings()[0], torch.ones(3, 2))
    assert again.load_embeddings()[1].tolist() == [0, 1, 1]
    assert again.result() == {"map@r": 0.5}


def test_a_line_cut_short_by_a_crash_is_left_out(tmp_path):
    run = Run.create(tmp_path, RECIPE)
    run.log({"epoch": 1})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 2, "lo')
    assert run.history() == [{"epoch": 1}]
    run.log({"epoch": 2})
    assert run.history() == [{"epoch": 1}, {"epoch": 2}]


def test_a_row_is_on_the_disk_when_log_returns(tmp_path, monkeypatch):
    run, synced = Run.create(tmp_path, RECIPE), []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size))
    run.log({"epoch": 1})
    run.log({"epoch": 2})
    assert synced == [13, 26]  # all of it had left Python's buffer


def test_rows_after_an_epoch_and_half_written_files_are_taken_back(tmp_path):
    run = Run.create(tmp_path, RECIPE)
    for epoch in (1, 2, 3):
        run.log({"epoch": epoch})
    halves = [tmp_path / name for name in (".checkpoint.pt.x1", ".result.json.y2", ".mine")]
    for half in halves:
        half.write_text("half")
    run.cut_history(2)
    assert run.history() == [{"epoch": 1}, {"epoch": 2}]
    assert [half.exists() for half in halves] == [False, False, True]


def changed(**parts):
    settings = RECIPE.model_dump(mode="json")
    for name, value in parts.items():
        settings[name] = settings[name] | value if isinstance(value, dict) else value
    return parse_recipe(settings)


def test_another_recipe_is_refused_unless_it_comes_to_the_same(tmp_path):
    run = Run.create(tmp_path, RECIPE)
    assert not run.started()
    assert not run.finished()
    assert run.load_checkpoint() is None
    same = {"checkpoint_minutes": 1, "trackers": ["wandb"], "paper": {"table": {"row": 1}}}
    run.check_recipe(changed(data={"root": "elsewhere", "workers": 3}, **same))
    with pytest.raises(ValueError, match=r"seed is 0 there and 3 here; choose another --output"):
        run.check_recipe(changed(seed=3))
    with pytest.raises(ValueError, match=r"data\.resize is 256 there and 200 here \(and 1 more differ\)"):
        run.check_recipe(changed(data={"crop": 100, "resize": 200}))
    with pytest.raises(ValueError, match=r"loss\.settings"):
        run.check_recipe(changed(loss={"settings": {"scale": 2}}))


def draws():
    return torch.rand(1).item(), np.random.rand(), random.random(), random.gauss(0, 1)  # noqa: NPY002


def test_a_checkpoint_that_cannot_be_written_leaves_the_last_one(tmp_path):
    run = Run.create(tmp_path, RECIPE)
    run.save_checkpoint({"epoch": 1})
    with pytest.raises(Exception, match="pickle"):
        run.save_checkpoint({"epoch": lambda: 2})
    assert run.load_checkpoint() == {"epoch": 1}


def test_every_generator_goes_on_from_a_checkpoint(tmp_path):
    run = Run.create(tmp_path, RECIPE)
    random.gauss(0, 1)  # leaves its second value behind
    run.save_checkpoint({"random": random_state()})
    expected, others = draws(), draws()
    assert all(a != b for a, b in zip(expected, others, strict=True))
    set_random_state(run.load_checkpoint()["random"])
    assert draws() == expected


def test_a_new_run_leaves_nothing_of_the_old_one_but_foreign_files(tmp_path):
    old = Run.create(tmp_path, RECIPE)
    old.log({"epoch": 1})
    old.write_result({})
    (tmp_path / "notes.txt").write_text("mine")
    assert Run.create(tmp_path, RECIPE).history() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "environment.json",
        "notes.txt",
        "recipe.yaml",
    ]


def test_checkpoints_cannot_run_code(tmp_path):
    run = Run.create(tmp_path, RECIPE)
    torch.save({"model": _Evil()}, tmp_path / "checkpoint.pt")
    with pytest.raises(Exception, match="Weights only load failed"):
        run.load_checkpoint()


class _Evil:
    def __reduce__(self):
        return print, ("ran",)


def test_the_environment_names_versions():
    assert environment()["packages"]["torch"] == torch.__version__.split("+")[0]
