"""Table 4: uncorrupted figures are those of result.json, means, drops and ranks are right."""

import base64
import io
import json
from pathlib import Path
from types import SimpleNamespace

import dropout_strength
import pytest
import torch
from PIL import Image
from support.results import finished_run

from softwarp.data.corruptions import CORRUPTIONS, HEAVY, corrupt
from softwarp.studies import noise
from softwarp.studies.published import TABLE_4


def outcome(recall, *, seeds=1):
    """What a study collects: two corruptions with two severities, and no corruption."""
    return {
        name: {
            severity: {"recall@1": [value] * seeds, "map@r": [value / 2] * seeds}
            for severity, value in some.items()
        }
        for name, some in recall.items()
    }


GOOD = {"uncorrupted": {"0": 0.8}, "gaussian": {"2": 0.7, "4": 0.5}, "jigsaw": {"2": 0.4, "4": 0.2}}
POOR = {"uncorrupted": {"0": 0.7}, "gaussian": {"2": 0.7, "4": 0.6}, "jigsaw": {"2": 0.2, "4": 0.0}}
GOOD["cutout"], POOR["cutout"] = {"2": 0.7, "4": 0.5}, {"2": 0.5, "4": 0.4}


def summarised(seeds):
    buffer = io.BytesIO()
    Image.new("RGB", (24, 24), (200, 90, 40)).save(buffer, "PNG")
    runs = [
        {"title": title, "loss": "hist", "seeds": seeds, "values": outcome(each, seeds=seeds)}
        for title, each, seeds in zip(("good", "poor $"), (GOOD, POOR), seeds, strict=True)
    ]
    example = base64.b64encode(buffer.getvalue()).decode()
    return noise.summarise(seed=0, classes=5, images=50, example=example, runs=runs)


@pytest.fixture
def summary():
    return summarised((1, 2))


def test_means_drops_and_ranks(summary):
    good, poor = summary["runs"]
    assert good["means"]["gaussian"]["recall@1"] == pytest.approx([0.6])
    assert poor["means"]["gaussian"]["recall@1"] == pytest.approx([0.65, 0.65])
    assert (good["mean"], good["drop"], good["rank"]) == pytest.approx((0.5, 0.3, 4 / 3))
    assert (poor["mean"], poor["drop"], poor["rank"]) == pytest.approx((0.4, 0.3, 5 / 3))
    json.dumps(summary)


def test_the_table_marks_the_best_of_each_corruption_if_there_are_seeds():
    table = noise.table(summarised((2, 2)))
    rows = {row[0].text: row[1:] for row in table.rows}
    ours = {name: [cell.text for cell in cells[:2]] for name, cells in rows.items()}
    assert ours["gaussian"] == ["60.0 ± 0.0", "65.0 ± 0.0"]
    assert [cell.best for cell in rows["gaussian"]] == [False, True, *[False] * 4]
    assert [cell.best for cell in rows["jigsaw"]] == [True, False, *[False] * 4]
    assert ours["mean drop"] == ["30.0", "30.0"]
    assert ours["mean rank"] == ["1.3", "1.7"]
    assert ours["mean of corruptions"] == ["50.0 ± 0.0", "40.0 ± 0.0"]
    one = noise.table(summarised((1, 1)))
    assert one.title.endswith("one seed each")
    assert not any(cell.best or cell.second for row in one.rows for cell in row)


def test_the_paper_s_table_with_hist_stands_beside_ours():
    table = noise.table(summarised((1, 1)))
    assert table.whole_heads()[-4:] == (
        *("paper hist", "paper proxy_nca_pp"),
        *("paper euclidean_softmax", "paper warped_softmax"),
    )
    rows = {row[0].text: [cell.text for cell in row[-4:]] for row in table.rows}
    assert rows["cutout"] == ["64.5", "54.5", "59.5", "61.6"]  # typed from the paper
    assert rows["mean drop"] == [""] * 4
    assert set(TABLE_4) == {"uncorrupted", *CORRUPTIONS}


def test_the_strength_outside_the_severities_counts_for_no_mean():
    values = outcome(GOOD | {"dropout of 35%": {"1": 0.0}})
    without = noise.summarise(runs=[{"title": "a", "seeds": 1, "values": outcome(GOOD)}])["runs"][0]
    with_it = noise.summarise(runs=[{"title": "a", "seeds": 1, "values": values}])["runs"][0]
    assert (with_it["mean"], with_it["drop"]) == (without["mean"], without["drop"])
    assert with_it["means"]["dropout of 35%"]["recall@1"] == [0.0]


def test_the_strength_of_dropout_is_written_beside_the_paper_s(tmp_path, monkeypatch):
    monkeypatch.setattr(dropout_strength, "RESULT", tmp_path / "result.json")
    monkeypatch.setattr(dropout_strength, "load_source", lambda *_: SimpleNamespace(query_labels=[0] * 7))
    monkeypatch.setattr(dropout_strength, "load", lambda name: name)
    monkeypatch.setattr(
        dropout_strength, "retrieval_of", lambda *given: {"recall@1": 0.8 * (1 - given[3] / 100)}
    )
    dropout_strength.main(tmp_path / "CUB")
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["kept"]["35"] == pytest.approx(0.65)
    assert found["kept_in_the_paper"]["warped_softmax"] == pytest.approx(28.9 / 72.5)
    assert found["command"].endswith("dropout_strength.py CUB")


def test_the_heavy_dropout_is_the_one_that_costs_what_the_paper_s_does():
    root = Path(__file__).parents[2]
    found = json.loads((root / "results" / "dropout_strength.json").read_text())
    wanted = found["kept_in_the_paper"]["warped_softmax"]
    assert int(min(found["kept"], key=lambda percent: abs(found["kept"][percent] - wanted))) == HEAVY
    page = (root / "docs" / "studies.md").read_text()
    assert f"{found['kept'][str(HEAVY)]:.2f} of their Recall@1" in page


def test_dropout_is_a_percentage_outside_the_severities_too():
    image = torch.full((3, 64, 64), 100, dtype=torch.uint8)
    heavy = corrupt(image, "dropout of 35%", 1)
    assert float((heavy == 0).float().mean()) == pytest.approx(0.35, abs=0.03)
    assert "dropout of 35%" not in CORRUPTIONS


def test_figures_carry_their_numbers(summary):
    drawn = noise.draw(summary)
    assert len(drawn["noise"].rows) == 3 * 3 + 3 * 3 * 2
    assert {row["corruption"] for row in drawn["corruptions"].rows} == {"gaussian", "jigsaw", "cutout"}
    assert all("(" in row["severities 1 to 5"] for row in drawn["corruptions"].rows)


def test_the_uncorrupted_figures_are_the_run_s_own_and_a_study_resumes(demo, tmp_path, monkeypatch):
    monkeypatch.setattr(noise, "CORRUPTIONS", {"jigsaw": CORRUPTIONS["jigsaw"]})
    folder, runs = demo
    folders = [folder / "warped_softmax", folder / "proxy_nca_pp"]
    found = noise.main(folders, output=tmp_path, quick=True, on_event=None)
    for row, place in zip(found["runs"], folders, strict=True):
        metrics = next(run for run in runs.values() if run.folder == place).result().metrics
        own = row["values"]["uncorrupted"]["0"]
        assert (own["recall@1"], own["map@r"]) == ([metrics["recall@1"]], [metrics["map@r"]])
        assert row["values"]["jigsaw"]["4"]["recall@1"][0] < metrics["recall@1"]
        assert row["values"]["dropout of 35%"]["1"]["recall@1"][0] < metrics["recall@1"]
    monkeypatch.setattr(noise, "retrieval_of", lambda *_: pytest.fail("judged again"))
    assert noise.main(folders, output=tmp_path, quick=True, on_event=None) == found
    with pytest.raises(ValueError, match="seed is 0 there and 1 here"):
        noise.main(folders, seed=1, output=tmp_path, quick=True, on_event=None)


def test_runs_on_other_images_are_refused(tmp_path):
    folders = [finished_run(tmp_path / name, data_sha256=name).folder for name in ("a", "b")]
    with pytest.raises(ValueError, match="different images"):
        noise.main(folders, output=tmp_path / "study", quick=True, on_event=None)
