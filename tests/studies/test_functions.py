"""Table 3: the paper's own figures hold its claims, and each claim can fail."""

from copy import deepcopy

import pytest
from support.study_rows import ABOUT, row, verdicts
from support.tiny_runs import tiny

from softwarp.studies import functions
from softwarp.studies.functions import FUNCTIONS, WARPS, claims_of, draw, recipe_with, table
from softwarp.studies.published import TABLE_3, UNSTABLE

HIGH, INSTABLE, AWAY, LOW, COLLAPSE, ROOT, CONVEX, STEADY, CORRELATE, SETTLES, BEST, WARPED = range(12)


@pytest.fixture
def rows():
    made = {
        name: row(
            recall=recall / 100,
            nmi=nmi / 100,
            nmi_geometric=nmi / 100,
            avg_dtp=distance,
            curve=(13.4, distance),
            blew_up=(0, 1) if name in UNSTABLE else (),
        )
        for name, (recall, nmi, distance) in TABLE_3.items()
    }
    for name, each in made.items():
        each["title"] = (FUNCTIONS | WARPS)[name].title if name != "start" else "untrained"
    return made


def test_the_published_figures_hold_every_claim(rows):
    assert verdicts(claims_of({"rows": rows})) == ["held"] * 12


@pytest.mark.parametrize(
    ("claim", "name", "change"),
    [
        (AWAY, "scaled_0.97", {"avg_dtp": 20.0}),
        (HIGH, "scaled_0.5", {"avg_dtp": 12.0}),
        (LOW, "scaled_2", {"avg_dtp": 13.0}),
        (COLLAPSE, "scaled_1.1", {"avg_dtp": 9.0}),
        (ROOT, "root", {"avg_dtp": 13.5}),
        (CONVEX, "square", {"avg_dtp": 12.0}),
        (STEADY, "identity", {"avg_dtp": 11.0}),
        (SETTLES, "warp_25", {"avg_dtp": 27.0}),
        (BEST, "root", {"recall@1": 0.7}),
        (WARPED, "warp_7.75", {"recall@1": 0.6}),
    ],
)
def test_each_claim_can_fail(rows, claim, name, change):
    rows[name]["mean"] |= change
    found = claims_of({"rows": rows})
    assert found[claim]["verdict"] == "not held"
    assert rows[name]["title"] in found[claim]["numbers"]


def test_running_away_asks_for_growth_to_the_end(rows):
    for name in UNSTABLE:
        rows[name]["blew_up"] = {}
        rows[name]["avg_dtp_by_epoch"] = row(curve=(13, 60, 80, 84, 84.8))["avg_dtp_by_epoch"]
    assert verdicts(claims_of({"rows": rows}))[: AWAY + 1] == ["held", "not held", "held"]
    rows["scaled_0.5"]["avg_dtp_by_epoch"] = row(curve=(13, 60, 99, 95, 93.7))["avg_dtp_by_epoch"]
    assert claims_of({"rows": rows})[AWAY]["verdict"] == "not held"


def test_alpha_and_avg_dtp_of_warps_correlate(rows):
    for name, distance in (("warp_50", 7.75), ("warp_25", 32.75), ("warp_7.75", 50.0)):
        rows[name]["mean"]["avg_dtp"] = distance
    assert claims_of({"rows": rows})[CORRELATE]["verdict"] == "not held"
    rows["warp_25"]["mean"]["avg_dtp"] = 60.0
    assert claims_of({"rows": rows})[CORRELATE]["verdict"] == "undecided"


def test_what_the_paper_does_not_say_in_so_many_words_is_our_reading(rows):
    ours = {place for place, each in enumerate(claims_of({"rows": rows})) if each["said"] == "our reading"}
    assert ours == {AWAY, COLLAPSE, SETTLES}


def test_the_paper_s_table_stands_beside_ours_with_both_nmi(rows):
    made = table(ABOUT | {"rows": rows})
    assert made.whole_heads()[2:] == (
        *("NMI arithmetic", "NMI geometric", "AvgDTP"),
        *("paper Recall@1", "paper NMI", "paper AvgDTP"),
    )
    texts = {line[0].text: [cell.text for cell in line[-3:]] for line in made.rows}
    assert len(texts) == 12
    assert texts["t1 - t2"] == ["63.2", "67.1", "12.88"]  # typed from the paper
    assert texts["warp: 0.25, 2.25, alpha 7.75"] == ["64.6", "68.5", "7.76"]


def test_what_the_seeds_cannot_tell_apart_is_undecided(rows):
    rows["warp_7.75"]["deviation"]["recall@1"] = 0.02
    assert claims_of({"rows": rows})[WARPED]["verdict"] == "undecided"


def test_functions_differ_in_the_loss_alone():
    base = tiny().model_dump(mode="json")
    recipes = [recipe_with(base, function) for function in (FUNCTIONS | WARPS).values()]
    assert len({recipe.model_dump_json(exclude={"loss"}) for recipe in recipes}) == 1
    assert {recipe.loss.settings["scale"] for recipe in recipes} == {1.0}
    assert len({str(recipe.loss) for recipe in recipes}) == len(recipes)


def test_the_untrained_model_is_never_the_best(rows):
    rows["start"]["mean"]["recall@1"] = 0.99
    best = [cells[0].text for cells in table(ABOUT | {"rows": rows}).rows if cells[1].best]
    assert best == [rows["warp_7.75"]["title"]]


def test_table_and_figure_show_what_blew_up(rows):
    summary = ABOUT | {"rows": rows}
    names = [cells[0].text for cells in table(summary).rows]
    assert [name for name in names if name.startswith("**")] == ["**0.97 t1 - t2**", "**0.5 t1 - t2**"]
    drawing = draw(summary)["functions"]
    assert len(drawing.rows) == 2 * len(rows)
    assert {each["function"] for each in drawing.rows} == {each["title"] for each in rows.values()}


def test_the_summary_starts_every_curve_where_training_starts(rows, monkeypatch):
    found = deepcopy(rows)
    for each in found.values():
        each["avg_dtp_by_epoch"] = each["avg_dtp_by_epoch"][1:]
        del each["title"]
    monkeypatch.setattr(functions.variants, "summarise_variants", lambda *_: found)
    summary = functions.summarise({})
    starts = [each["avg_dtp_by_epoch"][0] for each in summary["rows"].values()]
    assert {(each["mean"], each["deviation"]) for each in starts} == {(13.4, 0.001)}
    assert verdicts(summary["claims"]) == ["held"] * 12
