"""What goes wrong around a run: nothing is lost, nothing is falsified, and a line says what to do."""

import os
import signal
import subprocess
import sys
import time

import pytest
from support.pictures import jpeg, noise
from support.tiny_runs import PHASE, Steps, outcome, tiny

from softwarp.recipe.files import read_settings
from softwarp.recipe.overrides import dump_recipe
from softwarp.recipe.schema import parse_recipe
from softwarp.runs.run import Run
from softwarp.training.train import StoppedError, train_recipe


def test_a_folder_in_use_is_refused_and_stays_as_it_is(tmp_path):
    run = Run(tmp_path)
    with run.locked(), pytest.raises(ValueError, match=r"another process.*another folder"):
        train_recipe(tiny(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_flipped_bit_in_the_checkpoint_is_reported_and_the_end_is_the_same(tmp_path):
    every = {"checkpoint_minutes": 1e-6}
    whole = train_recipe(tiny(**every), tmp_path / "whole")
    with pytest.raises(StoppedError):
        train_recipe(
            tiny(**every), tmp_path / "cut", on_event=Steps(8, lambda: signal.raise_signal(signal.SIGINT))
        )
    path = tmp_path / "cut" / "checkpoint.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    with pytest.warns(UserWarning, match=r"checkpoint\.pt.*the one before"):
        again = train_recipe(tiny(**every), tmp_path / "cut", resume=True)
    assert outcome(again) == outcome(whole)


def test_a_lost_history_costs_nothing(tmp_path):
    whole = train_recipe(tiny(), tmp_path / "whole")
    with pytest.raises(StoppedError):
        train_recipe(tiny(), tmp_path / "cut", on_event=Steps(8, lambda: signal.raise_signal(signal.SIGINT)))
    (tmp_path / "cut" / "metrics.jsonl").unlink()
    assert outcome(train_recipe(tiny(), tmp_path / "cut", resume=True)) == outcome(whole)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_termination_and_a_closed_terminal_save_first(tmp_path, number):
    with pytest.raises(StoppedError):
        train_recipe(tiny(), tmp_path, on_event=Steps(8, lambda: signal.raise_signal(number)))
    assert Run(tmp_path).load_checkpoint()[0]["state"]["step"] == 8


def test_half_precision_without_a_gpu_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"fp16.*bf16"):
        train_recipe(tiny(precision="fp16"), tmp_path)


def test_a_folder_that_cannot_be_made_names_the_option(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"file/run.*another folder"):
        train_recipe(tiny(), tmp_path / "file" / "run")


def test_no_epochs_evaluate_the_model_as_it_starts(tmp_path):
    run = train_recipe(tiny(phases=[{**PHASE, "epochs": 0}], evaluation={"baseline": True}), tmp_path)
    assert run.result().epochs == 0
    assert run.result().metrics["recall@1"] > 0.1
    assert run.result().baseline["recall@1"] > 0.1
    assert run.result().metrics["avg_dtp"] > 0


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"optimizer": {"eps": float("inf")}}, "optimizer.eps"),
        ({"phases": [{**PHASE, "loss_settings": {"alpha": float("inf")}}]}, "alpha"),
        ({"loss": {"name": "arcface", "settings": {"num_classes": 5}}}, "num_classes"),
        ({"model": {"embedding_size": 10**9}}, "embedding_size"),
        ({"seed": 2**64}, "seed"),
    ],
)
def test_settings_that_no_run_survives_are_named(changes, cause):
    with pytest.raises(ValueError, match=cause):
        tiny(**changes)


def test_yaml_that_explodes_is_refused(tmp_path):
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))
    deep = "[" * 10_000 + "]" * 10_000
    for name, text in (("bomb", bomb), ("deep", f"paper: {deep}"), ("bytes", "\udcff")):
        path = tmp_path / f"{name}.yaml"
        path.write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(ValueError, match=rf"{name}\.yaml"):
            parse_recipe(read_settings(path))


def test_a_run_under_nohup_is_not_stopped_by_a_closed_terminal(tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run = train_recipe(tiny(), tmp_path, on_event=Steps(8, lambda: signal.raise_signal(signal.SIGHUP)))
    finally:
        signal.signal(signal.SIGHUP, before)
    assert run.finished()


@pytest.mark.slow
def test_two_processes_train_two_seeds_with_decoding_workers(tmp_path):
    for number in range(8):
        for each in range(5):
            jpeg(
                tmp_path / "images" / f"class {number}" / f"{each}.jpg", noise(24, 24, seed=5 * number + each)
            )
    data = {"name": "folder", "root": str(tmp_path / "images"), "resize": 24, "crop": 16, "workers": 1}
    model = {"backbone": "resnet10t", "embedding_size": 8}
    settings = {"batches": {"classes": 2, "samples": 2}, "phases": [{**PHASE, "epochs": 3}]}
    (tmp_path / "recipe.yaml").write_text(dump_recipe(tiny(data=data, model=model, **settings)))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = [
        "-m",
        "softwarp",
        "train",
        tmp_path / "recipe.yaml",
        "--seeds",
        "2",
        "--output",
        tmp_path / "run",
    ]
    subprocess.run([*launch, *words], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert (tmp_path / "run" / "seeds.json").exists()


@pytest.mark.slow
def test_a_rank_whose_partner_is_stuck_leaves_at_the_second_signal(tmp_path):
    recipe = tiny(phases=[{**PHASE, "epochs": 500}])
    (tmp_path / "recipe.yaml").write_text(dump_recipe(recipe))
    command = [
        sys.executable,
        "-m",
        "softwarp",
        "train",
        tmp_path / "recipe.yaml",
        "--output",
        tmp_path / "run",
    ]
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29711", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            command,
            env={**os.environ, **group, "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"},
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        for rank in (0, 1)
    ]
    try:
        for _ in range(120):
            if (tmp_path / "run" / "checkpoint.pt").exists():
                break
            time.sleep(0.5)
        ranks[1].send_signal(signal.SIGSTOP)
        time.sleep(2)  # so that the first one waits for it
        ranks[0].send_signal(signal.SIGINT)
        time.sleep(1)
        assert ranks[0].poll() is None
        ranks[0].send_signal(signal.SIGTERM)
        assert ranks[0].wait(20) == 130
        assert Run(tmp_path / "run").load_checkpoint()[0] is not None
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
