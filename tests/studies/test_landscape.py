"""The landscapes' numbers, and that the pages' examples run."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from softwarp.figures import svg
from softwarp.losses.warps import piecewise
from softwarp.studies import landscape, landscape_figures, planes

PAGE = Path(__file__).parents[2] / "docs" / "loss.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.M | re.S)


TWO, FOUR = (np.array(landscape.PROXIES[name]) for name in ("two", "four"))


@pytest.fixture(scope="module")
def summary():
    found = landscape.collect(list(landscape.FUNCTIONS), landscape.PROXIES, pairs=10)
    return {"columns": 33} | landscape.summarise(found)


def row_of(summary, function, proxies="two"):
    (row,) = [row for row in summary["rows"] if (row["function"], row["proxies"]) == (function, proxies)]
    return row


def test_embeddings_settle_where_the_paper_says(summary):
    found = {row["function"]: row["settles"] for row in summary["rows"] if row["proxies"] == "two"}
    assert found == {"t": None, "t^2": "infinity", "sqrt t": 0.0, "warp(3, 0.65, 1.5)": 3.0}
    assert {claim["verdict"] for claim in summary["claims"]} == {"held"}
    assert len(summary["claims"]) == 6


def test_claims_that_do_not_hold_are_called_so(summary):
    random = summary["random"] | {"largest_error": 1.5}
    rows = [row | {"settles": 0.0} for row in summary["rows"]]
    disks = {"increasing": {"lowest": 0.0, "highest": 3.0}, "falling": {"lowest": 0.0, "highest": 0.0}}
    claims = landscape.claims_of({"rows": rows, "disks": disks, "random": random})
    assert [claim["verdict"] for claim in claims] == ["not held"] * 5 + ["held"]  # sqrt t is on its proxy


def test_minima_are_found_on_the_plane(summary):
    places = {row["function"]: row["minima"] for row in summary["rows"] if row["proxies"] == "two"}
    assert places["t"] == places["t^2"] == []
    assert places["sqrt t"] == [pytest.approx((0.0, 0.0), abs=1e-6)]
    assert places["warp(3, 0.65, 1.5)"] == [pytest.approx((-3.0, 0.0), abs=1e-4)]
    (four,) = row_of(summary, "warp(3, 0.65, 1.5)", "four")["minima"]
    assert four == pytest.approx((-3 / 2**0.5, 3 / 2**0.5), abs=1e-3)  # away from the square of the others


@settings(max_examples=15, deadline=None)
@example(own=(0.0, 0.0), angle=0.0, gap=7.0, alpha=0.375, k1=0.5, k2=2.0)  # alpha is within a square
@given(
    own=st.tuples(st.floats(-5, 5), st.floats(-5, 5)),
    angle=st.floats(0, 6.28),
    gap=st.floats(0.5, 8),
    alpha=st.floats(0.3, 6),
    k1=st.floats(0.1, 0.95),
    k2=st.floats(1.05, 2.5),
)
def test_a_warp_has_one_minimum_at_alpha_on_the_line(own, angle, gap, alpha, k1, k2):
    direction = np.array([math.cos(angle), math.sin(angle)])
    proxies = np.array([own, own + gap * direction])
    functions = planes.parse_functions(f"warp({alpha:.4f},{k1:.4f},{k2:.4f})")
    window = planes.window_of(proxies, alpha)
    (found,) = planes.minima_of(functions, proxies, window, columns=49)
    assert np.linalg.norm(found - (own - alpha * direction)) < (window[1] - window[0]) / 48


def test_on_the_line_there_is_a_plateau_a_fall_a_rise_and_a_valley():
    def softplus(*values):
        return pytest.approx([math.log1p(math.exp(value)) for value in values], abs=1e-12)

    def losses(text):
        line = planes.line_of(planes.parse_functions(text), TWO, 0.0, 6.0)
        return line.felt[[0, 96, 192]].tolist()

    # f1(t) - f2(t + 4) at t = 0, 3 and 6: the proxies are 4 apart.
    assert losses("t") == softplus(-4, -4, -4)
    assert losses("t^2") == softplus(-16, 9 - 49, 36 - 100)
    assert losses("sqrt t") == softplus(-2, 3**0.5 - 7**0.5, 6**0.5 - 10**0.5)
    assert losses("0.5 t") == softplus(-4, 1.5 - 7, 3 - 10)
    assert losses("warp(3, 0.65, 1.5)") == softplus(0.35 * 3 - 4, 3 - 7, (3 + 1.5 * 3) - 10)


def test_delta_hides_the_valley_from_what_the_loss_says(summary):
    row = row_of(summary, "warp(3, 0.65, 1.5)")
    assert row["said_on_proxy"] == pytest.approx(math.log1p(math.exp(-4)))  # as at alpha
    assert row["felt_on_proxy"] > 2 * row["said_on_proxy"]


def test_what_is_felt_falls_along_the_force(summary):
    assert len(summary["rows"]) == 8
    for row in summary["rows"]:
        assert row["alignment"] == pytest.approx(1.0, abs=1e-9)


def test_the_exponent_is_that_of_the_loss():
    points = np.random.default_rng(0).normal(0, 4, (50, 2))
    for text in ("t^1.5", "1.1t", "warp(2,0.5,1.5,1.3)"):
        functions = planes.parse_functions(text)
        z = planes.exponent(points, FOUR, functions.own, functions.other)
        loss, _ = planes.loss_and_force(points, FOUR, functions.own, functions.other)
        assert np.log1p(np.exp(z)) == pytest.approx(loss, rel=1e-12)


@pytest.mark.parametrize("text", ["t2", "warp(3)", "-1t", "warp(3,0.5,)", ""])
def test_what_is_no_function_is_named(text):
    with pytest.raises(ValueError, match="warp"):
        planes.parse_functions(text)


@pytest.mark.parametrize("text", ["0,0", "0,0 0,0", "0,0 1", "a,b 1,2"])
def test_proxies_that_cannot_be_are_named(text):
    with pytest.raises(ValueError, match="--proxies"):
        landscape.parse_places(text)


def test_the_felt_function_is_continuous_and_has_the_slopes_of_the_warp():
    t = torch.tensor([1.0, 3.0 - 1e-9, 3.0, 5.0], dtype=torch.float64, requires_grad=True)
    felt = planes.felt(alpha=3.0, k1=0.65, k2=1.5)(t)
    trained = piecewise(alpha=3.0, k1=0.65, k2=1.5)(t)
    assert felt[1].item() == pytest.approx(felt[2].item(), abs=1e-8)
    slopes = [torch.autograd.grad(values.sum(), t)[0].tolist() for values in (felt, trained)]
    assert slopes[0] == slopes[1] == [0.65, 0.65, 1.5, 1.5]


@pytest.mark.parametrize(("delta", "circulates"), [(0.0, False), (1.0, True)])
def test_with_delta_the_force_is_no_functions_gradient(delta, circulates):
    """The work done round a circle that stays inside alpha and off the line."""
    angles = np.linspace(0, 2 * math.pi, 4001)[:-1]
    circle = np.stack([1.0 + np.cos(angles) / 2, 1.5 + np.sin(angles) / 2], axis=1)
    steps = np.stack([-np.sin(angles), np.cos(angles)], axis=1) * math.pi / 4000
    warp = piecewise(alpha=3.0, k1=0.65, k2=1.5, delta=delta)
    _, force = planes.loss_and_force(circle, TWO, warp, lambda t: t)
    assert (abs((force * steps).sum()) > 1e-3) == circulates


def test_a_plane_is_drawn_for_each_function(summary):
    functions = [planes.parse_functions(text) for text in ("t", "warp(3, 0.65, 1.5)")]
    text = svg(landscape_figures.draw_functions(functions, TWO, columns=17))
    assert text.count("<image") >= 2
    assert landscape.table(summary).markdown().count("warp(3, 0.65, 1.5)") == 2


@pytest.mark.slow
def test_every_figure_is_drawn(summary):
    drawn = landscape.draw(summary)
    parts = ("_four", "_pairs", "_felt_and_said", "_surfaces", "_lemma", "_proposition")
    assert set(drawn) == {"landscape", *(f"landscape{part}" for part in parts)}
    assert all(drawing.rows for drawing in drawn.values())
    text = svg(drawn["landscape"].figure)
    assert text.count("<image") >= 4  # a surface in each panel


def test_the_figure_of_the_page_is_there_and_small():
    figure = (
        PAGE.parent / re.search(r"\((images/study_landscape\.svg)\)", PAGE.read_text(encoding="utf-8"))[1]
    )
    assert 50_000 < figure.stat().st_size < 400_000


def test_the_page_has_examples():
    assert len(EXAMPLES) == 9


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.splitlines()[-1][:40])
def test_examples_of_the_page_run(example):
    torch.manual_seed(0)
    exec(compile(example, str(PAGE), "exec"), {})


@pytest.mark.parametrize("texts", [["t"], ["t", "1.1t"]])
def test_any_number_of_functions_is_drawn(texts):
    found = landscape.collect(texts, {"given": ((0.0, 0.0), (4.0, 0.0))}, pairs=1)
    summary = {"columns": 17} | landscape.summarise(found)
    assert all(svg(drawing.figure).startswith("<svg") for drawing in landscape.draw(summary).values())
    assert landscape.table(summary).rows[0][2].text == "anywhere"
