"""There is a model at every moment, while a better one is trained apart."""

import shutil
from pathlib import Path

import pytest

from softwarp.recipe.schema import Recipe
from softwarp.runs.run import Run
from softwarp.training.hand_out import HandOut, check_ships

KEPT = Path(__file__).parents[1] / "kept" / "run"


@pytest.fixture
def kept():
    return Run(KEPT).recipe()


@pytest.fixture
def handed(tmp_path, monkeypatch):
    """Training writes a finished run of the recipe at once; `handed.trained` has the folders."""
    trained = []

    def train(recipe: Recipe, folder: Path, **_: object) -> None:
        if not Run(folder).finished():
            trained.append(folder)
            Run.create(folder, recipe)
            run = Run(KEPT)
            Run(folder).write_result(run.result().model_copy(update={"epochs": recipe.phases[0].epochs}))

    monkeypatch.setattr("softwarp.training.hand_out.train_recipe", train)
    handing = HandOut(None, tmp_path, {0: tmp_path}, lambda _: None)
    handing.trained = trained
    return handing


def with_epochs(recipe, epochs):
    return recipe.model_copy(update={"phases": (recipe.phases[0].model_copy(update={"epochs": epochs}),)})


def test_a_run_takes_a_finished_one_whole(tmp_path):
    shutil.copytree(KEPT, tmp_path / "from")
    (tmp_path / "from" / "checkpoint.pt").write_bytes(b"no longer needed")
    there = Run(tmp_path / "to")
    there.take(Run(tmp_path / "from"))
    assert there.finished()
    assert there.result() == Run(tmp_path / "from").result()
    assert not (there.folder / "checkpoint.pt").exists()
    for name in ("recipe.yaml", "model.safetensors", "metrics.jsonl", "items.csv", "environment.json"):
        assert (there.folder / name).read_bytes() == (tmp_path / "from" / name).read_bytes()


def test_a_better_model_is_trained_apart_and_takes_the_place(handed, kept, tmp_path):
    handed.for_now(with_epochs(kept, 0))
    assert handed.trained == [tmp_path]
    assert not handed.finally_(with_epochs(kept, 3), Run(tmp_path))
    assert handed.trained[1:] == [tmp_path / "choice" / "final-0"]
    assert Run(tmp_path).result().epochs == 3
    assert not Run(handed.trained[1]).finished()


def test_a_model_that_was_fine_tuned_is_not_replaced_for_now(handed, kept, tmp_path):
    handed.finally_(with_epochs(kept, 3), Run(tmp_path))
    handed.for_now(with_epochs(kept, 0))
    assert Run(tmp_path).result().epochs == 3


def test_a_model_of_an_earlier_command_is_said_to_have_been_there(handed, kept, tmp_path):
    assert not handed.finally_(with_epochs(kept, 0), Run(tmp_path))
    assert not handed.finally_(with_epochs(kept, 0), Run(tmp_path))  # handed out by this command
    again = HandOut(None, tmp_path, {0: tmp_path}, None)
    assert again.finally_(with_epochs(kept, 0), Run(tmp_path))
    assert not again.finally_(with_epochs(kept, 2), Run(tmp_path))


def test_what_is_shipped_keeps_the_figures_also_if_it_was_killed_before_they_were_written(
    handed, kept, tmp_path
):
    handed.finally_(with_epochs(kept, 3), Run(tmp_path))
    shipped = handed.ship(with_epochs(kept, 3), Run(tmp_path))
    assert shipped.folder == tmp_path / "ship"
    assert shipped.recipe().evaluation.test_classes == "none"
    assert shipped.result().held_out == Run(tmp_path).result()
    shipped.write_result(shipped.result().model_copy(update={"held_out": None}))
    handed.ship(with_epochs(kept, 3), Run(tmp_path))
    assert shipped.result().held_out == Run(tmp_path).result()
    assert handed.trained == [tmp_path, tmp_path / "ship"]


def test_another_choice_ships_another_model_and_until_then_it_is_said_to_be_older(handed, kept, tmp_path):
    said = []
    handed.on_event = lambda event: said.append(str(event))
    handed.finally_(with_epochs(kept, 0), Run(tmp_path))
    handed.ship(with_epochs(kept, 0), Run(tmp_path))
    handed.say_if_outdated(with_epochs(kept, 0))
    assert not any("--ship" in each for each in said)
    handed.finally_(with_epochs(kept, 3), Run(tmp_path))
    handed.say_if_outdated(with_epochs(kept, 3))
    assert "--ship" in said[-1]
    shipped = handed.ship(with_epochs(kept, 3), Run(tmp_path))
    assert (shipped.result().epochs, shipped.result().held_out.epochs) == (3, 3)
    assert handed.trained[-1] == tmp_path / "choice" / "final-0"  # there is a model at every moment


@pytest.mark.parametrize(
    "changes",
    [
        {"evaluation": {"test_classes": "none"}},
        {"evaluation": {"fold": 0}},
        {"data": {"max_classes": 4}},
    ],
)
def test_what_holds_no_classes_out_for_good_is_not_shipped(kept, changes):
    check_ships(kept)
    (part, values), *_ = changes.items()
    changed = kept.model_copy(update={part: getattr(kept, part).model_copy(update=values)})
    with pytest.raises(ValueError, match=f"{part}.{next(iter(values))}"):
        check_ships(changed)
