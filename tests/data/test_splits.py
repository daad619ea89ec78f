import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from softwarp.data.splits import divide, items_of, split_classes


@given(st.integers(3, 500), st.integers(0, 100))
def test_every_class_is_in_exactly_one_group(num_classes, seed):
    split = split_classes(num_classes, seed=seed)
    groups = [split.train, split.validation, split.test]
    assert all(group.tolist() == sorted(group.tolist()) for group in groups)
    together = torch.cat(groups)
    assert together.sort().values.tolist() == list(range(num_classes))
    assert len(split.train) > 0


def test_the_split_depends_on_the_seed_alone():
    assert torch.equal(split_classes(100, seed=1).train, split_classes(100, seed=1).train)
    assert not torch.equal(split_classes(100, seed=1).train, split_classes(100, seed=2).train)


@pytest.mark.parametrize("shares", [{"validation": 0.5, "test": 0.5}, {"validation": -0.1}])
def test_a_split_without_training_classes_is_refused(shares):
    with pytest.raises(ValueError, match="at least one class must be left for training"):
        split_classes(10, **shares)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=50), st.sets(st.integers(0, 9), min_size=1))
def test_items_of_finds_all_items_and_renumbers_them(labels, classes):
    labels, wanted = torch.tensor(labels), sorted(classes)
    positions, renumbered = items_of(labels, torch.tensor(wanted[::-1]))  # in any order
    assert positions.tolist() == [i for i, label in enumerate(labels.tolist()) if label in classes]
    assert [wanted[new] for new in renumbered.tolist()] == labels[positions].tolist()


def classes_of(labels, positions):
    return sorted(set(labels[positions].tolist()))


@given(st.integers(6, 60), st.sampled_from(["validation", "test"]), st.integers(0, 5))
def test_without_splits_no_class_trains_and_is_evaluated(num_classes, protocol, seed):
    labels = torch.arange(3 * num_classes) % num_classes
    division = divide(labels, None, protocol=protocol, seed=seed)
    train, evaluated = classes_of(labels, division.train), classes_of(labels, division.queries)
    assert not set(train) & set(evaluated)
    assert len(division.train) == 3 * len(train)
    assert len(division.queries) == 3 * len(evaluated)
    test = classes_of(labels, divide(labels, None, protocol="test", seed=seed).queries)
    assert len(test) == max(2, round(num_classes / 4))
    assert not set(test) & set(train)
    rest = sorted(set(range(num_classes)) - set(test))
    expected = rest if protocol == "test" else rest[: (len(rest) + 1) // 2]
    assert train == expected
    assert evaluated == (test if protocol == "test" else rest[len(expected) :])


@pytest.mark.parametrize("num_classes", [4, 5])
def test_a_quarter_of_few_classes_is_two(num_classes):
    labels = torch.arange(3 * num_classes) % num_classes
    assert len(classes_of(labels, divide(labels, None, protocol="test").queries)) == 2


def test_the_test_classes_change_with_the_seed_of_the_division_alone():
    labels = torch.arange(200) % 100
    first, again = (divide(labels, None, protocol="test") for _ in range(2))
    assert torch.equal(first.queries, again.queries)
    assert not torch.equal(first.queries, divide(labels, None, protocol="test", seed=1).queries)


SPLITS = ["train", "test", "train", "test", "train", "test", "train", "test"]
LABELS = torch.tensor([5, 0, 5, 0, 3, 1, 3, 1])


def test_named_splits_are_followed_and_validation_takes_the_second_half():
    test = divide(LABELS, SPLITS, protocol="test")
    assert (test.train.tolist(), test.queries.tolist(), test.gallery) == ([0, 2, 4, 6], [1, 3, 5, 7], None)
    labels = torch.tensor([6, 6, 4, 4, 2, 2, 1, 1, 8, 8, 9, 9])
    validation = divide(labels, ["train"] * 8 + ["test"] * 4, protocol="validation")
    assert validation.train.tolist() == [4, 5, 6, 7]
    assert validation.queries.tolist() == [0, 1, 2, 3]
    assert validation.gallery is None


def test_a_named_validation_split_is_used_and_joins_training_for_the_test():
    labels = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5])
    splits = ["validation"] * 4 + ["train"] * 4 + ["test"] * 4
    validation = divide(labels, splits, protocol="validation")
    assert (validation.train.tolist(), validation.queries.tolist()) == ([4, 5, 6, 7], [0, 1, 2, 3])
    test = divide(labels, splits, protocol="test")
    assert (test.train.tolist(), test.queries.tolist()) == (list(range(8)), [8, 9, 10, 11])


def test_queries_search_a_gallery():
    labels = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5])
    splits = ["train"] * 8 + ["query", "gallery"] * 2
    test = divide(labels, splits, protocol="test")
    assert (test.train.tolist(), test.queries.tolist()) == (list(range(8)), [8, 10])
    assert test.gallery.tolist() == [9, 11]
    validation = divide(labels, splits, protocol="validation")
    assert validation.gallery is None
    assert validation.queries.tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("protocol", ["validation", "test"])
def test_a_split_through_a_class_is_refused(protocol):
    labels, splits = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]), ["train"] * 5 + ["test"] * 3
    with pytest.raises(ValueError, match="class 'plover' is in training and in evaluation"):
        divide(labels, splits, protocol=protocol, names=["wren", "gull", "plover", "owl"])
    with pytest.raises(ValueError, match=r"class 2 is in training.*leave the splits out"):
        divide(labels, splits, protocol=protocol)


@pytest.mark.parametrize("side", ["query", "gallery"])
def test_a_class_that_trains_is_neither_query_nor_gallery(side):
    labels = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3, 0])
    splits = ["train"] * 4 + ["query", "gallery"] * 2 + [side]
    with pytest.raises(ValueError, match="class 0 is in training and in evaluation"):
        divide(labels, splits, protocol="test")


def test_a_split_of_training_and_validation_through_a_class_is_refused():
    labels = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    splits = ["train"] * 3 + ["validation"] + ["test"] * 4
    with pytest.raises(ValueError, match="class 1 is in training and in evaluation"):
        divide(labels, splits, protocol="validation")
    assert len(divide(labels, splits, protocol="test").train) == 4


@pytest.mark.parametrize(
    ("labels", "splits", "message"),
    [
        ([0, 0, 1, 1, 2, 2], None, "3 classes cannot be divided"),
        ([0, 1, 2, 3, 4, 5], None, "no query has another image"),
        ([0, 0, 1, 1, 2, 3], ["train"] * 4 + ["test"] * 2, "no query has another image"),
        ([0, 0, 1, 2, 3, 4], ["train"] * 2 + ["query", "gallery"] * 2, "no query has another image"),
        ([0, 0, 1, 1, 2, 2, 3, 3], ["train"] * 6 + ["test"] * 2, "fewer than two classes to evaluate"),
        ([0, 0, 1, 1, 2, 2, 3, 3], ["train"] * 8, "nothing to test on"),
        ([0, 0, 1, 1, 2, 2, 3, 3], ["train"] * 6 + ["query"] * 2, "nothing to test on"),
        ([0, 0, 1, 1, 2, 2, 3, 3], ["train"] * 4 + ["test"] * 2 + ["query", "gallery"], "one or the other"),
        ([0, 0, 1, 1, 2, 2, 3, 3], ["test"] * 8, "no items to train on"),
        ([0, 0, 1, 1, 2, 2, 3, 3], ["train"] * 7, "7 splits for 8 labels"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(labels, splits, message):
    with pytest.raises(ValueError, match=message):
        divide(torch.tensor(labels), splits, protocol="test")


def test_classes_of_one_image_stay():
    labels, splits = torch.tensor([0, 0, 1, 1, 2, 3, 3]), ["train"] * 4 + ["test"] * 3
    assert divide(labels, splits, protocol="test").queries.tolist() == [4, 5, 6]
