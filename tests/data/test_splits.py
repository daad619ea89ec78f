from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from softwarp.data.class_groups import fold_classes
from softwarp.data.splits import SplitPlan, divide, limit


def classes_of(labels, positions):
    return sorted(set(labels[positions].tolist()))


@given(st.integers(6, 60), st.sampled_from(["validation", "test"]), st.integers(0, 5))
def test_without_splits_no_class_trains_and_is_evaluated(num_classes, protocol, seed):
    labels = np.arange(3 * num_classes) % num_classes
    division = divide(labels, None, SplitPlan(protocol), seed=seed)
    train, evaluated = classes_of(labels, division.train), classes_of(labels, division.queries)
    assert not set(train) & set(evaluated)
    assert len(division.train) == 3 * len(train)
    assert len(division.queries) == 3 * len(evaluated)
    test = classes_of(labels, divide(labels, None, SplitPlan("test"), seed=seed).queries)
    assert len(test) == max(2, round(num_classes / 4))
    assert not set(test) & set(train)
    rest = sorted(set(range(num_classes)) - set(test))
    expected = rest if protocol == "test" else rest[: (len(rest) + 1) // 2]
    assert train == expected
    assert evaluated == (test if protocol == "test" else rest[len(expected) :])


@pytest.mark.parametrize("num_classes", [4, 5])
def test_a_quarter_of_few_classes_is_two(num_classes):
    labels = np.arange(3 * num_classes) % num_classes
    assert len(classes_of(labels, divide(labels, None, SplitPlan("test")).queries)) == 2


def test_the_test_classes_change_with_the_seed_of_the_division_alone():
    labels = np.arange(200) % 100
    first, again = (divide(labels, None, SplitPlan("test")) for _ in range(2))
    assert np.array_equal(first.queries, again.queries)
    assert not np.array_equal(first.queries, divide(labels, None, SplitPlan("test"), seed=1).queries)


SPLITS = ["train", "test", "train", "test", "train", "test", "train", "test"]
LABELS = np.array([5, 0, 5, 0, 3, 1, 3, 1])


def test_named_splits_are_followed_and_validation_takes_the_second_half():
    test = divide(LABELS, SPLITS, SplitPlan("test"))
    assert (test.train.tolist(), test.queries.tolist(), test.gallery) == ([0, 2, 4, 6], [1, 3, 5, 7], None)
    labels = np.array([6, 6, 4, 4, 2, 2, 1, 1, 8, 8, 9, 9])
    validation = divide(labels, ["train"] * 8 + ["test"] * 4, SplitPlan("validation"))
    assert validation.train.tolist() == [4, 5, 6, 7]
    assert validation.queries.tolist() == [0, 1, 2, 3]
    assert validation.gallery is None


def test_a_named_validation_split_is_used_and_joins_training_for_the_test():
    labels = np.array([0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5])
    splits = ["validation"] * 4 + ["train"] * 4 + ["test"] * 4
    validation = divide(labels, splits, SplitPlan("validation"))
    assert (validation.train.tolist(), validation.queries.tolist()) == ([4, 5, 6, 7], [0, 1, 2, 3])
    test = divide(labels, splits, SplitPlan("test"))
    assert (test.train.tolist(), test.queries.tolist()) == (list(range(8)), [8, 9, 10, 11])


def test_queries_search_a_gallery():
    labels = np.array([0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5])
    splits = ["train"] * 8 + ["query", "gallery"] * 2
    test = divide(labels, splits, SplitPlan("test"))
    assert (test.train.tolist(), test.queries.tolist()) == (list(range(8)), [8, 10])
    assert test.gallery.tolist() == [9, 11]
    validation = divide(labels, splits, SplitPlan("validation"))
    assert validation.gallery is None
    assert validation.queries.tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("protocol", ["validation", "test"])
def test_a_split_through_a_class_is_refused(protocol):
    labels, splits = np.array([0, 0, 1, 1, 2, 2, 3, 3]), ["train"] * 5 + ["test"] * 3
    with pytest.raises(ValueError, match="class 'plover'"):
        divide(labels, splits, SplitPlan(protocol), names=["wren", "gull", "plover", "owl"])
    with pytest.raises(ValueError, match="class 2 "):
        divide(labels, splits, SplitPlan(protocol))


@pytest.mark.parametrize("side", ["query", "gallery"])
def test_a_class_that_trains_is_neither_query_nor_gallery(side):
    labels = np.array([0, 0, 1, 1, 2, 2, 3, 3, 0])
    splits = ["train"] * 4 + ["query", "gallery"] * 2 + [side]
    with pytest.raises(ValueError, match="class 0 "):
        divide(labels, splits, SplitPlan("test"))


def test_a_split_of_training_and_validation_through_a_class_is_refused():
    labels = np.array([0, 0, 1, 1, 2, 2, 3, 3])
    splits = ["train"] * 3 + ["validation"] + ["test"] * 4
    with pytest.raises(ValueError, match="class 1 "):
        divide(labels, splits, SplitPlan("validation"))
    assert len(divide(labels, splits, SplitPlan("test")).train) == 4


@pytest.mark.parametrize(
    ("labels", "splits", "message"),
    [
        ([0, 0, 1, 1, 2, 2], None, "3 classes: .*four"),
        ([0, 1, 2, 3, 4, 5], None, "no query"),
        ([0, 0, 1, 1, 2, 3], ["train"] * 4 + ["test"] * 2, "no query"),
        ([0, 0, 1, 2, 3, 4], ["train"] * 2 + ["query", "gallery"] * 2, "no query"),
        ([0, 0, 1, 1, 2, 2, 3, 3], ["train"] * 6 + ["test"] * 2, "fewer .*two classes"),
        ([0, 0, 1, 1, 2, 2, 3, 3], ["train"] * 8, "0 query .*0 gallery"),
        ([0, 0, 1, 1, 2, 2, 3, 3], ["train"] * 6 + ["query"] * 2, "2 query .*0 gallery"),
        (
            [0, 0, 1, 1, 2, 2, 3, 3],
            ["train"] * 4 + ["test"] * 2 + ["query", "gallery"],
            "test items and query",
        ),
        ([0, 0, 1, 1, 2, 2, 3, 3], ["test"] * 8, "no items to train on"),
        ([0, 0, 1, 1, 2, 2, 3, 3], ["train"] * 7, "7 splits for 8 labels"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(labels, splits, message):
    with pytest.raises(ValueError, match=message):
        divide(np.array(labels), splits, SplitPlan("test"))


def test_classes_of_one_image_stay():
    labels, splits = np.array([0, 0, 1, 1, 2, 3, 3]), ["train"] * 4 + ["test"] * 3
    assert divide(labels, splits, SplitPlan("test")).queries.tolist() == [4, 5, 6]


def roles_for(kind, labels):
    """Splits of a source in which the first classes train, and the last four are for test."""
    if kind == "none":
        return None
    last = labels.max() - 3
    named = {"named": ["train", "test"], "validation": ["train", "validation", "test"]}[kind]
    return ["test" if label >= last else named[label % (len(named) - 1)] for label in labels.tolist()]


@given(
    st.integers(16, 90),
    st.sampled_from(["none", "named", "validation"]),
    st.booleans(),
    st.integers(2, 4),
    st.none() | st.integers(0, 5),
)
def test_no_class_is_in_two_of_training_the_fold_held_out_and_test(num_classes, kind, keep, folds, seed):
    labels = np.arange(3 * num_classes) % num_classes
    splits = roles_for(kind, labels)

    def classes(split, fold=None):
        division = divide(labels, splits, SplitPlan(split, fold, folds, seed), keep_validation=keep)
        assert division.gallery is None
        return classes_of(labels, division.train), classes_of(labels, division.queries)

    try:
        fold_classes(np.array(classes("test")[0]), folds=folds)
    except ValueError:
        return  # too few classes: refused, as another test says
    known, test = classes("test")
    held = []
    for fold in range(folds):
        train, held_out = classes("validation", fold)
        assert classes("test", fold) == (train, test)
        assert not set(train) & set(held_out)
        assert not set(train + held_out) & set(test)
        assert sorted(train + held_out) == known
        held.append(held_out)
    assert sorted(chain(*held)) == known
    assert max(map(len, held)) - min(map(len, held)) <= 1


def test_validation_classes_that_are_kept_for_search_never_train():
    labels, splits = (
        np.repeat(np.arange(12), 2),
        np.repeat(["train"] * 4 + ["validation"] * 4 + ["test"] * 4, 2),
    )
    for fold in (None, 0, 1):
        for split in ("validation", "test"):
            division = divide(labels, splits.tolist(), SplitPlan(split, fold, 2), keep_validation=True)
            assert set(labels[division.train].tolist()) <= {0, 1, 2, 3}
            judged = {
                ("validation", None): [4, 5, 6, 7],
                ("validation", 0): [0, 1],
                ("validation", 1): [2, 3],
            }
            expected = judged.get((split, fold), [8, 9, 10, 11])
            assert classes_of(labels, division.queries) == expected


def test_a_fold_with_query_and_gallery_is_judged_on_them_or_on_itself():
    labels = np.array([0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5])
    splits = ["train"] * 8 + ["query", "gallery"] * 2
    test = divide(labels, splits, SplitPlan("test", fold=1, folds=2))
    assert (test.train.tolist(), test.queries.tolist()) == ([0, 1, 2, 3], [8, 10])
    assert test.gallery.tolist() == [9, 11]
    held_out = divide(labels, splits, SplitPlan("validation", fold=1, folds=2))
    assert (held_out.train.tolist(), held_out.queries.tolist()) == ([0, 1, 2, 3], [4, 5, 6, 7])
    assert held_out.gallery is None


def test_the_plan_says_how_folds_are_made():
    labels = np.repeat(np.arange(40), 2)
    expected = fold_classes(np.arange(30), folds=3, seed=5)[1]
    splits = ["train"] * 60 + ["test"] * 20
    division = divide(labels, splits, SplitPlan(fold=1, folds=3, fold_seed=5))
    assert classes_of(labels, division.queries) == expected.tolist()


@pytest.mark.parametrize("splits", [None, ["train"] * 24 + ["validation"] * 8 + ["test"] * 8])
def test_folds_of_what_validation_trains_leave_its_classes_alone(splits):
    labels = np.arange(20).repeat(2)
    whole = divide(labels, splits, SplitPlan("validation"))
    trained = []
    for fold in (0, 1):
        plan = SplitPlan("validation", fold, 2, fold_seed=0, fold_of="validation")
        division = divide(labels, splits, plan)
        assert sorted([*division.train, *division.queries]) == whole.train.tolist()
        trained += division.train.tolist()
        all_of_it = divide(labels, splits, SplitPlan("validation", fold, 2, fold_seed=0))
        assert len(all_of_it.train) > len(division.train)
    assert sorted(trained) == whole.train.tolist()


@given(
    st.integers(10, 60),
    st.integers(2, 5),
    st.sampled_from([None, "mixed"]),
    st.sampled_from([None, 10, 15]),
    st.booleans(),
)
def test_folds_of_the_first_half_and_the_second_half_are_pairwise_disjoint(
    classes, folds, splits, most, keep
):
    folds = min(folds, (min(classes // 2, most or classes)) // 2)
    labels = np.arange(2 * classes) % classes
    if splits:  # what the data set says does not matter
        splits = [("train", "validation", "test")[label % 3] for label in labels.tolist()]
    settings = {"keep_validation": keep, "max_classes": most}

    def divided(split, fold):
        plan = SplitPlan(split, fold, folds, test_classes="second_half")
        return limit(divide(labels, splits, plan, **settings), labels, most)

    held_out = [classes_of(labels, divided("validation", fold).queries) for fold in range(folds)]
    whole = divided("test", None)
    groups = [*held_out, classes_of(labels, whole.queries)]
    assert len(set().union(*groups)) == sum(map(len, groups))  # pairwise disjoint
    first, second = range((classes + 1) // 2), range((classes + 1) // 2, classes)
    assert groups[-1] == list(second)[:most]
    assert sorted(chain(*held_out)) == list(first)[:most] == classes_of(labels, whole.train)
    for fold in range(folds):
        for split in ("validation", "test"):
            division = divided(split, fold)
            assert set(classes_of(labels, division.train)) == set(chain(*held_out)) - set(held_out[fold])
        assert classes_of(labels, divided("test", fold).queries) == groups[-1]
