from collections import Counter
from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from softwarp.data.sampling import BalancedBatches, Draws, RandomBatches


@given(
    st.lists(st.integers(1, 7), min_size=2, max_size=12),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 9),
)
def test_batches_are_balanced(sizes, classes, samples, seed):
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    classes = min(classes, len(sizes))
    batches = BalancedBatches(labels, classes_per_batch=classes, samples_per_class=samples, seed=seed)
    seen = list(batches)
    assert len(seen) == len(batches) == max(1, len(labels) // (classes * samples))
    for batch in seen:
        counts = Counter(labels[batch].tolist())
        assert len(counts) == classes
        assert set(counts.values()) == {samples}


def test_every_class_comes_before_any_comes_again():
    labels = torch.arange(10).repeat_interleave(6)
    batches = BalancedBatches(labels, classes_per_batch=5, samples_per_class=3, seed=0)
    seen = [label for batch in batches for label in dict.fromkeys(labels[batch].tolist())]
    assert [sorted(seen[i : i + 10]) for i in (0, 10)] == [list(range(10))] * 2


def test_an_epoch_shows_every_sample_once_when_sizes_divide():
    labels = torch.arange(8).repeat_interleave(6)
    batches = BalancedBatches(labels, classes_per_batch=4, samples_per_class=3, seed=3)
    assert sorted(item for batch in batches for item in batch) == list(range(48))


def test_order_depends_on_seed_and_epoch_alone():
    labels = torch.arange(10).repeat_interleave(6)
    first, again, other = (
        BalancedBatches(labels, classes_per_batch=5, samples_per_class=2, seed=seed) for seed in (0, 0, 1)
    )
    assert list(first) == list(again)
    assert list(first) == list(again)  # an epoch can be repeated
    assert list(first) != list(other)
    again.epoch = 1
    assert list(first) != list(again)
    of_one_class = [[item for batch in batches for item in batch if item < 6] for batches in (first, again)]
    assert of_one_class[0] != of_one_class[1]  # its samples are shuffled, too


def test_too_few_classes_are_named():
    with pytest.raises(ValueError, match=r"\b3 classes.*only 2 .*batches\.classes"):
        BalancedBatches(torch.tensor([0, 1]), classes_per_batch=3, samples_per_class=1, seed=0)
    with pytest.raises(ValueError, match="at least 1"):
        BalancedBatches(torch.tensor([0, 1]), classes_per_batch=1, samples_per_class=0, seed=0)


def independent(labels, classes, samples, seed=0):
    return BalancedBatches(
        labels, classes_per_batch=classes, samples_per_class=samples, seed=seed, independent=True
    )


def test_independent_draws_take_no_turns():
    """As in the authors' code: a class may come in two batches of a row while others have not come yet."""
    labels = torch.arange(10).repeat_interleave(6)
    seen = [label for batch in independent(labels, 5, 3) for label in dict.fromkeys(labels[batch].tolist())]
    assert len(set(seen[:10])) < 10
    assert len(seen) == 5 * 3  # 59 // 15 batches


def test_independent_draws_shorten_batches_of_small_classes():
    """SOP has classes of two images and batches of three each."""
    labels = torch.tensor([0, 0, 1, 1, 1, 2, 2, 2, 2])
    batches = independent(labels, 3, 3)
    assert [Counter(labels[batch].tolist()) for batch in batches.of_epoch(4)] == [{0: 2, 1: 3, 2: 3}]
    assert [len(share) for share in Draws(batches, epochs=2)] == [8, 8]
    (whole,) = Draws(batches, epochs=1)
    shares = [next(iter(Draws(batches, epochs=1, processes=3, rank=rank))) for rank in range(3)]
    assert [len(share) for share in shares] == [2, 3, 3]
    assert [draw for share in shares for draw in share] == whole


def test_independent_draws_show_no_sample_of_a_class_twice_before_it_is_shuffled():
    labels = torch.zeros(7, dtype=torch.long)
    first, second = islice(independent(torch.cat([labels] * 9), 1, 3).of_epoch(0), 2)
    assert not set(first) & set(second)
    batches = independent(labels, 1, 3)
    assert len(batches) == 2  # the seventh image is left out, as in the authors' code


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 9))
def test_random_batches_show_no_item_twice_in_an_epoch(count, size, seed):
    size = min(size, count)
    batches = RandomBatches(count, size=size, seed=seed)
    seen = list(batches.of_epoch(0))
    assert len(seen) == len(batches) == count // size
    assert {len(batch) for batch in seen} == {size}
    items = [item for batch in seen for item in batch]
    assert len(set(items)) == len(items)
    assert set(items) <= set(range(count))


def test_random_batches_depend_on_seed_and_epoch_alone():
    first, again, other = (RandomBatches(60, size=7, seed=seed) for seed in (0, 0, 1))
    assert list(first.of_epoch(3)) == list(again.of_epoch(3))
    assert list(first.of_epoch(3)) != list(first.of_epoch(4))
    assert list(first.of_epoch(3)) != list(other.of_epoch(3))
    left_out = {epoch: set(range(60)) - {i for b in first.of_epoch(epoch) for i in b} for epoch in (0, 1)}
    assert left_out[0] != left_out[1]  # no image is left out for good
    with pytest.raises(ValueError, match=r"\b61 images.*only 60.*batches\.size"):
        RandomBatches(60, size=61, seed=0)


@pytest.mark.parametrize("per_epoch", [2, 3, 7])
def test_an_epoch_may_have_any_number_of_batches(per_epoch):
    """Shorter or longer than a pass of three batches; a longer one shows all before it repeats any."""
    labels = torch.arange(6).repeat_interleave(2)
    balanced = BalancedBatches(labels, classes_per_batch=2, samples_per_class=2, seed=0, per_epoch=per_epoch)
    for batches in (balanced, RandomBatches(12, size=4, seed=0, per_epoch=per_epoch)):
        seen = list(batches.of_epoch(0))
        assert len(seen) == len(batches) == per_epoch
        counts = torch.tensor([item for batch in seen for item in batch]).bincount(minlength=12)
        assert counts.max() - counts.min() <= (per_epoch % 3 > 0)
        draws = list(Draws(batches, epochs=2))
        assert len(draws) == 2 * per_epoch
        assert list(Draws(batches, epochs=2, start=per_epoch + 1)) == draws[per_epoch + 1 :]


def test_random_draws_resume_at_any_batch_and_are_shared():
    batches = RandomBatches(13, size=4, seed=0)
    whole = list(Draws(batches, epochs=3))
    assert len(whole) == 9
    for start in range(10):
        assert list(Draws(batches, epochs=3, start=start)) == whole[start:]
    shares = [list(Draws(batches, epochs=3, rank=rank, processes=2)) for rank in (0, 1)]
    assert [left + right for left, right in zip(*shares, strict=True)] == whole
    with pytest.raises(ValueError, match=r"batch of 4 .*3 processes"):
        Draws(batches, epochs=1, processes=3)


def test_draws_go_on_from_any_batch_with_seeds_of_their_own():
    def draws(seed, start=0):
        labels = torch.arange(6).repeat_interleave(4)
        batches = BalancedBatches(labels, classes_per_batch=2, samples_per_class=4, seed=seed)
        return Draws(batches, epochs=4, start=start)

    whole = list(draws(0))
    for start in range(13):
        assert list(draws(0, start)) == whole[start:]
        assert len(draws(0, start)) == 12 - start
    assert [sorted(item for batch in whole[i : i + 3] for item, _ in batch) for i in (0, 3, 6, 9)] == [
        list(range(24))
    ] * 4
    seeds = [seed for run in (whole, list(draws(1))) for batch in run for _, seed in batch]
    assert len(set(seeds)) == len(seeds)
    assert 0 <= min(seeds) <= max(seeds) < 2**63  # what a generator takes


@pytest.mark.parametrize(("processes", "pieces"), [(2, 1), (2, 2), (3, 2), (1, 4)])
def test_shares_of_processes_put_together_are_the_pieces_of_one(processes, pieces):
    batches = BalancedBatches(torch.arange(12).repeat(3), classes_per_batch=12, samples_per_class=2, seed=0)
    whole = list(Draws(batches, epochs=2))
    shares = [
        list(Draws(batches, epochs=2, rank=rank, processes=processes, pieces=pieces))
        for rank in range(processes)
    ]
    for step, batch in enumerate(whole):
        cut = [share[step] for share in shares]
        size = len(cut[0]) // pieces
        together = [
            draw
            for piece in range(pieces)
            for part in cut
            for draw in part[piece * size : (piece + 1) * size]
        ]
        assert together == batch
    with pytest.raises(ValueError, match="a multiple of 5"):
        Draws(batches, epochs=1, processes=5)
