"""Every metric that a function of metrics/ returns has its row in METRICS, and every row is of one."""

import subprocess
import sys

import pytest
import torch

from softwarp.commands.evaluate import evaluate
from softwarp.evaluation import FAMILIES, measure, whole_gallery_metrics
from softwarp.metrics import identification_metrics, retrieval_metrics, verification_metrics
from softwarp.recipe.phases import EvaluationPart
from softwarp.tables import METRICS, NUMBER, Metric, Row, factor_of, metric_of, metric_table, names_of

POINTS = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(4).repeat(5)


def returned():
    """What each family returns, by its name in METRICS."""
    numbers = {"ks": (1, 12), "map_ks": (2,), "ndcg_ks": (3,), "knn_ks": (5,)}
    whole = set(measure(POINTS, LABELS, families=("retrieval",), **numbers)["metrics"])
    votes = {name for name in whole if name.startswith("knn")}
    return {
        "retrieval": (whole - votes) | set(retrieval_metrics(POINTS, LABELS)),
        "votes": votes,
        "whole gallery": set(
            whole_gallery_metrics({"embeddings": POINTS, "labels": LABELS}, POINTS, distance="cosine")
        ),
        "clustering": set(measure(POINTS, LABELS, families=("clustering",))["metrics"]),
        "geometry": {*measure(POINTS, LABELS, families=("geometry",))["metrics"], "avg_dtp"},
        "verification": set(
            verification_metrics(torch.rand(20), torch.arange(20) % 3 == 0, folds=2, fars=(0.1, 1e-5))
        ),
        "identification": set(
            identification_metrics(POINTS, LABELS, POINTS[:2], torch.tensor([0, 1]), ranks=(1, 2))
        ),
    }


def test_every_metric_has_its_row_and_every_row_its_metric():
    found = returned()
    assert set(FAMILIES) <= set(found)
    rows = {family: {_row(name) for name in names} for family, names in found.items()}
    assert rows == {
        family: {name for name, row in METRICS.items() if row.family == family} for family in found
    }
    assert sum(map(len, rows.values())) == len(METRICS) > 30


def test_the_help_of_evaluate_defines_what_it_measures():
    families = (*FAMILIES, "votes")
    names = [name for name, row in METRICS.items() if row.family in families and row.unit != "count"]
    assert len(names) > 15
    defined = {line.split()[0] for line in (evaluate.__doc__ or "").splitlines() if line.strip()}
    assert {*names} - defined == {"avg_dtp"}  # runs alone have proxies


def _row(name):
    """The key of a name in METRICS; itself where it has none."""
    keys = [key for key in (name, NUMBER.sub("K", name), NUMBER.sub("F", name)) if key in METRICS]
    return keys[0] if keys else name


@pytest.mark.parametrize(
    ("name", "title", "unit", "better"),
    [
        ("recall@10", "Recall@10", "percent", "higher"),
        ("map@5", "MAP@5", "percent", "higher"),
        ("map@r", "MAP@R", "percent", "higher"),
        ("knn@5", "5-NN accuracy", "percent", "higher"),
        ("tar@far=1e-05", "TAR@FAR=1e-05", "percent", "higher"),
        ("queries", "Queries", "count", "neither"),
        ("avg_dtp", "AvgDTP", "length", "neither"),
        ("hubness", "Hubness", "length", "lower"),
        ("left_out", "Left out", "percent", "higher"),
    ],
)
def test_a_name_finds_its_row(name, title, unit, better):
    row = metric_of(name)
    assert (row.title, row.unit, row.better) == (title, unit, better)
    assert factor_of(name) == (100 if unit == "percent" else 1)


def test_the_better_value_is_marked_whichever_way_is_better():
    names = ("recall@1", "hubness", "norm")
    rows = [Row((str(value),), dict.fromkeys(names, value)) for value in (0.5, 0.25)]
    cells = metric_table(rows, names, ("run",)).rows
    assert [[cell.best for cell in row[1:]] for row in cells] == [[True, False, False], [False, True, False]]


def test_a_recipe_follows_what_every_evaluation_measures():
    part = EvaluationPart(ks=(1, 3))
    assert part.measured() == ["recall@1", "recall@3", "precision@1", "r_precision", "map@r"]
    assert set(part.measured()) <= set(retrieval_metrics(POINTS, LABELS, ks=(1, 3)))
    assert names_of("clustering") == ["nmi", "nmi_geometric", "ami"]
    assert Metric("x", "").better == "higher"


def test_the_table_is_read_without_torch():
    code = "import sys, softwarp.tables; assert softwarp.tables.METRICS; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
