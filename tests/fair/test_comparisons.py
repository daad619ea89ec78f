"""Paired differences: held to scipy and to a bootstrap written as a loop."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from softwarp.fair.comparisons import Pair, compare_all, compare_with
from softwarp.runs.repeats import holm, t_test

SEEDS = {"worst": [0.50, 0.53, 0.49], "best": [0.60, 0.65, 0.62], "middle": [0.59, 0.64, 0.60]}


def by_class(values, counts=(3, 1, 2, 5)):
    """Per seed: values that differ by class around the seed's own."""
    shifts = (-0.05, 0.1, 0.02, -0.01)
    names = "abcd"
    return [
        {name: (value + shift, count) for name, shift, count in zip(names, shifts, counts, strict=True)}
        for value in values
    ]


CLASSES = {name: by_class(values) for name, values in SEEDS.items()}


def test_every_pair_once_and_the_better_first():
    pairs = compare_all(SEEDS, CLASSES)
    assert [(pair.first, pair.second) for pair in pairs] == [
        ("best", "middle"),
        ("best", "worst"),
        ("middle", "worst"),
    ]
    # No draw of classes turns these differences around, and there are three pairs.
    assert [pair.p_classes for pair in pairs] == pytest.approx([3 * 2 / 10_001] * 3)
    assert compare_all({"one": [0.5]}, {"one": by_class([0.5])}) == []


def test_over_seeds_it_is_the_paired_t_test_of_scipy():
    for pair in compare_all(SEEDS, CLASSES):
        differences = np.subtract(SEEDS[pair.first], SEEDS[pair.second])
        test = stats.ttest_rel(SEEDS[pair.first], SEEDS[pair.second])
        assert pair.over_seeds == pytest.approx(tuple(test.confidence_interval(0.95)))
        assert pair.difference == pytest.approx(differences.mean())
        assert t_test(differences.tolist()) == pytest.approx(test.pvalue)
    raw = [
        t_test(np.subtract(SEEDS[a], SEEDS[b]).tolist()) for a, b in (("best", "middle"), ("best", "worst"))
    ]
    raw.append(t_test(np.subtract(SEEDS["middle"], SEEDS["worst"]).tolist()))
    assert [pair.p_seeds for pair in compare_all(SEEDS, CLASSES)] == pytest.approx(holm(raw))


def test_equal_differences_leave_nothing_to_chance():
    assert t_test([0.1, 0.1]) == 0.0
    assert t_test([0.0, 0.0]) == 1.0


def test_over_classes_it_is_a_paired_bootstrap_weighted_by_queries():
    generator = np.random.default_rng(0)
    counts = generator.integers(1, 9, 40)
    tables = {
        name: [
            {str(c): (float(v), int(n)) for c, (v, n) in enumerate(zip(values, counts, strict=True))}
            for values in generator.normal(mean, 0.2, (2, 40))
        ]
        for name, mean in (("a", 0.55), ("b", 0.45))
    }
    means = {
        name: np.mean([[value for value, _ in seed.values()] for seed in some], axis=0)
        for name, some in tables.items()
    }
    seeds = {
        name: [float(np.average([v for v, _ in seed.values()], weights=counts)) for seed in some]
        for name, some in tables.items()
    }
    (pair,) = compare_all(seeds, tables)
    draws = [generator.integers(0, 40, 40) for _ in range(10_000)]
    sign = 1 if pair.first == "a" else -1
    found = [sign * np.average((means["a"] - means["b"])[drawn], weights=counts[drawn]) for drawn in draws]
    assert pair.over_classes == pytest.approx(np.quantile(found, [0.025, 0.975]), abs=0.005)
    assert pair.p_classes == pytest.approx(2 * min(np.mean(np.array(found) <= 0), 0.5), abs=0.01)
    assert pair.difference == pytest.approx(sign * np.average(means["a"] - means["b"], weights=counts))


def test_other_classes_cannot_be_compared():
    other = [{"x": (0.1, 1), "y": (0.2, 1)}] * 3
    with pytest.raises(ValueError, match="different classes"):
        compare_all(SEEDS, CLASSES | {"best": other})


def test_one_seed_has_no_interval_over_seeds():
    one = {name: values[:1] for name, values in SEEDS.items()}
    for pair in compare_all(one, {name: classes[:1] for name, classes in CLASSES.items()}):
        assert pair.over_seeds is None
        assert pair.p_seeds is None


def test_marks_say_what_chance_does_not_explain():
    settings = {
        "first": "a",
        "second": "b",
        "difference": 0.1,
        "over_seeds": None,
        "over_classes": (0.0, 1.0),
    }
    marks = [
        Pair(**settings, p_classes=classes, p_seeds=seeds).marks
        for classes, seeds in ((0.06, 0.01), (0.04, 0.06), (0.04, 0.04), (0.04, None))
    ]
    assert marks == ["", "*", "**", ""]  # a single seed cannot tell luck from merit


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_what_the_step_down_rule_rejects(values):
    level, order = 0.05, sorted(range(len(values)), key=values.__getitem__)
    rejected = set()
    for rank, place in enumerate(order):
        if values[place] * (len(values) - rank) >= level:
            break
        rejected.add(place)
    assert {place for place, value in enumerate(holm(values)) if value < level} == rejected


def test_a_few_classes_that_agree_are_not_enough_for_a_mark():
    values = {"a": [0.9, 0.91, 0.92], "b": [0.5, 0.51, 0.52]}

    def marked(count, compare):
        classes = {
            name: [{f"class {n}": (value + n / 100, 10) for n in range(count)} for value in each]
            for name, each in values.items()
        }
        (pair,) = compare(classes)
        return pair.marks

    for compare in (lambda c: compare_all(values, c), lambda c: compare_with("b", values, c)):
        assert marked(2, compare) == ""
        assert marked(5, compare) == ""
        assert marked(8, compare) == "**"


def test_a_reference_is_compared_with_each_and_may_be_better():
    values = {"a": [0.5, 0.6], "b": [0.2, 0.3], "frozen": [0.4, 0.4]}
    classes = {
        name: [{f"class {n}": (value, 10) for n in range(8)} for value in each]
        for name, each in values.items()
    }
    pairs = compare_with("frozen", values, classes)
    assert [(pair.first, pair.second) for pair in pairs] == [("a", "frozen"), ("b", "frozen")]
    assert [round(pair.difference, 6) for pair in pairs] == [0.15, -0.15]
