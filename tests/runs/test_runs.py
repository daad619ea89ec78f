import contextlib
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.results import RECIPE, finished_run, result

from softwarp.recipe.overrides import write_out
from softwarp.recipe.schema import parse_recipe
from softwarp.runs.run import EvaluatedImage, Run

ODD = EvaluatedImage("c/\udcff.jpg", "c", "gallery", 0)  # a name that is not UTF-8


def test_a_run_gives_back_what_it_was_given(tmp_path):
    run = Run.create(tmp_path / "run", RECIPE)
    run.log({"epoch": 1, "loss": 2.5})
    run.log({"epoch": 2, "loss": 1.5})
    run.save_checkpoint({"epoch": 2, "model": {"weight": torch.ones(2)}})
    items = [
        EvaluatedImage("a/1.jpg", "a", "query", 0),
        EvaluatedImage('b,"2"\n.jpg', "b", "query", None),
        ODD,
    ]
    run.save_embeddings({"embeddings": torch.ones(1, 2), "labels": torch.tensor([0])}, items)
    run.save_model({"weight": torch.arange(6.0).view(2, 3).T.requires_grad_()})
    assert run.started()
    assert not run.finished()
    run.write_result(result(seed=7))
    again = Run(tmp_path / "run")
    assert again.finished()
    assert write_out(again.recipe()) == write_out(RECIPE)
    assert [row["loss"] for row in again.history()] == [2.5, 1.5]
    assert torch.equal(again.load_checkpoint()[0]["model"]["weight"], torch.ones(2))
    assert torch.equal(again.load_model()["weight"], torch.arange(6.0).view(2, 3).T)
    assert torch.equal(again.load_embeddings()["embeddings"], torch.ones(1, 2))
    assert (again.items(), again.items(gallery=True)) == ([items[0]], [ODD])
    assert again.result() == result(seed=7)
    assert '"schema": 1' in (tmp_path / "run" / "result.json").read_text()


@pytest.mark.parametrize("removed", range(10))
def test_a_run_that_is_killed_while_it_is_removed_has_its_recipe_or_nothing_to_resume(
    removed, tmp_path, monkeypatch
):
    run = finished_run(tmp_path / "run", seed=0)
    run.save_checkpoint({"epoch": 1})
    run.save_checkpoint({"epoch": 2})
    unlink, gone = Path.unlink, []

    def until_killed(path, **options):
        if len(gone) == removed:
            raise MemoryError
        gone.append(path)
        unlink(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", until_killed)
        with contextlib.suppress(MemoryError):
            run.clear()
    if run.started():
        run.check_recipe(RECIPE)


def test_a_run_that_names_no_pooling_pooled_by_maximum_and_average(tmp_path):
    run = Run.create(tmp_path / "run", RECIPE)
    file = run.folder / "recipe.yaml"
    lines = file.read_text().splitlines()
    file.write_text("\n".join(line for line in lines if "pooling:" not in line))
    assert len(file.read_text().splitlines()) == len(lines) - 1
    assert run.recipe().model.pooling == "max+avg"


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


def test_rows_after_a_checkpoint_and_half_written_files_are_taken_back(tmp_path):
    run = Run.create(tmp_path, RECIPE)
    for epoch in (1, 2, 3):
        run.log({"epoch": epoch})
    halves = [tmp_path / name for name in (".checkpoint.pt.x1", ".result.json.y2", ".mine")]
    for half in halves:
        half.write_text("half")
    run.rewind([{"epoch": 1}, {"epoch": 2}])
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
    assert run.load_checkpoint() == (None, "")
    same = {"checkpoint_minutes": 1, "trackers": ["wandb"], "paper": {"table": {"row": 1}}}
    run.check_recipe(changed(data={"root": "elsewhere", "workers": 3}, **same))
    with pytest.raises(ValueError, match=r"seed is 0 .*3 .*another folder"):
        run.check_recipe(changed(seed=3))
    with pytest.raises(ValueError, match=r"data\.resize is 256 .*200 .*1 more"):
        run.check_recipe(changed(data={"crop": 100, "resize": 200}))
    with pytest.raises(ValueError, match=r"phases\.0\.epochs is 1 .*9 "):
        run.check_recipe(changed(phases=[RECIPE.phases[0].model_copy(update={"epochs": 9}).model_dump()]))
    with pytest.raises(ValueError, match=r"loss\.settings"):
        run.check_recipe(changed(loss={"settings": {"scale": 2}}))


def test_a_checkpoint_that_cannot_be_written_leaves_the_last_one(tmp_path):
    run = Run.create(tmp_path, RECIPE)
    run.save_checkpoint({"epoch": 1})
    with pytest.raises(Exception, match="pickle"):
        run.save_checkpoint({"epoch": lambda: 2})
    assert run.load_checkpoint() == ({"epoch": 1}, "")


def test_a_new_run_leaves_nothing_of_the_old_one_but_foreign_files(tmp_path):
    old = Run.create(tmp_path, RECIPE)
    old.log({"epoch": 1})
    old.write_result(result())
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
    with pytest.raises(ValueError, match="Weights only load failed"):
        run.load_checkpoint()


class _Evil:
    def __reduce__(self):
        return print, ("ran",)


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path):
    run, generator = Run.create(tmp_path, RECIPE), random.Random(0)
    weights = torch.arange(5000.0)
    run.save_checkpoint({"epoch": 1, "weights": weights})
    run.save_checkpoint({"epoch": 2, "weights": weights + 1})
    last = tmp_path / "checkpoint.pt"
    whole, passed_over = last.read_bytes(), 0
    for _ in range(60):
        place = generator.randrange(len(whole))
        flipped = whole[place] ^ (1 << generator.randrange(8))
        last.write_bytes(whole[:place] + bytes([flipped]) + whole[place + 1 :])
        state, note = run.load_checkpoint()
        assert torch.equal(state["weights"], weights + (state["epoch"] - 1))  # never other numbers
        assert ("checkpoint.pt" in note) == (state["epoch"] == 1)
        passed_over += state["epoch"] == 1
    assert passed_over > 50  # the rest is padding


@pytest.mark.parametrize("content", [b"", b"PK", b"no zip at all" * 100])
def test_a_file_that_is_not_a_checkpoint_is_named_with_its_cure(tmp_path, content):
    run = Run.create(tmp_path, RECIPE)
    (tmp_path / "checkpoint.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"checkpoint\.pt.*--fresh"):
        run.load_checkpoint()


def test_a_second_process_is_kept_out_until_the_first_has_died(tmp_path):
    code = "import sys, time; from pathlib import Path; from softwarp.runs.run import Run\n"
    code += "with Run(Path(sys.argv[1])).locked(): print('locked', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(ValueError, match="another process"), Run(tmp_path).locked():
            pass
        other.kill()
        other.wait()
        with Run(tmp_path).locked():
            pass
    assert not list(tmp_path.iterdir())


def test_a_disk_that_takes_no_more_is_one_line_and_the_last_checkpoint_stays(tmp_path, monkeypatch):
    run = Run.create(tmp_path, RECIPE)
    run.save_checkpoint({"epoch": 1})

    def full(state, file):
        raise RuntimeError("inline_container.cc:1234: PytorchStreamWriter failed\nframe #0")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match=r"checkpoint\.pt.*PytorchStreamWriter failed\).*disk space") as caught:
        run.save_checkpoint({"epoch": 2})
    assert "frame" not in str(caught.value)
    assert run.load_checkpoint() == ({"epoch": 1}, "")


def test_a_damaged_checkpoint_never_pushes_out_the_good_one(tmp_path):
    run = Run.create(tmp_path, RECIPE)
    run.save_checkpoint({"epoch": 1})
    run.save_checkpoint({"epoch": 2})
    (tmp_path / "checkpoint.pt").write_bytes(b"damaged")
    assert run.load_checkpoint()[0] == {"epoch": 1}
    run.remove_damaged_checkpoint()
    run.save_checkpoint({"epoch": 3})
    (tmp_path / "checkpoint.pt").write_bytes(b"damaged")
    assert run.load_checkpoint()[0] == {"epoch": 1}


def test_an_odd_file_name_survives_items(tmp_path):
    run = Run.create(tmp_path, RECIPE)
    items = [EvaluatedImage(f"a{mark}b.jpg", "c", "test", row) for row, mark in enumerate('\r\n",;\t')]
    run.save_embeddings({"embeddings": torch.ones(6, 2)}, items)
    assert run.items() == items


def test_a_recipe_of_another_version_is_one_line(tmp_path):
    run = Run.create(tmp_path, RECIPE)
    text = (tmp_path / "recipe.yaml").read_text()
    (tmp_path / "recipe.yaml").write_text(text.replace("baseline:", "zero_line:"))
    with pytest.raises(ValueError, match=r"zero_line.*--fresh") as caught:
        run.recipe()
    assert "\n" not in str(caught.value)


def test_a_new_run_takes_the_place_of_a_set_of_seeds(tmp_path):
    (tmp_path / "seeds.json").touch()
    Run.create(tmp_path, RECIPE)
    assert not (tmp_path / "seeds.json").exists()
