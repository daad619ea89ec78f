"""The toy in two dimensions: its images, its training, which resumes, and its numbers."""

import gzip
import json
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from softwarp.cli import app
from softwarp.studies import toy, toy_training
from softwarp.training.train import StoppedError

PLAN = {"rounds": 3, "steps": 2, "seeds": 1}


@pytest.fixture(scope="module")
def digits():
    return toy.load_pictures(None, per_class=0)


def write_idx(path, array):
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    path.write_bytes(gzip.compress(header + array.tobytes()))


@pytest.fixture
def fashion(tmp_path):
    """Four files: an image of class c is c + 1 everywhere."""
    for part, count in (("train", 30), ("t10k", 20)):
        labels = np.arange(count, dtype=np.uint8) % 10
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte.gz", labels)
        pixels = np.broadcast_to(labels[:, None, None] + 1, (count, 28, 28)).astype(np.uint8)
        write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", pixels)
    return tmp_path


def test_ten_digits_stand_in(digits):
    for (images, labels), count in ((digits.train, 90), (digits.held_out, 30)):
        assert images.shape == (count, 1, 32, 32)
        assert (images.min(), images.max()) == (0, 1)
        assert labels.bincount().tolist() == [count // 10] * 10
    assert digits.names == tuple("0123456789")
    inks = [digits.train[0][digits.train[1] == label].sum() for label in (1, 8)]
    assert inks[0] < inks[1]  # a one has less ink than an eight


def test_fashion_is_read_class_by_class(fashion):
    pictures = toy.load_pictures(fashion, per_class=3)
    images, labels = pictures.train
    assert labels.tolist() == [label for label in range(10) for _ in range(3)]
    assert images.shape == (30, 1, 32, 32)
    torch.testing.assert_close(images[:, 0, 16, 16], (labels + 1) / 255)
    assert images[:, 0, 1].max() == 0  # the margin
    assert len(pictures.held_out[1]) == 10


def test_a_missing_file_is_named(fashion):
    (fashion / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(ValueError, match=r"t10k-labels.*FashionMNIST"):
        toy.load_pictures(fashion, per_class=3)


def test_measures_of_known_points():
    points = torch.tensor([[0.0, 1.0], [0.0, -1.0], [4.0, 1.0], [4.0, -1.0]])
    proxies = torch.tensor([[0.0, 0.0], [1.0, -1.0]])
    found = toy_training.measures(points, torch.tensor([0, 0, 1, 1]), proxies)
    assert found["separability_ratio"] == 2.0
    assert found["avg_dtp"] == pytest.approx((1 + (13**0.5 + 3) / 2) / 2)
    assert found["accuracy"] == 1.0
    assert toy_training.measures(points, torch.tensor([1, 0, 1, 1]), proxies)["accuracy"] == 0.75


def trained(folder, digits, kind="twice", alpha=6.0):
    toy.train_toy(folder, None, kind=kind, alpha=alpha, seed=0, pictures=digits, plan=PLAN)
    return json.loads((folder / "result.json").read_text())


@pytest.mark.parametrize(("kind", "alpha"), [("twice", 6.0), ("automatic", "auto")])
def test_a_stopped_training_resumes_to_the_same_end(tmp_path, digits, monkeypatch, kind, alpha):
    whole = trained(tmp_path / "whole", digits, kind, alpha)

    @contextmanager
    def at_once(_device):
        yield lambda: True

    for _ in range(2):  # before the warp begins, and after
        with monkeypatch.context() as patch:
            patch.setattr(toy_training, "asked_to_stop", at_once)
            with pytest.raises(StoppedError):
                trained(tmp_path / "stopped", digits, kind, alpha)
    assert not (tmp_path / "stopped" / "result.json").exists()
    assert trained(tmp_path / "stopped", digits, kind, alpha) == whole
    frames = torch.load(tmp_path / "stopped" / "checkpoint.pt", weights_only=True)["frames"]
    assert len(frames) == PLAN["rounds"] + 1


def test_the_warp_begins_after_a_quarter_and_all_else_is_the_same(tmp_path, digits):
    frames, alphas = [], []
    for kind, alpha in (("plain", 0.0), ("twice", 6.0), ("automatic", "auto")):
        alphas.append(trained(tmp_path / kind, digits, kind, alpha).get("alpha"))
        frames.append(torch.load(tmp_path / kind / "checkpoint.pt", weights_only=True)["frames"])
    assert alphas[:2] == [None, 6.0]
    assert 0 < alphas[2] != 6.0
    for plain, *warped in list(zip(*frames, strict=True))[:2]:
        for each in warped:
            torch.testing.assert_close(plain, each)
    assert (frames[0][-1][0] - frames[1][-1][0]).abs().max() > 1e-4
    assert (frames[1][-1][0] - frames[2][-1][0]).abs().max() > 1e-4


def test_alpha_lies_beyond_the_distance_that_eq_4_ends_at(tmp_path, digits):
    """At that distance or below it, a warp would pull inward."""
    found = toy.collect(digits, tmp_path, PLAN, None)["results"]
    (plain,), (twice,) = found["plain"], found["twice"]
    assert twice["alpha"] == pytest.approx(2 * plain["train"]["avg_dtp"])


def results(separability, compactness, **alpha):
    measures = {"separability": separability, "compactness": compactness, "avg_dtp": 1.0, "accuracy": 1.0}
    part = measures | {"separability_ratio": separability / compactness}
    drawn = {"points": "0,0 1,1 2,2 3,3", "proxies": "0,0 2,2"}
    return {"train": part, "held_out": part, "drawn": drawn, **alpha}


def test_claims_compare_each_warp_with_eq_4():
    runs = {
        "plain": [results(4.0, 1.0), results(4.2, 1.1)],
        "twice": [results(8.0, 2.0, alpha=2.0), results(8.2, 2.1, alpha=2.2)],
        "automatic": [results(3.0, 0.5, alpha=0.5), results(3.2, 0.55, alpha=0.6)],
    }
    about = {"names": ("a", "b"), "source": "tests", "images": 4, "plan": {"seeds": 2}}
    summary = toy.summarise({"results": runs, **about})
    found = [each["verdict"] for each in summary["claims"]]
    assert found == ["held", "not held", "undecided", "not held", "held", "held"]
    caption = ["caption of Fig. 10", "caption of Fig. 10", "our reading"]
    assert [each["said"] for each in summary["claims"]] == 2 * caption
    shown = toy.table(summary).markdown()
    assert "| alpha |  | - | 2.00, 2.20 | 0.50, 0.60 |" in shown
    assert "| Separability | held out | 4.10 ± 0.14 | 8.10 ± 0.14 | 3.10 ± 0.14 |" in shown
    drawing = toy.draw(summary)["toy"]
    assert len(drawing.rows) == 3 * 4
    assert drawing.rows[2] == {"loss": "Eq. 4", "class": "b", "x": 2.0, "y": 2.0}


@pytest.mark.slow
def test_the_whole_study_runs_quickly_and_animates(tmp_path):
    result = CliRunner().invoke(app, ["study", "toy", "--quick", "--output", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert {"toy.svg", "toy.csv", "toy.gif", "summary.json"} <= {path.name for path in tmp_path.iterdir()}
    with Image.open(tmp_path / "toy.gif") as animation:
        assert animation.n_frames == 9
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["rows"]["plain"]["train"]["mean"]["accuracy"] > 0.3
    assert summary["source"] == "ten digits of the glyphs"
