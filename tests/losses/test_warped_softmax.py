"""The heart: value and gradient of both implementations, their limits, and the modules around them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import references_own as references

from softwarp.losses import (
    EuclideanSoftmaxLoss,
    WarpedSoftmaxLoss,
    fused,
    fused_warped_softmax_loss,
    softmax_loss,
    warped_softmax_loss,
)
from softwarp.losses.warps import identity, piecewise, power, scaled

WARP = {"alpha": 2.0, "k1": 0.7, "k2": 1.4, "scale": 1.5, "delta": 1.0}


@st.composite
def problems(draw):
    """Random batches, warps and chunk sizes; some embeddings on their proxy, some exactly at alpha."""
    n, c, d = draw(st.integers(1, 9)), draw(st.integers(1, 12)), draw(st.integers(1, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    spread = draw(st.sampled_from([0.1, 1.0, 10.0]))
    embeddings = spread * torch.randn(n, d, generator=generator, dtype=torch.float64)
    proxies = torch.randn(c, d, generator=generator, dtype=torch.float64)
    labels = torch.randint(c, (n,), generator=generator)
    warp = {
        "alpha": draw(st.sampled_from([0.0, 0.5, 2.0, 8.0, 100.0])),
        "k1": draw(st.floats(0.05, 1.5)),
        "k2": draw(st.floats(0.5, 3.0)),
        "scale": draw(st.sampled_from([0.3, 1.0, 4.5])),
        "delta": draw(st.sampled_from([0.0, 1.0, 1.5])),
    }
    if draw(st.booleans()):
        embeddings[0] = proxies[labels[0]]
    if draw(st.booleans()):
        embeddings[-1] = proxies[labels[-1]]
        embeddings[-1, 0] += warp["alpha"]
        proxies[labels[-1], 0] = embeddings[-1, 0] - warp["alpha"]
    if draw(st.booleans()):
        for name in ("alpha", "k1", "k2"):
            warp[name] = warp[name] * (0.5 + torch.rand(c, generator=generator, dtype=torch.float64))
    chunks = {
        "chunk_rows": draw(st.one_of(st.none(), st.integers(1, n))),
        "tile_columns": draw(st.one_of(st.none(), st.integers(1, c))),
    }
    return embeddings, proxies, labels, warp, chunks


def value_and_gradients(function, embeddings, proxies, labels, **keywords):
    embeddings, proxies = embeddings.clone().requires_grad_(), proxies.clone().requires_grad_()
    value = function(embeddings, proxies, labels, **keywords).mean()
    value.backward()
    return value.item(), embeddings.grad, proxies.grad


@settings(max_examples=150, deadline=None)
@given(problems())
def test_both_forms_equal_the_loop_in_value_and_gradient(problem):
    embeddings, proxies, labels, warp, chunks = problem
    arrays = {k: v.numpy() if isinstance(v, torch.Tensor) else v for k, v in warp.items()}
    losses, *expected = references.warped_softmax(
        embeddings.numpy(), proxies.numpy(), labels.numpy(), **arrays
    )
    for function, extra in ((warped_softmax_loss, {}), (fused_warped_softmax_loss, chunks)):
        value, *grads = value_and_gradients(function, embeddings, proxies, labels, **warp, **extra)
        assert value == pytest.approx(losses.mean(), rel=1e-9, abs=1e-9)
        for grad, reference in zip(grads, expected, strict=True):
            torch.testing.assert_close(grad, torch.from_numpy(reference) / len(labels), rtol=1e-9, atol=1e-9)


def test_the_specification_is_one_loss_a_sample():
    embeddings, proxies, labels = torch.randn(5, 3), torch.randn(4, 3), torch.tensor([0, 1, 2, 3, 3])
    losses = warped_softmax_loss(embeddings, proxies, labels, **WARP)
    expected = references.warped_softmax(
        embeddings.double().numpy(), proxies.double().numpy(), labels.numpy(), **WARP
    )[0]
    np.testing.assert_allclose(losses.numpy(), expected, rtol=1e-5)


def test_at_alpha_the_outer_slope_holds():
    """t = alpha exactly belongs to the outside of Eq. 7."""
    embeddings, proxies = torch.tensor([[3.0]]).double(), torch.tensor([[0.0], [9.0]]).double()
    for function in (warped_softmax_loss, fused_warped_softmax_loss):
        value, grad, _ = value_and_gradients(
            function, embeddings, proxies, torch.tensor([0]), alpha=3.0, k1=0.5, k2=2.0
        )
        weight = 1 / (1 + np.exp(6.0 - 3.0))
        assert value == pytest.approx(np.log1p(np.exp(3.0 - 6.0)))
        assert grad.item() == pytest.approx(weight * (2.0 + 1.0))


@pytest.mark.parametrize("alpha", [0.0, 2.0, 100.0])
def test_gradcheck_where_the_loss_is_smooth(alpha):
    torch.manual_seed(0)
    embeddings = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    proxies = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 4, 4, 2])
    warp = {**WARP, "alpha": alpha, "delta": 0.0}
    for function in (warped_softmax_loss, fused_warped_softmax_loss):
        assert torch.autograd.gradcheck(
            lambda e, p, function=function: function(e, p, labels, **warp), (embeddings, proxies)
        )


def test_a_gradient_other_than_one_is_passed_on():
    torch.manual_seed(0)
    batch = torch.randn(6, 4), torch.randn(5, 4), torch.randint(5, (6,))
    _, grad, grad_proxies = value_and_gradients(fused_warped_softmax_loss, *batch, **WARP)
    _, thrice, thrice_proxies = value_and_gradients(
        lambda *a, **k: 3 * fused_warped_softmax_loss(*a, **k), *batch, **WARP
    )
    torch.testing.assert_close(thrice, 3 * grad)
    torch.testing.assert_close(thrice_proxies, 3 * grad_proxies)


def test_the_graph_can_be_used_twice():
    embeddings = torch.randn(3, 2, requires_grad=True)
    loss = fused_warped_softmax_loss(embeddings, torch.randn(4, 2), torch.tensor([0, 1, 2]), **WARP)
    loss.backward(retain_graph=True)
    once = embeddings.grad.clone()
    loss.backward()
    torch.testing.assert_close(embeddings.grad, 2 * once)


def test_gradients_are_only_made_where_somebody_wants_them(monkeypatch):
    made = []
    original = fused.chunk

    def spy(*arguments):
        made.append(arguments[6] is not None)
        return original(*arguments)

    monkeypatch.setattr(fused, "chunk", spy)
    embeddings, proxies, labels = torch.randn(3, 2), torch.randn(4, 2), torch.tensor([0, 1, 2])
    fused_warped_softmax_loss(embeddings, proxies, labels, **WARP)
    proxies.requires_grad_()
    with torch.no_grad():
        fused_warped_softmax_loss(embeddings, proxies, labels, **WARP)
    fused_warped_softmax_loss(embeddings, proxies, labels, **WARP)
    assert made == [False, False, True]


@pytest.mark.parametrize("norm", [1e-6, 1e-3, 1.0, 1e3, 1e6])
@pytest.mark.parametrize("autocast", [False, True])
def test_finite_at_every_size(norm, autocast):
    torch.manual_seed(0)
    embeddings = torch.nn.functional.normalize(torch.randn(20, 16)) * norm
    proxies = torch.nn.functional.normalize(torch.randn(30, 16)) * norm
    labels = torch.randint(30, (20,))
    embeddings[0] = proxies[labels[0]]  # on its own proxy
    embeddings[1] = proxies[(labels[1] + 1) % 30]  # on another's
    for function in (fused_warped_softmax_loss, warped_softmax_loss):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            value, *grads = value_and_gradients(function, embeddings, proxies, labels, **WARP)
        assert np.isfinite(value)
        assert all(torch.isfinite(grad).all() for grad in grads)


def test_autocast_changes_nothing():
    torch.manual_seed(0)
    batch = torch.randn(20, 16) + 10, torch.randn(30, 16) + 10, torch.randint(30, (20,))
    plain = value_and_gradients(fused_warped_softmax_loss, *batch, **WARP)
    with torch.autocast("cpu", torch.bfloat16):
        cast = value_and_gradients(fused_warped_softmax_loss, *batch, **WARP)
    assert cast[0] == plain[0]
    assert torch.equal(cast[1], plain[1])


def test_bfloat16_embeddings_are_measured_in_float32():
    embeddings = torch.randn(4, 8).bfloat16().requires_grad_()
    loss = WarpedSoftmaxLoss(6, 8, alpha=2.0, k1=0.8, k2=1.2)(embeddings, torch.tensor([0, 1, 2, 3]))
    loss.backward()
    assert loss.dtype == torch.float32
    assert embeddings.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("offset", [0.0, 10.0, 100.0])
def test_error_is_no_larger_than_with_cdist(offset):
    """Beside float64 truth, over many batches; the distance to its own proxy never loses digits."""
    warp = {"alpha": 4.0, "k1": 0.8, "k2": 1.3, "scale": 2.0, "delta": 1.0}
    ours, theirs = [], []
    for seed in range(30):
        torch.manual_seed(seed)
        labels = torch.randint(64, (32,))
        proxies = torch.randn(64, 32) + offset
        embeddings = proxies[labels] + torch.randn(32, 32)
        truth = value_and_gradients(
            warped_softmax_loss, embeddings.double(), proxies.double(), labels, **warp
        )
        fused = value_and_gradients(fused_warped_softmax_loss, embeddings, proxies, labels, **warp)
        naive = value_and_gradients(_with_cdist, embeddings, proxies, labels, **warp)
        for result, errors in ((fused, ours), (naive, theirs)):
            errors.append(
                [
                    abs(result[0] - truth[0]),
                    *((g - t).norm() for g, t in zip(result[1:], truth[1:], strict=True)),
                ]
            )
    ours, theirs = np.array(ours), np.array(theirs)
    assert (ours.mean(0) <= theirs.mean(0)).all(), (ours.mean(0), theirs.mean(0))


def _with_cdist(embeddings, proxies, labels, *, scale, **warp):
    t = torch.cdist(embeddings, proxies, compute_mode="use_mm_for_euclid_dist")
    target = labels[:, None]
    logits = -scale * t.scatter(1, target, piecewise(**warp)(t.gather(1, target)))
    return torch.nn.functional.cross_entropy(logits, labels)


def test_own_distance_does_not_cancel():
    """At norm 1e4 the expansion of |e - p|^2 has no digit left of a distance of 0.1."""
    proxies = torch.tensor([[1e4, 0.0], [-1e4, 0.0]])
    embeddings = torch.tensor([[1e4, 0.1]], requires_grad=True)
    fused_warped_softmax_loss(
        embeddings, proxies, torch.tensor([0]), alpha=0.0, k1=1.0, k2=1.0, scale=1e-4
    ).backward()
    expected = 1e-4 * torch.sigmoid(torch.tensor(-2.0))
    assert embeddings.grad[0, 1].item() == pytest.approx(expected.item(), rel=1e-3)


def test_a_large_loss_keeps_its_digits():
    """torch's softplus gives up all beyond 2e-9 where its argument is above 20."""
    loss = fused_warped_softmax_loss(
        torch.tensor([[30.5]]).double(), torch.tensor([[0.0], [40.0]]).double(), torch.tensor([0]),
        alpha=0.0, k1=1.0, k2=1.0,
    )  # fmt: skip
    assert loss.item() == pytest.approx(np.log1p(np.exp(21.0)), rel=1e-14)


def test_a_tiny_loss_keeps_its_digits():
    loss = fused_warped_softmax_loss(
        torch.tensor([[1.0]]), torch.tensor([[0.0], [41.0]]), torch.tensor([0]), alpha=0.0, k1=1.0, k2=1.0
    )
    assert loss.item() == pytest.approx(np.exp(-39.0), rel=1e-5, abs=0)


@pytest.mark.parametrize(
    ("own", "other"),
    [(identity, identity), (power(2.0), power(2.0)), (power(0.5), power(0.5)), (power(1.5), power(1.5)),
     (scaled(0.5), identity), (scaled(1.1), identity)],
)  # fmt: skip
def test_the_functions_of_table_3(own, other):
    embeddings = torch.tensor([[3.0, 4.0], [0.0, 0.0]], requires_grad=True)
    proxies = torch.tensor([[0.0, 0.0], [3.0, 0.0]])
    losses = softmax_loss(embeddings, proxies, torch.tensor([0, 0]), own=own, other=other, scale=0.3)
    t = torch.tensor([[5.0, 4.0], [0.0, 3.0]])
    expected = torch.log1p(torch.exp(0.3 * (own(t[:, 0]) - other(t[:, 1]))))
    torch.testing.assert_close(losses.detach(), expected)
    losses.sum().backward()
    assert torch.isfinite(embeddings.grad).all()


def test_powers_have_a_gradient_of_zero_at_zero():
    t = torch.tensor([0.0, 4.0], requires_grad=True)
    (grad,) = torch.autograd.grad(power(0.5)(t).sum(), t)
    assert grad.tolist() == [0.0, 0.25]


def test_delta_restores_the_value_below_alpha_and_leaves_the_gradient():
    t = torch.tensor([1.0, 3.0], requires_grad=True)
    value = piecewise(alpha=2.0, k1=0.6, k2=1.5, delta=1.0)(t)
    torch.testing.assert_close(value, torch.tensor([1.0, 3.5]))
    value.sum().backward()
    torch.testing.assert_close(t.grad, torch.tensor([0.6, 1.5]))
    assert piecewise(alpha=2.0, k1=0.6, k2=1.5, delta=0.0)(t)[0].item() == pytest.approx(0.6)
    assert piecewise(alpha=2.0, k1=0.6, k2=1.5, delta=1.5)(t)[0].item() == pytest.approx(0.6 + 1.5 * 0.4)


def test_euclidean_softmax_is_the_warp_with_slopes_of_one_exactly():
    torch.manual_seed(0)
    plain = EuclideanSoftmaxLoss(7, 5, scale=2.0)
    warped = WarpedSoftmaxLoss(7, 5, alpha=3.0, k1=1.0, k2=1.0, scale=2.0)
    warped.proxies.data.copy_(plain.proxies.data)
    embeddings, labels = 3 * torch.randn(9, 5), torch.randint(7, (9,))
    results = []
    for loss in (plain, warped):
        batch = embeddings.clone().requires_grad_()
        value = loss(batch, labels)
        value.backward()
        results.append((value.detach(), batch.grad, loss.proxies.grad))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_module_equals_the_specification_and_takes_a_second_phase():
    torch.manual_seed(0)
    loss = WarpedSoftmaxLoss(6, 4, alpha=torch.linspace(0.5, 3.0, 6), k1=0.7, k2=1.4, scale=1.5)
    embeddings, labels = 2 * torch.randn(8, 4), torch.randint(6, (8,))
    expected = warped_softmax_loss(
        embeddings, loss.proxies, labels, alpha=torch.linspace(0.5, 3.0, 6), k1=0.7, k2=1.4, scale=1.5
    ).mean()
    torch.testing.assert_close(loss(embeddings, labels), expected)
    loss.set_warp(alpha=1.0, scale=1.0)
    second = warped_softmax_loss(embeddings, loss.proxies, labels, alpha=1.0, k1=0.7, k2=1.4).mean()
    torch.testing.assert_close(loss(embeddings, labels), second)


def test_state_dict_carries_proxies_and_warp():
    first = WarpedSoftmaxLoss(6, 4, alpha=2.0, k1=0.7, k2=1.4, scale=1.5, delta=1.3)
    second = WarpedSoftmaxLoss(6, 4, alpha=1.0, k1=0.9, k2=1.1)
    second.load_state_dict(first.state_dict())
    embeddings, labels = torch.randn(5, 4), torch.randint(6, (5,))
    assert torch.equal(first(embeddings, labels), second(embeddings, labels))


def test_proxies_start_as_the_authors_do():
    torch.manual_seed(0)
    proxies = WarpedSoftmaxLoss(400, 256, alpha=2.0, k1=0.7, k2=1.4).proxies
    assert proxies.std().item() == pytest.approx((2 / 400) ** 0.5, rel=0.02)
    zeros = WarpedSoftmaxLoss(4, 2, alpha=2.0, k1=0.7, k2=1.4, proxy_init="zeros").proxies
    assert not zeros.any()


E2, P2, Y2 = torch.zeros(2, 3), torch.ones(4, 3), torch.tensor([0, 3])


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((torch.zeros(2, 3, 1), P2, Y2), r"embeddings must be \[N, D\]"),
        ((torch.zeros(2, 5), P2, Y2), r"D = 3, got \[2, 5\].*embedding_size"),
        ((E2, P2, torch.tensor([0])), r"labels must be \[N\] = \[2\]"),
        ((E2, P2, torch.tensor([0, 4])), "labels must be 0 to 3 for 4 classes, got 0 to 4"),
        ((E2, P2, torch.tensor([-1, 0])), "got -1 to 0"),
        ((E2, P2, torch.tensor([0.0, 1.0])), r"labels must be integers.*\.long\(\)"),
        ((E2.long(), P2, Y2), "embeddings must be floating point"),
        ((E2[:0], P2, Y2[:0]), "the batch is empty"),
        ((torch.tensor([[0.0, 0, 0], [torch.nan, 0, 0]]), P2, Y2), r"embeddings hold NaN .* \(1\).*lower"),
        ((E2, torch.full((4, 3), torch.inf), Y2), "proxies hold NaN or infinity in 4 of 4 rows"),
        ((torch.full((2, 3), 1e30), P2, Y2), "overflows"),
    ],
)  # fmt: skip
def test_a_wrong_batch_is_named(batch, message):
    for function in (warped_softmax_loss, fused_warped_softmax_loss):
        with pytest.raises(ValueError, match=message):
            function(*batch, **WARP)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alpha": -1.0}, "alpha must be at least 0"),
        ({"alpha": float("inf")}, "alpha must be .*finite, got inf"),
        ({"delta": float("inf")}, "delta must be .*finite, got inf"),
        ({"k1": 0.0}, "k1 must be positive"),
        ({"k1": 1.2}, "0 < k1 <= 1 <= k2"),
        ({"k2": 0.9}, "0 < k1 <= 1 <= k2"),
        ({"k2": float("nan")}, "k2 must be positive"),
        ({"scale": 0.0}, "scale must be positive"),
        ({"delta": -0.1}, "delta must be at least 0"),
        ({"alpha": torch.ones(3)}, r"alpha must be a number or a tensor \[4\]"),
        ({"proxy_init": "keiming"}, "proxy_init must be one of kaiming"),
    ],
)
def test_wrong_parameters_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        WarpedSoftmaxLoss(4, 3, **{**WARP, **change})
    if "proxy_init" not in change and "<=" not in message:
        for function in (warped_softmax_loss, fused_warped_softmax_loss):
            with pytest.raises(ValueError, match=message):
                function(E2, P2, Y2, **{**WARP, **change})


@pytest.mark.parametrize("name", ["chunk_rows", "tile_columns"])
def test_chunks_of_nothing_are_named(name):
    with pytest.raises(ValueError, match=f"{name} must .*at least 1, got 0"):
        fused_warped_softmax_loss(E2, P2, Y2, **WARP, **{name: 0})


def test_functions_take_slopes_that_modules_refuse():
    value = warped_softmax_loss(E2, P2, Y2, alpha=1.0, k1=1.5, k2=0.5)
    assert torch.isfinite(value).all()
    with pytest.raises(ValueError, match="num_classes"):
        WarpedSoftmaxLoss(0, 3, **WARP)
    with pytest.raises(ValueError, match="exponent"):
        power(0.0)
    with pytest.raises(ValueError, match="factor"):
        scaled(-1.0)


def test_a_warp_for_each_class_is_loaded_by_a_module_made_with_numbers():
    first, second = (WarpedSoftmaxLoss(3, 2, alpha=1.0, k1=0.5, k2=1.5) for _ in range(2))
    first.set_warp(alpha=torch.tensor([1.0, 2.0, 3.0]), scale=2.0)
    second.load_state_dict(first.state_dict())
    assert second.alpha.tolist() == [1.0, 2.0, 3.0]
    assert (second.k1.item(), second.scale) == (0.5, 2.0)
    first.load_state_dict(WarpedSoftmaxLoss(3, 2, alpha=4.0).state_dict())
    assert first.alpha.item() == 4.0
