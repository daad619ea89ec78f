"""Numbers behind the report's pictures."""

import torch

from softwarp.report.demo import gallery
from softwarp.report.figures import curves, projection


def test_the_gallery_frames_right_and_wrong():
    labels = torch.arange(6).repeat_interleave(12)
    perfect = labels[:, None].float() * 10 + torch.rand(72, 1) / 10
    mixed = perfect.clone()
    mixed[0] = 50.05  # the first character sits among the last
    entries = gallery(str, {"good": (perfect, labels, "euclidean"), "bad": (mixed, labels, "euclidean")})
    assert len(entries) == 8
    hits = {answer["loss"]: [item["right"] for item in answer["items"]] for answer in entries[0]["answers"]}
    assert hits["good"] == [True] * 11
    assert hits["bad"] == [False] * 11


def test_no_query_is_shown_twice():
    labels = torch.arange(2).repeat_interleave(12)
    points = labels[:, None].float() * 10 + torch.linspace(0, 1, 12).repeat(2)[:, None]
    points[12] = 5.4  # the only one that finds the other class among its nearest
    assert len(gallery(str, {"one": (points, labels, "euclidean")})) == 1


def test_every_run_has_its_curve():
    rows = [{"epoch": 1, "loss": 2.0, "avg_dtp": 3.0}]
    drawn = [curves(dict.fromkeys("abcdef"[:count], rows)) for count in (4, 5)]
    assert drawn[0] != drawn[1]


def test_alpha_is_drawn_where_a_loss_has_one():
    rows = [{"epoch": epoch, "loss": 2.0, "avg_dtp": 3.0} for epoch in (1, 2)]
    drawn = [
        curves({"one": rows}),
        curves({"one": [row | {"alpha": a} for row, a in zip(rows, (7, 3), strict=True)]}),
    ]
    assert ["alpha of one" in figure for figure in drawn] == [False, True]


def test_figures_are_the_same_for_the_same_numbers():
    rows = [{"epoch": 1, "loss": 2.0, "avg_dtp": 3.0}, {"epoch": 2, "loss": 1.0, "avg_dtp": None}]
    rows = [row | {"alpha": 1.0} for row in rows]
    assert curves({"a": rows}) == curves({"a": rows})
    points, labels = torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    drawn = projection(
        points, labels, "cosine", dict(enumerate("ab$<"))
    )  # characters that markup or mathtext would mistake
    assert drawn.startswith("<svg")
