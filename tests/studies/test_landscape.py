"""The landscapes' numbers, and that the pages' examples run."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from softwarp.losses.warps import piecewise
from softwarp.studies import landscape

PAGE = Path(__file__).parents[2] / "docs" / "loss.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.M | re.S)


@pytest.fixture(scope="module")
def landscapes():
    return landscape.collect(columns=65)


@pytest.fixture(scope="module")
def summary(landscapes):
    return landscape.summarise(landscapes)


def test_embeddings_settle_where_the_paper_says(summary):
    found = {name: numbers["attractor"] for name, numbers in summary.items()}
    assert found == {"t": None, "t^2": math.inf, "sqrt t": 0.0, "warp": 3.0}


def test_on_the_line_there_is_a_plateau_a_fall_a_rise_and_a_valley(summary):
    def losses(name):
        return [summary[name][f"loss_at_{place}"] for place in ("proxy", "alpha", "twice_alpha")]

    def softplus(*values):
        return pytest.approx([math.log1p(math.exp(value)) for value in values], abs=1e-12)

    # f1(t) - f2(t + 4) at t = 0, 3 and 6: the proxies are 4 apart.
    assert losses("t") == softplus(-4, -4, -4)
    assert losses("t^2") == softplus(-16, 9 - 49, 36 - 100)
    assert losses("sqrt t") == softplus(-2, 3**0.5 - 7**0.5, 6**0.5 - 10**0.5)
    assert losses("warp") == softplus(0.35 * 3 - 4, 3 - 7, (3 + 1.5 * 3) - 10)


def test_delta_hides_the_valley_from_the_printed_value(summary):
    assert summary["warp"]["value_at_proxy"] == pytest.approx(summary["warp"]["loss_at_alpha"])
    assert summary["warp"]["loss_at_proxy"] > 2 * summary["warp"]["value_at_proxy"]


def test_what_is_drawn_falls_along_the_force(summary):
    assert len(summary) == 4
    for numbers in summary.values():
        assert numbers["alignment"] == pytest.approx(1.0, abs=1e-9)


def test_the_lowest_place_of_the_plane_is_at_alpha_for_the_warp_and_on_the_proxy_for_the_root(landscapes):
    for name, place in (("warp", (-3.0, 0.0)), ("sqrt t", (0.0, 0.0))):
        found = landscapes[name]
        row, column = np.unravel_index(found.loss.argmin(), found.loss.shape)
        assert (found.x[column], found.y[row]) == pytest.approx(place)


def test_the_drawn_function_is_continuous_and_has_the_slopes_of_the_warp():
    t = torch.tensor([1.0, 3.0 - 1e-9, 3.0, 5.0], dtype=torch.float64, requires_grad=True)
    drawn = landscape.felt(alpha=3.0, k1=0.65, k2=1.5)(t)
    trained = piecewise(alpha=3.0, k1=0.65, k2=1.5)(t)
    assert drawn[1].item() == pytest.approx(drawn[2].item(), abs=1e-8)
    slopes = [torch.autograd.grad(values.sum(), t)[0].tolist() for values in (drawn, trained)]
    assert slopes[0] == slopes[1] == [0.65, 0.65, 1.5, 1.5]


@pytest.mark.parametrize(("delta", "circulates"), [(0.0, False), (1.0, True)])
def test_with_delta_the_force_is_no_functions_gradient(delta, circulates):
    """The work done round a circle that stays inside alpha and off the line."""
    angles = torch.linspace(0, 2 * math.pi, 4001, dtype=torch.float64)[:-1]
    circle = torch.stack([1.0 + angles.cos() / 2, 1.5 + angles.sin() / 2], dim=1)
    steps = torch.stack([-angles.sin(), angles.cos()], dim=1).numpy() * math.pi / 4000
    warp = piecewise(alpha=3.0, k1=0.65, k2=1.5, delta=delta)
    _, force = landscape._loss_and_force(circle, warp, lambda t: t)
    assert (abs((force * steps).sum()) > 1e-3) == circulates


def test_the_figure_is_written(tmp_path, monkeypatch):
    coarse = landscape.collect(columns=33)
    monkeypatch.setattr(landscape, "collect", lambda: coarse)
    landscape.main(tmp_path / "new" / "landscape.svg")
    text = (tmp_path / "new" / "landscape.svg").read_text(encoding="utf-8")
    assert text.startswith("<svg")
    assert text.count("<image") >= 4  # a surface in each panel


def test_the_figure_of_the_page_is_there_and_small():
    figure = PAGE.parent / re.search(r"\((images/landscape\.svg)\)", PAGE.read_text(encoding="utf-8"))[1]
    assert 50_000 < figure.stat().st_size < 300_000


def test_the_page_has_examples():
    assert len(EXAMPLES) == 9


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.splitlines()[-1][:40])
def test_examples_of_the_page_run(example):
    torch.manual_seed(0)
    exec(compile(example, str(PAGE), "exec"), {})
