"""Automatic scale and radius: what they are, that they are remembered, and that nothing makes them NaN."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from softwarp.losses import EuclideanSoftmaxLoss, WarpedSoftmaxLoss, build_loss, warped_softmax_loss
from softwarp.losses.automatic import (
    FLOOR,
    MEMORY,
    SAMPLED,
    class_scatter,
    mean_gap,
    mean_square_distance,
)
from softwarp.losses.contract import proxies_placed, readings_of
from softwarp.losses.sharding import ShardedLoss

CLASSES, SIZE = 7, 5
BOTH = pytest.mark.parametrize("kind", [WarpedSoftmaxLoss, EuclideanSoftmaxLoss])


def automatic(kind, classes=CLASSES, size=SIZE):
    torch.manual_seed(0)
    return kind(classes, size, scale="auto", **({"alpha": "auto"} if kind is WarpedSoftmaxLoss else {}))


def batch(seed=0, spread=3.0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(4).repeat(3)
    return spread * torch.randn(12, SIZE, generator=generator), labels


def test_gap_and_mean_square_are_those_of_loops():
    torch.manual_seed(0)
    (embeddings, labels), proxies = batch(), torch.randn(CLASSES, SIZE).double()
    embeddings = embeddings.double()
    t = torch.cdist(embeddings, proxies)
    torch.testing.assert_close(mean_square_distance(embeddings, proxies), t.square().mean(1))
    gaps = []
    for row, label in zip(t.tolist(), labels.tolist(), strict=True):
        others = [distance**2 for place, distance in enumerate(row) if place != label]
        gaps.append(math.sqrt(sum(others) / len(others)) - row[label])
    assert mean_gap(embeddings, proxies, labels).item() == pytest.approx(sum(gaps) / len(gaps))


def test_many_proxies_are_sampled_evenly():
    proxies = torch.arange(3.0 * SAMPLED)[:, None]
    expected = proxies[::3].square().mean()
    torch.testing.assert_close(mean_square_distance(torch.zeros(1, 1), proxies)[0], expected)


def test_scatter_is_unbiased_within_classes_and_over_all_where_each_is_alone():
    torch.manual_seed(0)
    centres, labels = 100 * torch.randn(500, 8), torch.arange(500).repeat(2)
    points = centres[labels] + torch.randn(1000, 8)
    assert class_scatter(points, labels).item() == pytest.approx(math.sqrt(8), rel=0.05)
    alone = torch.tensor([[0.0], [2.0], [4.0]])
    assert class_scatter(alone, torch.tensor([0, 1, 2])).item() == pytest.approx(2.0)


@BOTH
def test_the_loss_is_that_of_the_numbers_it_says(kind):
    loss = automatic(kind)
    assert readings_of(loss) == {}  # nothing is known before the first batch
    for step in range(3):
        loss(*batch(step))
    numbers = readings_of(loss)
    fixed = kind(CLASSES, SIZE, **numbers)
    fixed.load_state_dict(fixed.state_dict() | {"proxies": loss.proxies.detach()})
    results = []
    for each in (loss, fixed):
        embeddings, labels = batch(9)
        value = each(embeddings.requires_grad_(), labels)
        gradients = torch.autograd.grad(value, [embeddings, each.proxies])
        results.append([value.detach(), *gradients])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_factor_multiplies_what_is_measured():
    plain, twice = automatic(WarpedSoftmaxLoss), automatic(WarpedSoftmaxLoss)
    twice.set_warp(scale="auto:2", alpha="auto:0.5")
    for loss in (plain, twice):
        loss(*batch())
    assert readings_of(twice)["alpha"] == pytest.approx(readings_of(plain)["alpha"] / 2)
    assert readings_of(twice)["scale"] == pytest.approx(readings_of(plain)["scale"] * 2)
    again = WarpedSoftmaxLoss(CLASSES, SIZE)
    again.load_state_dict(twice.state_dict())
    assert torch.equal(again(*batch(1)), twice(*batch(1)))


@BOTH
@pytest.mark.parametrize("text", ["automatic", "auto:0", "auto:-1", "auto:x", "auto:inf", "auto:nan"])
def test_a_text_that_is_not_automatic_is_refused(kind, text):
    with pytest.raises((ValueError, TypeError), match=text):
        kind(CLASSES, SIZE, scale=text)


def test_the_first_batch_gives_alpha_reach_and_scale():
    loss, (embeddings, labels) = automatic(WarpedSoftmaxLoss), batch()
    reach = torch.cdist(embeddings, loss.proxies).square().mean().sqrt().item()
    scale = (math.log(CLASSES - 1) + 1) / (reach / 2)  # random proxies show no gap
    alpha = class_scatter(embeddings, labels)
    expected = warped_softmax_loss(
        embeddings, loss.proxies, labels, alpha=alpha, k1=0.9, k2=1.2, scale=scale
    ).mean()
    torch.testing.assert_close(loss(embeddings, labels), expected)
    assert readings_of(loss)["alpha"] == pytest.approx(alpha.item())
    loss(10 * embeddings, labels)
    assert readings_of(loss)["alpha"] == pytest.approx(alpha.item())  # it does not follow
    loss.start_phase(alpha="auto")
    loss(10 * embeddings, labels)
    assert readings_of(loss)["alpha"] == pytest.approx(10 * alpha.item())


def test_the_scale_follows_the_gap_of_past_batches():
    loss, labels = automatic(EuclideanSoftmaxLoss), torch.arange(CLASSES)
    with torch.no_grad():
        loss.proxies.copy_(10 * torch.nn.functional.one_hot(labels, SIZE + 2)[:, :SIZE])
    on_their_proxies = loss.proxies.detach().clone()
    gap = mean_gap(on_their_proxies, loss.proxies.detach(), labels).item()
    for _ in range(MEMORY):
        loss(on_their_proxies, labels)
    assert readings_of(loss)["scale"] == pytest.approx((math.log(CLASSES - 1) + 1) / gap)
    loss(torch.zeros(CLASSES, SIZE), labels)  # a batch counts for one in fifty
    here = mean_gap(torch.zeros(CLASSES, SIZE), loss.proxies.detach(), labels).item()
    assert loss.lengths.gap.item() == pytest.approx(gap + (here - gap) / MEMORY, rel=1e-5)


@BOTH
@pytest.mark.parametrize(
    ("pull", "unequal", "placed", "expected"),
    [(1, 0.0, True, "gap"), (0.4, 0.6, True, "wider"), (0, 0.6, True, "half"), (1, 0.0, False, "half")],
)
def test_where_proxies_were_placed_the_first_batch_shows_the_least_gap(kind, pull, unequal, placed, expected):
    """From class means, close classes would otherwise keep the scale of classes far apart."""
    loss, generator = automatic(kind, size=64), torch.Generator().manual_seed(1)
    labels, sizes = torch.arange(CLASSES).repeat(4), 1 + unequal * torch.linspace(-1, 1, CLASSES)
    with torch.no_grad():
        loss.proxies.copy_(sizes[:, None] * torch.randn(CLASSES, 64, generator=generator))
    if placed:
        proxies_placed(loss)
    proxies = loss.proxies.detach()
    near = pull * proxies[labels] + 1.5 * torch.randn(len(labels), 64, generator=generator)
    gap = mean_gap(near, proxies, labels).item()
    others = torch.cdist(near, proxies)[labels[:, None] != torch.arange(CLASSES)].view(len(labels), -1)
    wanted = math.log(CLASSES - 1) + 1
    wider = wanted * others.var(1, correction=0).mean().item() / gap
    half = FLOOR * mean_square_distance(near, proxies).mean().sqrt().item()
    least = {"gap": gap, "wider": wider, "half": half}[expected]
    assert least == min(max(gap, wider), half) or not placed
    sharded = ShardedLoss(copy.deepcopy(loss))
    for each in (loss, sharded):
        each(near, labels)
    assert readings_of(loss)["scale"] == pytest.approx(wanted / least, rel=0.05)
    assert readings_of(sharded) == pytest.approx(readings_of(loss), rel=1e-5)
    before = readings_of(loss)
    loss(proxies[labels - 1], labels)  # the gap is smaller now, the scale is not larger
    assert loss.lengths.gap.item() < gap
    assert readings_of(loss) == before


@BOTH
def test_lengths_do_not_depend_on_units(kind):
    """A space a thousand times as large has a thousandth of the scale, and the same loss."""
    small, large = automatic(kind), automatic(kind)
    with torch.no_grad():
        large.proxies.mul_(1000)
    for step in range(4):
        embeddings, labels = batch(step)
        torch.testing.assert_close(small(embeddings, labels), large(1000 * embeddings, labels))
    assert readings_of(large)["scale"] == pytest.approx(readings_of(small)["scale"] / 1000, rel=1e-5)


@BOTH
def test_evaluation_changes_nothing(kind):
    loss = automatic(kind)
    loss.eval()
    before = copy.deepcopy(loss.state_dict())
    assert loss(*batch()).isfinite()
    assert str(loss.state_dict()) == str(before)
    loss.train()(*batch())
    after = copy.deepcopy(loss.state_dict())
    loss.eval()(*batch(1))
    assert str(loss.state_dict()) == str(after) != str(before)


@BOTH
@pytest.mark.parametrize("steps", [0, 3])
def test_a_checkpoint_holds_all_of_it(kind, steps):
    loss, other = automatic(kind), kind(CLASSES, SIZE)
    for step in range(steps):
        loss(*batch(step))
    other.load_state_dict(copy.deepcopy(loss.state_dict()))
    assert readings_of(other) == readings_of(loss)
    for step in range(3, 6):
        assert torch.equal(loss(*batch(step)), other(*batch(step)))
    assert readings_of(other) == readings_of(loss)


@BOTH
def test_phases_set_numbers_and_auto(kind):
    loss = automatic(kind)
    loss(*batch())
    loss.start_phase(scale=2.0)
    assert readings_of(loss)["scale"] == 2.0
    loss.start_phase(scale="auto")
    loss(*batch(1))
    assert readings_of(loss)["scale"] != 2.0
    with pytest.raises((TypeError, ValueError)):
        loss.start_phase(scale="wide")


@BOTH
def test_a_bad_batch_leaves_no_trace(kind):
    loss, (embeddings, labels) = automatic(kind), batch()
    before = str(loss.state_dict())
    embeddings[1, 0] = torch.nan
    with pytest.raises(ValueError, match=r"embeddings hold NaN or infinity in 1 of 12 rows \(1\)"):
        loss(embeddings, labels)
    with pytest.raises(ValueError, match="labels must be 0 to 6"):
        loss(batch()[0], labels + 4)
    with pytest.raises(ValueError, match=r"D = 5, got \[12, 4\]"):
        loss(batch()[0][:, 1:], labels)
    assert str(loss.state_dict()) == before


def test_rounding_leaves_no_root_of_less_than_zero():
    """On the only other proxy its squared distance is what rounding makes of zero."""
    torch.manual_seed(0)
    for _ in range(50):
        proxies = torch.randn(2, 3)
        assert mean_gap(proxies.flip(0), proxies, torch.tensor([0, 1])).isfinite()


def test_a_wrapped_loss_may_be_automatic():
    loss = build_loss("hierarchical_proxies", 6, SIZE, loss="warped_softmax", scale="auto", alpha="auto")
    for step in range(3):
        assert loss(*batch(step)).isfinite()
    assert loss.fine.lengths.batches == 3
    assert readings_of(loss) == readings_of(loss.fine) != {}


@settings(deadline=None)
@given(
    seed=st.integers(0, 1000),
    samples=st.integers(1, 5),
    classes=st.integers(1, 6),
    size=st.integers(1, 4),
    spread=st.sampled_from([0.0, 1e-30, 1e-6, 1.0, 1e6, 1e12]),
    offset=st.sampled_from([0.0, 1.0, 1e6]),
    on_proxies=st.booleans(),
    one_point=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    kind=st.sampled_from([WarpedSoftmaxLoss, EuclideanSoftmaxLoss]),
)
def test_it_never_makes_nan(seed, samples, classes, size, spread, offset, on_proxies, one_point, dtype, kind):
    loss = automatic(kind, classes, size)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (samples,), generator=generator)
    for _ in range(2):
        embeddings = offset + spread * torch.randn(samples, size, generator=generator)
        if on_proxies:
            embeddings = loss.proxies.detach()[labels]
        if one_point:
            embeddings = embeddings[:1].repeat(samples, 1)
        embeddings = embeddings.to(dtype).requires_grad_()
        value = loss(embeddings, labels)
        gradients = torch.autograd.grad(value, [embeddings, loss.proxies])
        assert value.isfinite()
        assert all(gradient.isfinite().all() for gradient in gradients)
        assert all(math.isfinite(number) and number > 0 for number in readings_of(loss).values())
