"""Table 4: uncorrupted figures are those of result.json, means, drops and ranks are right."""

import base64
import io
import json

import pytest
from PIL import Image
from support.results import finished_run

from softwarp.data.corruptions import CORRUPTIONS
from softwarp.studies import noise


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
    assert [cell.text for cell in rows["gaussian"]] == ["60.0 ± 0.0", "65.0 ± 0.0"]
    assert [cell.best for cell in rows["gaussian"]] == [False, True]
    assert [cell.best for cell in rows["jigsaw"]] == [True, False]
    assert [cell.text for cell in rows["mean drop"]] == ["30.0", "30.0"]
    assert [cell.text for cell in rows["mean rank"]] == ["1.3", "1.7"]
    assert [cell.text for cell in rows["mean of corruptions"]] == ["50.0 ± 0.0", "40.0 ± 0.0"]
    one = noise.table(summarised((1, 1)))
    assert one.title.endswith("one seed each")
    assert not any(cell.best or cell.second for row in one.rows for cell in row)


def test_figures_carry_their_numbers(summary):
    drawn = noise.draw(summary)
    assert len(drawn["noise"].rows) == 3 * 3 + 3 * 3 * 2
    assert {row["corruption"] for row in drawn["corruptions"].rows} == {"gaussian", "jigsaw", "cutout"}
    assert all("(" in row["severities 1 to 5"] for row in drawn["corruptions"].rows)


def test_the_uncorrupted_figures_are_the_run_s_own_and_a_study_resumes(demo, tmp_path, monkeypatch):
    monkeypatch.setattr(noise, "CORRUPTIONS", {"jigsaw": CORRUPTIONS["jigsaw"]})
    folder, runs = demo
    folders = [folder / "warped_softmax", folder / "proxy_nca_pp"]
    found = noise.main(folders, output=tmp_path, quick=True, progress=None)
    for row, place in zip(found["runs"], folders, strict=True):
        metrics = next(run for run in runs.values() if run.folder == place).result().metrics
        own = row["values"]["uncorrupted"]["0"]
        assert (own["recall@1"], own["map@r"]) == ([metrics["recall@1"]], [metrics["map@r"]])
        assert row["values"]["jigsaw"]["4"]["recall@1"][0] < metrics["recall@1"]
    monkeypatch.setattr(noise, "retrieval_of", lambda *_: pytest.fail("judged again"))
    assert noise.main(folders, output=tmp_path, quick=True, progress=None) == found
    with pytest.raises(ValueError, match="seed is 0 there and 1 here"):
        noise.main(folders, seed=1, output=tmp_path, quick=True, progress=None)


def test_runs_on_other_images_are_refused(tmp_path):
    folders = [finished_run(tmp_path / name, data_sha256=name).folder for name in ("a", "b")]
    with pytest.raises(ValueError, match="different images"):
        noise.main(folders, output=tmp_path / "study", quick=True, progress=None)
