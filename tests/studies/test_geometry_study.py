"""What is measured of a space: distances to the right centres, proxies where there are any, correlations."""

import json
import math

import pytest
import torch
from support.tiny_runs import PHASE, tiny

from softwarp.studies import geometry
from softwarp.training.train import train_recipe


def test_distances_are_to_the_own_and_the_nearest_other_centre():
    points = torch.tensor([[0.0, 0.0], [6.0, 0.0]])
    centres = torch.tensor([[0.0, 1.0], [math.nan, math.nan], [6.0, 3.0], [6.0, 5.0]])
    own, other = geometry.distances(points, torch.tensor([0, 3]), centres, cosine=False)
    assert own.tolist() == [1.0, 5.0]
    assert other.tolist() == [pytest.approx(math.sqrt(45)), 3.0]
    found = geometry.distances_in_numbers((own, other))
    assert found["nearest_is_own"] == 0.5
    assert found["ratio"] == pytest.approx(6 / (math.sqrt(45) + 3))
    assert sum(found["own_counts"]) == sum(found["other_counts"]) == 2


def test_cosine_is_measured_on_the_unit_sphere():
    points, centres = torch.tensor([[5.0, 0.0]]), torch.tensor([[0.1, 0.0], [0.0, 9.0]])
    own, other = geometry.distances(points, torch.tensor([0]), centres, cosine=True)
    assert (own.item(), other.item()) == pytest.approx((0.0, math.sqrt(2)))


def entry(title, *values):
    side = {"own": 1.0, "other": 2.0, "ratio": 0.5, "nearest_is_own": 1.0, "high": 2.0}
    side |= {"own_counts": [1] * geometry.BINS, "other_counts": [2] * geometry.BINS}
    runs = [
        {
            "map@r": value,
            "distance": "euclidean",
            "measured_from": "proxies",
            "train": side,
            "unseen": side | {"ratio": 1 - value},
            "geometry": {"hubness": 2.0, "norm": value**2, "compactness": None},
            "spectrum": [0.6, 0.4],
            "norms": {"low": 1.0, "high": 2.0, "counts": [3] * geometry.BINS},
            "occurrences": [4, 5, 6],
        }
        for value in values
    ]
    return {"title": title, "loss": "hist", "runs": runs}


def test_measures_are_related_to_map_at_r_over_all_runs():
    summary = geometry.summarise([entry("a", 0.1, 0.2), entry("b", 0.4, 0.3)])
    related = summary["relations"]
    assert related["norm"] == pytest.approx(1.0)
    assert related["unseen ratio"] == pytest.approx(-1.0)
    assert related["hubness"] is None  # all alike
    assert related["compactness"] is None  # missing
    few = geometry.summarise([entry("a", 0.1, 0.2, 0.3)])
    assert set(few["relations"].values()) == {None}


def test_table_and_figures(tmp_path):
    summary = json.loads(json.dumps(geometry.summarise([entry("a $", 0.1, 0.2), entry("b", 0.4, 0.3)])))
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in geometry.table(summary).rows}
    assert rows["MAP@R"] == ["15.0 ± 7.1", "35.0 ± 7.1", ""]
    assert rows["unseen: own / other"][-1] == "-1.00"
    assert rows["train: measured from"] == ["proxies", "proxies", ""]
    assert rows["Compactness"] == ["", "", ""]
    drawn = geometry.draw(summary)
    assert set(drawn) == {"geometry_distances", "geometry_shape", "geometry_relations"}
    assert all(drawing.rows for drawing in drawn.values())


def test_runs_of_any_loss_are_measured(demo, tmp_path):
    """With proxies, on the sphere, and without any; AvgDTP is that of the run."""
    folder, runs = demo
    pairs = train_recipe(tiny(loss={"name": "triplet"}, phases=[PHASE]), tmp_path / "triplet").folder
    folders = [folder / "warped_softmax", folder / "proxy_nca_pp", pairs]
    summary = geometry.main(folders, output=tmp_path / "study", quick=False, on_event=None)
    warped, sphere, triplet = (each["runs"][0] for each in summary["entries"])
    assert [each["measured_from"] for each in (warped, sphere, triplet)] == [
        "proxies",
        "proxies",
        "class means",
    ]
    for measured, title in ((warped, "warped softmax"), (sphere, "ProxyNCA++")):
        assert measured["train"]["own"] == pytest.approx(runs[title].result().metrics["avg_dtp"], rel=1e-3)
    assert sphere["unseen"]["high"] <= 2
    again = geometry.main(folders, output=tmp_path / "study", quick=False, on_event=None)
    assert again == summary


def test_proxies_that_are_gone_give_way_to_class_means(tmp_path):
    run = train_recipe(tiny(phases=[PHASE]), tmp_path / "run")
    assert geometry.kept_proxies(run).shape == (20, 16)
    run.remove_checkpoints()
    assert geometry.kept_proxies(run) is None


def test_proxies_of_another_model_are_not_taken(tmp_path):
    """A model half of the way back to its start is not where its proxies were trained."""
    recipe = tiny(phases=[PHASE], optimizer={"name": "adam", "wise_ft": 0.5})
    assert geometry.kept_proxies(train_recipe(recipe, tmp_path)) is None
