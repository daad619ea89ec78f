"""The tables in docs/export.md are those of results/, and the benchmark measures what they say."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def benchmark():
    specification = importlib.util.spec_from_file_location(
        "benchmark_export", ROOT / "benchmarks" / "export.py"
    )
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_tables_are_made_from_results(benchmark):
    result = json.loads(benchmark.RESULT.read_text())
    assert [run["data"] for run in result["runs"]] == ["glyphs", "cub"]
    made = benchmark.tables(result)
    assert made.count("\n") == len(benchmark.FORMS) + 2 + 1 + 2 + 2
    assert benchmark.START + made + benchmark.END in benchmark.DOCS.read_text()


@pytest.mark.slow
def test_every_form_of_a_small_network_is_measured(benchmark):
    import torch

    images = torch.randint(256, (2, 1, 32, 32), dtype=torch.uint8)
    measured = benchmark.measure(benchmark.untrained("small_conv"), images)
    assert list(measured) == list(benchmark.FORMS)
    assert measured["torch"]["time"] == 1
    assert measured["torch"]["error"] == 0
    assert measured["onnx"]["error"] < 1e-4 < measured["int8"]["error"] < 0.1
    assert measured["int8_everywhere"]["bytes"] < measured["int8"]["bytes"] < measured["onnx"]["bytes"]
