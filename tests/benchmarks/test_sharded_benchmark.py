"""The benchmark of sharded losses runs, and its figures meet what is asked of them."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "sharded.py"


@pytest.fixture(scope="module")
def benchmark():
    specification = importlib.util.spec_from_file_location("benchmark_sharded", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_a_million_classes_met_every_bar(benchmark):
    content = json.loads((ROOT / "results" / "benchmark_sharded.json").read_text())
    assert [each["classes"] for each in content["curve"]] == list(benchmark.CURVE)
    assert content["most_classes"]["classes"] == content["sampled"]["classes"] == 1_000_000
    assert content["bars"] == benchmark.check_bars(content)
    assert len(content["bars"]) == 3
    assert all(bar["met"] for bar in content["bars"])


def test_a_bar_can_be_missed(benchmark):
    memory = [{"ranks": ranks, "trained_per_rank": 100.0} for ranks in (1, 4)]
    content = {
        "memory": memory,
        "most_classes": {"all_ranks": 13_000},
        "sampled": {"sampled_over_tenth": 1.6},
    }
    assert [bar["met"] for bar in benchmark.check_bars(content)] == [False] * 3


def test_a_step_moves_the_class_vectors_that_it_should(benchmark, monkeypatch):
    """A sharded step ends where a step of the whole loss does; a sampled one leaves some rows alone."""
    monkeypatch.setattr(benchmark, "SAMPLES", 8)
    kept = []
    adam = torch.optim.Adam

    def note(parameters, **settings):
        kept.append(list(parameters))
        return adam(kept[-1], **settings)

    monkeypatch.setattr(torch.optim, "Adam", note)
    for make in (
        benchmark.sharded_step,
        benchmark.whole_step,
        lambda classes: benchmark.sharded_step(classes, 0.1),
    ):
        torch.manual_seed(0)
        step = make(200)
        before = kept[-1][0].detach().clone()
        step()
    (sharded,), (whole,), (sampled,) = kept
    torch.testing.assert_close(sharded, whole)
    still = (sampled == before).all(dim=1).sum()
    assert 120 < still < 200
    assert not (whole == before).all(dim=1).any()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_quick_run_writes_its_figures(tmp_path):
    output = tmp_path / "benchmark.json"
    subprocess.run([sys.executable, SCRIPT, "--quick", "--output", output], check=True)
    content = json.loads(output.read_text())
    assert [each["classes"] for each in content["curve"]] == [100, 300, 1000, 3000, 10_000]
    assert [each["ranks"] for each in content["memory"]] == [1, 2, 4]
    assert all(each["sharded_over_bare"] > 0 for each in content["curve"])
