"""The study of small faces: whom it leaves out, what it judges, and that all of it runs."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from faces_small import accuracy_again, both_halves, main, people_in_both
from support.face_files import face

from softwarp.metrics import verification_metrics

ROOT = Path(__file__).parents[2]
TABLES = runpy.run_path(str(ROOT / "tools" / "readme_tables.py"))
SMALL = (
    *("data.resize=28", "data.crop=28", "data.workers=0"),
    *("model.backbone=test_efficientnet.r160_in1k", "model.pretrained=false", "model.embedding_size=8"),
    *("batches.classes=4", "batches.samples=2", "phases.0.epochs=1"),
)


def test_people_in_both_are_found_though_spelled_in_another_way():
    cfp = ["Diane Feinstein", "Al Pacino", "50 Cent", "Adam Levine"]
    assert people_in_both(cfp, ["Dianne_Feinstein", "Al_Pacino", "Ann_Veneman"]) == {
        "Diane Feinstein": "Dianne_Feinstein",
        "Al Pacino": "Al_Pacino",
    }


@pytest.mark.parametrize(("digits", "shares"), [(None, 2), (1, 2), (None, 15)])
def test_the_second_computation_of_accuracy_agrees(digits, shares):
    """Also where nearly all pairs are the same, and it is best to accept all."""
    generator = np.random.default_rng(0)
    same = np.arange(300) % shares > 0
    distances = generator.gamma(np.where(same, 6, 9))
    distances = distances if digits is None else distances.round(digits)
    folds = np.repeat(np.arange(10), 30)
    expected = verification_metrics(distances, same, folds=folds)["accuracy"]
    assert accuracy_again(distances, same, folds) == pytest.approx(expected, abs=1e-12)


def test_figures_over_both_halves_are_those_over_all_folds():
    folds = [np.array([0.5, 0.75, 1.0]), np.array([0.25, 0.75, 0.5])]
    halves = [{"accuracy": each.mean(), "accuracy_std": each.std(), "pairs": 30} for each in folds]
    found = both_halves(halves)
    assert found["accuracy"] == pytest.approx(np.concatenate(folds).mean())
    assert found["accuracy_std"] == pytest.approx(np.concatenate(folds).std())
    assert found["pairs"] == 60


def test_the_table_in_the_docs_is_made_from_the_result(tmp_path):
    figures = {name: {"accuracy": 0.8125, "accuracy_std": 0.01} for name in ("lfw", "cfp_ff", "cfp_fp")}
    content = {
        "rows": [{"row": "warped_softmax", **figures}],
        "people": {"trained_for_lfw": 329},
        "command": "x",
    }
    (tmp_path / "faces_small.json").write_text(json.dumps(content))
    page = (ROOT / "docs" / "faces.md").read_text()
    text = TABLES["with_tables"](page, tmp_path, TABLES["PAGES"]["docs/faces.md"])
    assert "| warped softmax | 81.2 ± 1.0 | 81.2 ± 1.0 | 81.2 ± 1.0 |" in text
    assert "329 people" in text


def write_cfp(root):
    """Twenty people, two in each of ten folds; the first is in LFW."""
    for person in range(1, 21):
        for number in range(4):
            path = root / "images" / f"{person:03d}" / f"frontal_{number:02d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(face(person, number, size=28))
    (root / "names.txt").write_text("".join(f"Person {chr(96 + n) * 6}\n" for n in range(1, 21)))
    rows = ["fold\tfirst\tsecond\tsame"]
    for fold in range(10):
        one, other = (f"{2 * fold + n:03d}/frontal" for n in (1, 2))
        for a, b in ((0, 1), (1, 2), (2, 3)):
            rows.append(f"{fold + 1}\t{one}_{a:02d}.jpg\t{one}_{b:02d}.jpg\t1")
            rows.append(f"{fold + 1}\t{one}_{a:02d}.jpg\t{other}_{b:02d}.jpg\t0")
    for name in ("ff", "fp"):
        (root / f"pairs_{name}.tsv").write_text("\n".join(rows))
    return root


def write_lfw(root):
    people = ["Person_aaaaaa", "Ann_Veneman", "Bo_Derek", "Cy_Young"]
    for place, name in enumerate(people):
        for number in range(1, 5):
            path = root / "images" / name / f"{name}_{number:04d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(face(100 + place, number, size=28))
    lines = ["10\t2"]
    for number in range(10):
        one, other = people[number % 4], people[(number + 1 + number // 4) % 4]
        lines += [f"{one}\t{n + 1}\t{n + 2}" for n in (number % 2, 2)]
        lines += [f"{one}\t{n}\t{other}\t{n}" for n in (1, 2)]
    (root / "pairs.txt").write_text("\n".join(lines))
    return root


@pytest.mark.slow
def test_the_study_runs_and_its_second_computations_agree(tmp_path):
    cfp, lfw = write_cfp(tmp_path / "cfp"), write_lfw(tmp_path / "lfw")
    main(cfp, lfw, list(SMALL), tmp_path / "runs", tmp_path / "result.json")
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["people"]["left_out"] == {"Person aaaaaa": "Person_aaaaaa"}
    assert found["images"] == {"lfw": 76, "half_0": 40, "half_1": 40}
    rows = {row["row"]: row for row in found["rows"]}
    assert len(rows) == 6
    for loss in ("warped_softmax", "euclidean_softmax", "cosface", "arcface"):
        for name, pairs in (("lfw", 40), ("cfp_ff", 60), ("cfp_fp", 60)):
            assert rows[loss][name]["pairs"] == pairs
            assert rows[loss][name]["accuracy_again"] == pytest.approx(rows[loss][name]["accuracy"])
    judged = (tmp_path / "runs" / "half_0.csv").read_text()
    assert "/011/" in judged  # the first half of the folds is judged, so the others train
    assert "/010/" not in judged
    packed = found["checks"]["as .bin"]
    assert packed == rows["warped_softmax"]["lfw"]
    again = found["checks"]["accuracy by another way"]
    assert again == pytest.approx(rows["warped_softmax"]["lfw"]["accuracy"], abs=0.026)  # one pair at most
