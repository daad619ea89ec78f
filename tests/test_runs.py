import pytest
import torch

from softwarp.recipe import parse_recipe
from softwarp.runs import Run, environment

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
    run.write_result({"map@r": 0.5})
    again = Run(tmp_path / "run")
    assert again.recipe() == RECIPE
    assert [row["loss"] for row in again.history()] == [2.5, 1.5]
    assert torch.equal(again.load_checkpoint()["model"]["weight"], torch.ones(2))
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
