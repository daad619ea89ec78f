import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from softwarp.data.splits import items_of, split_classes


@given(st.integers(3, 500), st.integers(0, 100))
def test_every_class_is_in_exactly_one_group(num_classes, seed):
    split = split_classes(num_classes, seed=seed)
    together = torch.cat([split.train, split.validation, split.test])
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
