"""Metrics leave the process as it is, while they run and afterwards."""

import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, Thread

import faiss
import pytest
import torch

from softwarp.metrics import (
    average_distance_to_proxy,
    clustering_metrics,
    geometry_metrics,
    nearest_neighbours,
    pair_distances,
    ranks,
    retrieval_metrics,
)
from softwarp.metrics.threads import side_by_side

CALLERS, ROUNDS = 8, 3
POINTS = torch.randn(200, 64, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(200) % 20


@pytest.fixture
def process():
    """What the process is set to comes back after the test."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    backend = torch.backends.mkldnn.matmul.fp32_precision
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    torch.backends.mkldnn.matmul.fp32_precision = backend


def settings():
    """What this thread and the process are set to."""
    return (
        torch.get_num_threads(),
        faiss.omp_get_max_threads(),
        torch.get_float32_matmul_precision(),
        torch.backends.mkldnn.matmul.fp32_precision,
        torch.is_autocast_enabled("cpu"),
        torch.is_grad_enabled(),
    )


def settings_of_a_new_thread():
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(settings).result()


def every_metric():
    return [
        retrieval_metrics(POINTS, LABELS, map_ks=(50,)),
        retrieval_metrics(POINTS[:99], LABELS[:99], gallery=POINTS, gallery_labels=LABELS),
        *(part.tolist() for part in nearest_neighbours(POINTS, 5, distance="cosine")),
        clustering_metrics(POINTS, LABELS, iterations=3),
        geometry_metrics(POINTS, LABELS),
        average_distance_to_proxy(POINTS, LABELS, POINTS[:20]),
        pair_distances(POINTS[:100], POINTS[100:]).tolist(),
    ]


@pytest.mark.parametrize(("precision", "autocast"), [("highest", True), ("medium", False)])
def test_eight_callers_at_once_change_nothing(process, monkeypatch, precision, autocast):
    monkeypatch.setattr(ranks, "BLOCK_ROWS", 64)  # several for each call's threads
    torch.set_num_threads(3)
    expected = every_metric()
    torch.set_float32_matmul_precision(precision)
    before, done, seen = settings_of_a_new_thread(), Event(), set()
    start = Barrier(CALLERS)

    def call(_):
        with torch.autocast("cpu", enabled=autocast):
            own = settings()
            start.wait()
            results = [every_metric() for _ in range(ROUNDS)]
            return own == settings(), results

    def watch():
        while not done.wait(0.001):
            seen.add(settings_of_a_new_thread())

    watcher = Thread(target=watch)
    watcher.start()
    with ThreadPoolExecutor(CALLERS) as callers:
        outcomes = list(callers.map(call, range(CALLERS)))
    done.set()
    watcher.join()
    assert all(unchanged for unchanged, _ in outcomes)
    assert all(result == expected for _, results in outcomes for result in results)
    assert seen == {before} == {settings_of_a_new_thread()}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere torch's libraries may not offer it")
def test_work_side_by_side_runs_one_core_each_and_the_caller_keeps_its_own(process):
    torch.set_num_threads(3)

    def cores(_):
        lines = torch.__config__.parallel_info().splitlines()
        return {line.split()[-1] for line in lines if "max_threads() :" in line}

    with side_by_side(torch.device("cpu")) as each:
        assert list(each(cores, range(6))) == [{"1"}] * 6
        assert cores(None) == {"3"}
        assert settings_of_a_new_thread()[0] == 3


@pytest.mark.parametrize("set_by", ["the process", "a backend"])
def test_float32_products_that_are_less_do_not_reach_the_numbers(process, monkeypatch, set_by):
    """As a CPU with AMX or a GPU would multiply; others ignore the setting."""
    full, used = torch.Tensor.addmm_, []

    def rounding(block, left, right, **keywords):
        if left.dtype == torch.float32 and torch.backends.mkldnn.matmul.fp32_precision == "bf16":
            left, right = left.bfloat16().float(), right.bfloat16().float()
            used.append(left)
        return full(block, left, right, **keywords)

    expected = every_metric()
    monkeypatch.setattr(torch.Tensor, "addmm_", rounding)
    if set_by == "the process":
        torch.set_float32_matmul_precision("medium")
    else:
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    assert every_metric() == expected
    assert not used
