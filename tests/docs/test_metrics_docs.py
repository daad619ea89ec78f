"""docs/metrics.md explains every metric; what docs/performance.md says of their speed is in results/."""

import importlib.util
import json
from pathlib import Path

import torch

from softwarp.evaluation import FAMILIES, measure

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "metrics.md").read_text()


def benchmark():
    spec = importlib.util.spec_from_file_location("evaluation", ROOT / "benchmarks" / "evaluation.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_is_made_from_results():
    module = benchmark()
    result = json.loads((ROOT / "results" / "benchmark_evaluation.json").read_text())
    assert set(result["sizes"]) == {"cub", "sop", "cars"}
    made = module.table(result)
    assert made.count("\n") == len(module.CONTENDERS) + 4
    assert module.START + made + module.END in module.DOCS.read_text()


def test_every_metric_is_defined():
    names = [*measure(torch.rand(6, 2), torch.arange(6) % 2, families=FAMILIES, ks=(1,))["metrics"]]
    assert len(names) > 10
    defined = [line.split("|")[1] for line in DOCS.splitlines() if line.startswith("|")]
    for name in [
        *names,
        "map@K",
        "ndcg@K",
        "average_distance_to_proxy",
        "accuracy",
        "tar@far=F",
        "fold_tar@far=F",
        "auc",
    ]:
        assert any(f"`{name.replace('recall@1', 'recall@K')}`" in cell for cell in defined), name


def test_contenders_agree_on_small_data():
    module = benchmark()
    points, labels = module.make_data(400, 20, 1.5)
    found = {name: run(points, labels, (1, 2)) for name, run in module.CONTENDERS.items() if name != "oml"}
    for name, values in found.items():
        shared = set(values) & set(found["softwarp"])
        assert shared, name
        for key in shared:
            assert abs(values[key] - found["softwarp"][key]) < 1e-9, (name, key)
