"""What version 0.1 wrote, in tests/kept, still opens: a run, an index, a benchmark with its searches."""

import json
import shutil
from pathlib import Path

import optuna
import torch

import softwarp
from softwarp.fair.benchmark_result import Benchmark, benchmark_table
from softwarp.runs.result import read_json_as
from softwarp.runs.run import Run
from softwarp.tuning.trial_queue import Journal

KEPT = Path(__file__).parent / "kept"


def test_a_run_is_loaded_and_embeds():
    model = softwarp.load(KEPT / "run", device="cpu")
    assert model.embed(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape == (2, 256)
    assert model.result.metrics == json.loads((KEPT / "run" / "result.json").read_text())["metrics"]
    assert model.choice is not None
    assert Run(KEPT / "run").recipe().model.backbone == "test_efficientnet.r160_in1k"


def test_an_index_is_searched(tmp_path):
    index = softwarp.Index.open(shutil.copytree(KEPT / "index", tmp_path / "index"))
    assert len(index) == 32
    ids, distances = index.nearest(index.vectors[:1], 3)
    assert ids.shape == distances.shape == (1, 3)
    assert index.item(int(ids[0, 0])).path.endswith(".png")


def test_a_benchmark_is_read():
    outcome = read_json_as(Benchmark, KEPT / "benchmark" / "benchmark.json")
    assert "ProxyNCA++" in benchmark_table(outcome).markdown()
    assert outcome.frozen is not None


def test_searches_have_their_trials(tmp_path):
    for loss in ("cosface", "proxy_nca_pp"):
        journal = shutil.copy(KEPT / "benchmark" / loss / "search" / "journal.log", tmp_path / loss)
        storage = optuna.storages.JournalStorage(Journal(Path(journal)))
        assert len(optuna.load_study(study_name=None, storage=storage).trials) == 1
