"""The benchmark of the loss runs, leaves nobody out, and times the loss that it says it times."""

import gc
import importlib.util
import json
import multiprocessing
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from softwarp.losses import warped_softmax_loss

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "loss.py"


@pytest.fixture(scope="module")
def benchmark():
    specification = importlib.util.spec_from_file_location("benchmark_loss", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def value_and_gradients(function, embeddings, proxies, labels, **warp):
    embeddings, proxies = embeddings.clone().requires_grad_(), proxies.clone().requires_grad_()
    value = function(embeddings, proxies, labels, **warp).mean()
    value.backward()
    return value.detach(), embeddings.grad, proxies.grad


def test_the_authors_formulation_is_the_same_loss(benchmark):
    generator = torch.Generator().manual_seed(0)
    embeddings = 2 * torch.randn(12, 5, generator=generator, dtype=torch.float64)
    proxies = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(7, (12,), generator=generator)
    own = (embeddings - proxies[labels]).norm(dim=1)
    warp = {"alpha": own.median().item(), "k1": 0.8, "k2": 1.15, "scale": 1.5, "delta": 1.3}
    assert (own < warp["alpha"]).any()
    assert (own > warp["alpha"]).any()
    problem = embeddings, proxies, labels
    expected = value_and_gradients(warped_softmax_loss, *problem, **warp)
    for ours, theirs in zip(
        expected, value_and_gradients(benchmark.authors_loss, *problem, **warp), strict=True
    ):
        torch.testing.assert_close(theirs, ours, rtol=1e-9, atol=1e-12)


def test_the_problem_is_in_the_working_range_of_the_softmax(benchmark):
    embeddings, proxies, labels = benchmark.problem(benchmark.Size(64, 1000, 128))
    own = (embeddings - proxies[labels]).norm(dim=1)
    assert 17.9 < own.min() < benchmark.WARP["alpha"] < own.max() < 30.1
    assert 0.01 < warped_softmax_loss(embeddings, proxies, labels, **benchmark.WARP).mean() < 10


@pytest.fixture
def forks(monkeypatch):
    """Children are copies of this process: a server of its own would first spend seconds on imports."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
    fork = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: fork)
    gc.freeze()  # the benchmark collects garbage before each block: not all that the tests have imported
    yield
    gc.unfreeze()
    torch.set_num_threads(threads)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_every_loss_is_in_the_figures(benchmark, forks, tmp_path):
    output = tmp_path / "benchmark.json"
    sizes = ["--sizes", "4x6x3", "--memory-sizes", "", "--rounds", "2", "--output", str(output)]
    app = typer.Typer()
    app.command()(benchmark.main)
    run = CliRunner().invoke(app, sizes)
    assert run.exit_code == 0, (run.output, run.exception)
    content = json.loads(output.read_text())
    (size,) = content["sizes"]
    assert [row["name"] for row in size["losses"]] == [*benchmark.COMPETITORS]
    assert len(size["losses"]) == 9
    for row in size["losses"]:
        assert row["status"] == "measured"
        assert row["rounds"] == 2
        assert row["median_ratio"] > 0
        assert row["peak_megabytes"] >= 0
    assert content["command"].startswith("python ")
    assert content["environment"]["threads"] >= 1


def test_a_bar_is_missed_when_another_is_faster_or_memory_too_large(benchmark):
    size = benchmark.BARS[1].size._asdict()
    rows = {name: {"median_ratio": 2.0} for name in benchmark.COMPETITORS}
    rows[benchmark.OURS] = {"median_ratio": 1.4}
    checks = benchmark.check_bars([{**size, "losses": rows}])
    assert [check["met"] for check in checks] == [True, True]
    rows[benchmark.OURS] = {"median_ratio": 2.1}
    checks = benchmark.check_bars([{**size, "losses": rows}])
    assert [check["met"] for check in checks] == [False, False]
    rows = {benchmark.OURS: {"peak_megabytes": 301.0}}
    checks = benchmark.check_bars([{**benchmark.BARS[3].size._asdict(), "losses": rows}])
    assert [check["met"] for check in checks] == [False]
    rows = {benchmark.OURS: {"median_ratio": 1.0}, "other": {"median_ratio": 2.0}}
    result = {**benchmark.BARS[2].size._asdict(), "losses": rows, "automatic_over_fixed": 1.04}
    checks = benchmark.check_bars([result])
    assert [check["met"] for check in checks] == [True, True, False]
