"""Figs. 6, 7 and 8: curves of the paper's shape hold its claims, others do not; no pixel is looked at."""

import json

import pytest
from support.results import result
from support.study_rows import ABOUT, row, verdicts
from support.tiny_runs import tiny

from softwarp.figures import svg
from softwarp.studies import alpha, delta, load_study, phases, slopes, variants
from softwarp.studies.sweeps import collect_sweep, drawn_rows, flattest, summarise_sweep, sweep_table
from softwarp.studies.variants import Outcome

RISE_AND_FALL = (0.5, 0.6, 0.7, 0.701, 0.7, 0.6)


def points(*recalls, deviation=0.002, **changes):
    return [
        {
            "value": float(place),
            **row(deviation, recall=value, map_r=value / 2, avg_dtp=float(place), **changes),
        }
        for place, value in enumerate(recalls)
    ]


@pytest.mark.parametrize(
    ("recalls", "expected"),
    [
        (RISE_AND_FALL, ["held", "held", "held"]),
        ((0.7, 0.701, 0.7, 0.6, 0.5, 0.4), ["undecided", "held", "held"]),
        ((0.4, 0.5, 0.6, 0.7, 0.701, 0.7), ["held", "held", "undecided"]),
        ((0.4, 0.5, 0.6, 0.7, 0.6, 0.5), ["held", "not held", "held"]),
    ],
)
def test_fig_6_rises_is_stable_and_falls(recalls, expected):
    assert verdicts(alpha.claims_of({"points": points(*recalls)}))[:3] == expected


def test_alpha_and_avg_dtp_correlate():
    """The paper notes a correlation; that AvgDTP is within 5% of alpha is our reading."""
    made = points(*RISE_AND_FALL)
    assert verdicts(alpha.claims_of({"points": made}))[3:] == ["held", "held"]
    for point in made:
        point["mean"]["avg_dtp"] = 2.0 + 0.5 * point["value"]
    correlate, near = alpha.claims_of({"points": made})[3:]
    assert (correlate["verdict"], correlate["said"]) == ("held", "section 4.5")
    assert correlate["numbers"].startswith("r = 1.000; alpha 1: 2.50")
    assert (near["verdict"], near["said"]) == ("not held", "our reading")
    assert "alpha 0:" not in near["numbers"]
    for point, distance in zip(made, (9, 3, 1, 4, 2, 3), strict=True):
        point["mean"]["avg_dtp"] = float(distance)
    assert verdicts(alpha.claims_of({"points": made}))[3] == "undecided"
    for point in made:
        point["mean"]["avg_dtp"] = 9.0 - point["value"]
    assert verdicts(alpha.claims_of({"points": made}))[3] == "not held"


@pytest.mark.parametrize(
    ("recalls", "expected"),
    [
        ((0.6, 0.7, 0.65, 0.601, 0.6, 0.6), ["held", "held", "held"]),
        ((0.7, 0.701, 0.65, 0.6, 0.6, 0.6), ["undecided", "held", "held"]),
        ((0.7, 0.6, 0.6, 0.6, 0.6, 0.6), ["not held", "held", "held"]),
        ((0.6, 0.65, 0.66, 0.67, 0.68, 0.7), ["held", "not held", "not held"]),
        ((0.6, 0.7, 0.65, 0.6, 0.55, 0.5), ["held", "held", "not held"]),
    ],
)
def test_fig_8_rises_falls_and_levels_out(recalls, expected):
    assert verdicts(delta.claims_of({"points": points(*recalls)})) == expected


def test_one_seed_or_too_few_values_decide_nothing():
    single = points(*RISE_AND_FALL)
    for point in single:
        point["deviation"] = {}
    assert verdicts(alpha.claims_of({"points": single}))[:3] == ["undecided"] * 3
    assert "±" not in alpha.claims_of({"points": single})[0]["numbers"]
    assert verdicts(delta.claims_of({"points": single})) == ["undecided"] * 3
    drawn = delta.draw({"setting": "delta", "points": single, "no_warp": single[0]})["delta"]
    assert svg(drawn.figure).startswith("<svg")
    assert verdicts(alpha.claims_of({"points": points(0.5)}))[1::2] == ["undecided"] * 2  # of alpha 0 alone
    assert verdicts(delta.claims_of({"points": points(0.5, 0.5)}))[2] == "undecided"


def test_the_flattest_neighbours_hold_the_best_value():
    assert [point["value"] for point in flattest(points(*RISE_AND_FALL), 3)] == [2.0, 3.0, 4.0]
    assert [point["value"] for point in flattest(points(0.9, 0.5, 0.5, 0.5), 2)] == [0.0, 1.0]


def cells(inside=0.9, off=0.8, step=0.001):
    """Three by three pairs; those without a 1 are better and alike."""
    return [
        {
            "k1": k1,
            "k2": k2,
            **row(recall=off - 0.1 * k2 if 1.0 in (k1, k2) else inside + step * k2, avg_dtp=1.0, map_r=0.5),
        }
        for k1 in (0.25, 0.5, 1.0)
        for k2 in (1.0, 1.5, 2.0)
    ]


def test_fig_7_both_slopes_matter_and_then_less():
    assert verdicts(slopes.claims_of({"cells": cells()})) == ["held", "held"]
    assert verdicts(slopes.claims_of({"cells": cells(inside=0.5)})) == ["not held", "not held"]
    assert verdicts(slopes.claims_of({"cells": cells(inside=-1.2, step=1.2)})) == ["held", "not held"]
    assert verdicts(slopes.claims_of({"cells": [cells()[0], cells()[1]]})) == ["held", "undecided"]
    noisy = cells(inside=0.7)
    noisy[1]["seeds"]["recall@1"] = [0.0, 1.4]
    assert verdicts(slopes.claims_of({"cells": noisy})) == ["undecided", "undecided"]
    assert slopes.claims_of({"cells": [cell for cell in cells() if cell["k1"] == 1.0]}) == []


def test_fig_7_the_deviation_is_over_seeds_not_over_pairs():
    some = cells()[:2]
    for cell, seeds in zip(some, ([0.1, 0.3], [0.5, 0.7]), strict=True):
        cell["seeds"]["recall@1"] = seeds
    assert slopes.mean_over_seeds(some) == pytest.approx((0.4, 0.2 / 2**0.5))


def test_the_grid_puts_every_pair_in_its_place():
    made = slopes.table(ABOUT | {"cells": cells()})
    assert made.heads == ("", "k2 1", "k2 1.5", "k2 2")
    assert [line[0].text for line in made.rows] == ["k1 0.25", "k1 0.5", "k1 1"]
    assert made.rows[0][3].text == "90.2 ± 0.1"
    assert made.rows[2][1].text == "70.0 ± 0.1"
    drawing = slopes.draw(ABOUT | {"cells": cells()})["slopes"]
    assert len(drawing.rows) == 9
    assert drawing.rows[0]["recall@1 mean"] == pytest.approx(0.7)


def test_a_sweep_is_in_ascending_order_with_no_warp_at_its_end():
    def outcomes(value, blew_up=""):
        metrics = {"recall@1": value, "map@r": value, "avg_dtp": value}
        return [Outcome(result(metrics=metrics), [], blew_up), Outcome(result(metrics=metrics), [])]

    found = {"10": outcomes(0.5), "2": outcomes(0.4, "inf"), "no_warp": outcomes(0.6)}
    summary = ABOUT | summarise_sweep(found, "alpha")
    assert [point["value"] for point in summary["points"]] == [2.0, 10.0]
    texts = [[cell.text for cell in line] for line in sweep_table(summary).rows]
    assert [line[0] for line in texts] == ["2 (blew up)", "10", "no warp"]
    assert [line["alpha"] for line in drawn_rows(summary)] == [2.0, 10.0, "no warp"]
    assert [line["blew up"] for line in drawn_rows(summary)] == [1, 0, 0]
    for study, setting in ((alpha, "alpha"), (delta, "delta")):
        assert len(study.draw(summary | {"setting": setting})[setting].rows) == 3


def test_a_folder_holds_the_sweep_of_one_setting(tmp_path, monkeypatch):
    base = tiny().model_dump(mode="json")
    monkeypatch.setattr(variants, "work", lambda *_, **__: None)  # nothing is trained
    monkeypatch.setattr(variants, "_read", lambda _: None)
    assert list(collect_sweep(base, "alpha", [1.0, 2.5], tmp_path, seeds=1)) == ["1", "2.5", "no_warp"]
    assert collect_sweep(base, "alpha", [3.0], tmp_path, seeds=2)  # more values and seeds may follow
    with pytest.raises(ValueError, match="setting is alpha there and delta here"):
        collect_sweep(base, "delta", [1.0], tmp_path, seeds=1)


def phase_rows(**changes):
    recalls = {"large": 0.7, "middle": 0.75, "small": 0.72, "falling": 0.8} | changes
    made = {}
    for course, value in recalls.items():
        for rates in phases.RATES:
            lowered = 0.05 * (rates == "lowered")
            ratio = 1.2 if course == "falling" else 1.0
            each = row(recall=value + lowered, map_r=0.5, separability_ratio=ratio, avg_dtp=5.0, curve=(5, 5))
            made[f"{course}-{rates}"] = each | {"title": f"{course} {rates}"}
    return made


def test_two_phases_must_beat_every_fixed_alpha():
    assert verdicts(phases.claims_of({"rows": phase_rows()})) == ["held"] * 4
    assert verdicts(phases.claims_of({"rows": phase_rows(small=0.85)}))[:2] == ["not held"] * 2
    same = phase_rows()
    same["falling-lowered"]["mean"] = same["falling-constant"]["mean"] | {"separability_ratio": 0.9}
    assert verdicts(phases.claims_of({"rows": same}))[2:] == ["not held", "undecided"]


def test_phases_differ_in_alpha_and_rates_alone():
    two = tiny().model_dump(mode="json")
    two["phases"][1]["learning_rate"] = 0.0005
    falling = phases.variant(two, 6.0, 3.0, "lowered")
    assert falling.loss.settings["alpha"] == 6.0
    assert [phase.loss_settings for phase in falling.phases] == [{}, {"alpha": 3.0}]
    assert [phase.learning_rate for phase in falling.phases] == [0.005, 0.0005]
    steady = phases.variant(two, 6.0, 6.0, "constant")
    assert [phase.learning_rate for phase in steady.phases] == [0.005, 0.005]
    assert [phase.epochs for phase in steady.phases] == [phase.epochs for phase in falling.phases]


def test_the_table_of_phases_names_alphas_and_seeds():
    summary = ABOUT | {"alphas": [3.0, 6.0], "rows": phase_rows()}
    assert "alpha 3 to 6" in phases.table(summary).title
    assert len(phases.table(summary).rows) == 8
    assert len(phases.draw(summary)["phases"].rows) == 8 * ABOUT["seeds"]


@pytest.mark.parametrize(
    ("words", "options", "cause"),
    [
        (["cub_proxy_nca_pp"], {}, "alpha of proxy_nca_pp"),
        (
            ["glyphs_warped_softmax", "phases=[{epochs: 1, learning_rate: 0.1, proxy_learning_rate: 0.1}]"],
            {},
            "two phases",
        ),
        ([], {"alphas": "3,4,5"}, "--alphas 3,4,5"),
    ],
)
def test_phases_refuse_what_they_cannot_compare(tmp_path, words, options, cause):
    with pytest.raises(ValueError, match=cause):
        phases.main(words, output=tmp_path, **options)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["functions", "alpha", "slopes", "delta", "phases"])
def test_a_study_runs_from_end_to_end(name, tmp_path):
    module = load_study(name)
    words = ["data.max_classes=12", "batches.classes=8", "phases.0.epochs=1", "phases.1.epochs=1"]
    summary = json.loads(json.dumps(module.main(words, output=tmp_path, quick=True)))
    assert summary["seeds"] == 2
    assert summary["classes"] == {"train": 12, "evaluated": 12}
    assert summary["split"] == ("test" if name == "functions" else "validation")
    assert len(summary["claims"]) > 1
    assert len(module.table(summary).rows) > 1
    drawing = module.draw(summary)[name]
    assert svg(drawing.figure).startswith("<svg")
    assert len(drawing.rows) > 1
    trained = {place.parent.parent.name for place in tmp_path.glob("*/seed-*/outcome.json")}
    assert len(trained) > 3
