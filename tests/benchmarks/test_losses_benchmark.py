"""The benchmark of all losses runs, measures the sizes it says, and leaves out nobody whom it means."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from softwarp.losses import LOSSES

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "losses.py"


@pytest.fixture(scope="module")
def benchmark():
    specification = importlib.util.spec_from_file_location("benchmark_losses", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_sizes_are_measured_for_the_losses_that_they_concern(benchmark):
    names = list(LOSSES)
    everywhere, _, with_parameters, ranking, _ = (
        benchmark.losses_at(size, names) for size in benchmark.SIZES
    )
    assert everywhere == names
    assert {"warped_softmax", "proxy_nca_pp"} <= set(with_parameters)
    assert "smooth_ap" not in with_parameters
    assert {"smooth_ap", "roadmap", "recall_at_k"} <= set(ranking)
    assert "proxy_nca_pp" not in ranking
    assert [name for name in ranking if name not in LOSSES] == ["pml_smooth_ap"]


def test_the_problem_has_what_its_size_says(benchmark):
    for size in benchmark.SIZES[:-1]:
        embeddings, labels = benchmark.problem(size)
        assert embeddings.shape == (size.samples, size.dimensions)
        assert set(labels.bincount().tolist()) == {size.samples_a_class}
        assert labels.max() < size.classes


@pytest.mark.slow
def test_a_quick_run_writes_its_figures(tmp_path):
    output = tmp_path / "benchmark.json"
    names = "warped_softmax,smooth_ap"
    run = subprocess.run(
        [sys.executable, SCRIPT, "--quick", "--losses", names, "--output", output],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    content = json.loads(output.read_text())
    (size,) = content["sizes"]
    assert [row["name"] for row in size["losses"]] == names.split(",")
    for row in size["losses"]:
        assert row["status"] == "measured"
        assert row["passes"] == 2
        assert row["median_seconds"] > 0
        assert row["multiple_of_products"] > 0
        assert row["peak_megabytes"] >= 0
    assert content["environment"]["threads"] >= 1
