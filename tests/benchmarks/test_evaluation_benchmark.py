"""Evaluation's memory is bounded, in the setting that its benchmark measures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST = 500  # megabytes beyond what there was before the call


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("distance", ["euclidean", "cosine"])
def test_a_call_at_the_size_of_stanford_online_products_grows_little(distance):
    command = [sys.executable, ROOT / "benchmarks" / "evaluation.py", "--worker", "growth", "--size", "sop"]
    done = subprocess.run([*command, "--distance", distance], capture_output=True, text=True, check=True)
    assert 118 < int(done.stdout) <= MOST  # the centred copy alone is 118


def test_ten_fresh_processes_grew_little():
    sizes = json.loads((ROOT / "results" / "benchmark_evaluation.json").read_text())["sizes"]
    grown = sizes["sop"]["growth"]
    assert len(grown["megabytes"]) == 10
    assert grown["largest"] == max(grown["megabytes"]) <= MOST
