"""Training with classes divided over processes: as without, resumed by another number, when one dies."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from support.tiny_runs import PHASE, Steps, losses_of, outcome, tiny

from softwarp.recipe.overrides import dump_recipe
from softwarp.runs.run import Run
from softwarp.training.train import StoppedError, train_recipe

RUNS = Path(__file__).parents[1] / "support" / "sharded_runs.py"
WARP = {"name": "warped_softmax", "settings": {"alpha": 4.0, "k1": 0.8, "k2": 1.2}}
SHARDED = WARP | {"sharded": True}
SAMPLED = SHARDED | {"sample_rate": 0.5}
GENTLE = {"optimizer": {"eps": 1.0}, "phases": [{**PHASE, "proxy_learning_rate": 1.0}]}


def stopped(recipe, folder, steps):
    with pytest.raises(StoppedError):
        train_recipe(recipe, folder, on_event=Steps(steps, lambda: signal.raise_signal(signal.SIGINT)))


def test_a_sharded_run_is_the_run_without(tmp_path):
    plain, sharded = (
        train_recipe(tiny(loss=loss, **GENTLE), tmp_path / str(place))
        for place, loss in enumerate((WARP, SHARDED))
    )
    assert losses_of(sharded) == pytest.approx(losses_of(plain), rel=1e-5)
    for metric in ("avg_dtp", "recall@1"):
        assert sharded.result().metrics[metric] == pytest.approx(plain.result().metrics[metric], rel=1e-4)


@pytest.mark.parametrize("name", ["warped_softmax", "proxy_nca_pp"])
def test_proxies_start_at_class_means_and_travel_as_without(name, tmp_path):
    phase = {**PHASE, "proxy_travel": 1.0, "proxy_learning_rate": None, "learning_rate": 1e-30}
    found = []
    for sharded in (False, True):
        loss = {"name": name, "proxy_init": "means", "sharded": sharded}
        stopped(tiny(loss=loss, phases=[phase]), tmp_path / str(sharded), 1)
        run = Run(tmp_path / str(sharded))
        state, _ = run.load_checkpoint()
        rows = run.load_rows(state, 20, 20, torch.device("cpu")) if sharded else state["loss"]
        found.append((rows["loss.proxies" if sharded else "proxies"], state["state"]["proxy_rate"]))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-4, atol=1e-5)
    assert found[1][1] == pytest.approx(found[0][1], rel=1e-5)


def test_an_interrupted_sampled_run_ends_like_one_that_was_not(tmp_path):
    whole = train_recipe(tiny(loss=SAMPLED), tmp_path / "whole")
    stopped(tiny(loss=SAMPLED), tmp_path / "cut", 8)
    (tmp_path / "cut" / "class-rows-9").mkdir()  # of a process that was killed while it wrote
    again = train_recipe(tiny(loss=SAMPLED), tmp_path / "cut", resume=True)
    assert outcome(again) == outcome(whole)
    assert len(list((tmp_path / "cut").glob("class-rows-*"))) == 2  # of the checkpoint and the one before
    fresh = train_recipe(tiny(loss=WARP, phases=[{**PHASE, "epochs": 0}]), tmp_path / "cut")
    assert not list(fresh.folder.glob("class-rows-*"))


def test_a_flipped_bit_in_the_class_rows_is_reported_and_the_end_is_the_same(tmp_path):
    every = {"loss": SHARDED, "checkpoint_minutes": 1e-6}
    whole = train_recipe(tiny(**every), tmp_path / "whole")
    stopped(tiny(**every), tmp_path / "cut", 8)
    kept = Run(tmp_path / "cut").load_checkpoint()[0]["class_rows"]["folder"]
    (path,) = (tmp_path / "cut" / kept).iterdir()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    with pytest.warns(UserWarning, match=rf"{kept}.*the one before"):
        again = train_recipe(tiny(**every), tmp_path / "cut", resume=True)
    assert outcome(again) == outcome(whole)


def test_another_run_can_start_from_it_and_its_weights_can_be_dropped(tmp_path):
    first = tiny(loss=SHARDED, phases=[PHASE])
    train_recipe(first, tmp_path / "first")
    Run(tmp_path / "second").start_from(Run(tmp_path / "first"), tiny(loss=SHARDED))
    both = train_recipe(tiny(loss=SHARDED), tmp_path / "second", resume=True)
    assert outcome(both) == outcome(train_recipe(tiny(loss=SHARDED), tmp_path / "whole"))
    whole = Run(tmp_path / "whole")
    assert list(whole.folder.glob("class-rows-*"))
    whole.remove_checkpoints()
    both.drop_weights()
    assert not list(whole.folder.glob("class-rows-*"))
    assert not list(both.folder.glob("class-rows-*"))


def test_a_disk_that_fills_up_within_a_file_is_one_line_too(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torch.distributed.checkpoint.filesystem._write_files_from_queue", fail)
    with pytest.raises(OSError, match=r"class-rows-1 cannot.*No space"):
        train_recipe(tiny(loss=SHARDED), tmp_path)


def test_a_full_disk_names_the_folder(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("softwarp.processes.save_divided", fail)
    with pytest.raises(OSError, match=r"class-rows-1.*No space"):
        train_recipe(tiny(loss=SHARDED), tmp_path)


def test_recipes_that_cannot_be_sharded_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"sample_rate.*sharded"):
        tiny(loss=WARP | {"sample_rate": 0.5})
    with pytest.raises(ValueError, match=r"TripletLoss.*loss\.sharded"):
        train_recipe(tiny(loss={"name": "triplet", "sharded": True}), tmp_path)
    assert not list(tmp_path.iterdir())


def steps_of(folder, plan):
    folder.mkdir()
    subprocess.run([sys.executable, RUNS, folder, plan], check=True)
    return json.loads((folder / "steps.json").read_text())


@pytest.mark.slow
def test_saved_by_four_processes_and_resumed_by_two_or_one_the_next_steps_agree(tmp_path):
    whole = steps_of(tmp_path / "whole", "4:28")
    assert len(whole) == 28
    assert max(whole) > 1.05 * min(whole)
    for plan in ("4:8,2:20", "4:8,1:20", "1:8,4:20"):
        found = steps_of(tmp_path / plan.replace(":", "-"), plan)
        assert found == pytest.approx(whole, rel=1e-10), plan


@pytest.mark.slow
def test_a_process_that_dies_takes_the_others_down_and_the_run_resumes(tmp_path):
    recipe = tiny(loss=SHARDED, checkpoint_minutes=1e-6, phases=[{**PHASE, "epochs": 40}])
    (tmp_path / "recipe.yaml").write_text(dump_recipe(recipe))
    words = ["-m", "softwarp", "train", tmp_path / "recipe.yaml", "--output", tmp_path / "run"]
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29721", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, *words],
            env={**os.environ, **group, "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        deadline = time.monotonic() + 300
        while not (tmp_path / "run" / "checkpoint.pt").exists() and time.monotonic() < deadline:
            time.sleep(0.2)
        ranks[1].kill()
        message = ranks[0].communicate(timeout=60)[1]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert ranks[0].returncode == 2
    (line,) = [line for line in message.splitlines() if "error" in line]
    assert "another one has ended" in line
    assert "resume" in line
    assert 0 < Run(tmp_path / "run").load_checkpoint()[0]["state"]["step"] < 200
    assert train_recipe(recipe, tmp_path / "run", resume=True).finished()
