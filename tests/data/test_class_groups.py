from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from softwarp.data.class_groups import fold_classes, items_of, random_roles, split_classes


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
    with pytest.raises(ValueError, match=r"validation=.* and test="):
        split_classes(10, **shares)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=50), st.sets(st.integers(0, 9), min_size=1))
def test_items_of_finds_all_items_and_renumbers_them(labels, classes):
    labels, wanted = torch.tensor(labels), sorted(classes)
    positions, renumbered = items_of(labels, torch.tensor(wanted[::-1]))  # in any order
    assert positions.tolist() == [i for i, label in enumerate(labels.tolist()) if label in classes]
    assert [wanted[new] for new in renumbered.tolist()] == labels[positions].tolist()


@given(
    st.sets(st.integers(0, 500), min_size=4, max_size=200),
    st.integers(2, 8),
    st.none() | st.integers(0, 9),
)
def test_folds_hold_every_class_once_and_are_of_one_size(classes, folds, seed):
    if len(classes) < 2 * folds:
        with pytest.raises(ValueError, match=rf"\b{len(classes)} training classes .*\b{folds} folds"):
            fold_classes(np.array(sorted(classes)), folds=folds, seed=seed)
        return
    cut = [fold.tolist() for fold in fold_classes(np.array(list(classes)), folds=folds, seed=seed)]
    assert len(cut) == folds
    assert sorted(chain(*cut)) == sorted(classes)
    assert {len(fold) for fold in cut} <= {len(classes) // folds, len(classes) // folds + 1}
    assert all(fold == sorted(fold) for fold in cut)
    if seed is None:
        assert list(chain(*cut)) == sorted(classes)


def test_folds_are_shuffled_by_their_seed_alone():
    def shuffled(seed):
        return [fold.tolist() for fold in fold_classes(np.arange(40), folds=4, seed=seed)]

    assert shuffled(0) != shuffled(None)
    assert shuffled(0) != shuffled(1)
    expected = shuffled(1)
    torch.manual_seed(7)  # as training with another seed does
    np.random.seed(7)  # noqa: NPY002
    assert shuffled(1) == expected


def test_random_roles_are_those_of_split_classes():
    labels = np.array([30, 10, 20, 40, 10])
    split = split_classes(4)
    roles = dict(zip(labels.tolist(), random_roles(labels, validation=0.25, test=0.25), strict=True))
    for role in ("train", "validation", "test"):
        numbers = [10 * (label + 1) for label in getattr(split, role).tolist()]
        assert sorted(label for label, other in roles.items() if other == role) == numbers


@given(st.integers(3, 300), st.integers(0, 1000))
def test_classes_are_drawn_as_torch_shuffles_them(num_classes, seed):
    """Test classes of all runs so far were drawn so."""
    order = torch.randperm(num_classes, generator=torch.Generator().manual_seed(seed))
    quarter = round(num_classes / 4)
    split = split_classes(num_classes, seed=seed)
    assert torch.equal(split.validation, order[:quarter].sort().values)
    assert torch.equal(split.test, order[quarter : 2 * quarter].sort().values)
    assert torch.equal(split.train, order[2 * quarter :].sort().values)
