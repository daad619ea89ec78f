"""Lemma 3.1 and Proposition 3.2 as properties of the gradients that embeddings really get."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from softwarp.losses import softmax_loss
from softwarp.losses.warps import identity, piecewise, power

LABEL = torch.tensor([0])


@st.composite
def proxy_pairs(draw):
    """Two proxies [2, D] in a random place and dimension, between 1 and 10 apart; its own first."""
    dimension = draw(st.integers(2, 12))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    own = 5 * torch.randn(dimension, generator=generator, dtype=torch.float64)
    direction = torch.randn(dimension, generator=generator, dtype=torch.float64)
    other = own + draw(st.floats(1.0, 10.0)) * direction / direction.norm()
    start = own + torch.randn(20, dimension, generator=generator, dtype=torch.float64)
    return torch.stack([own, other]), start


def flow(proxies, start, *, own, other, steps=800, size=3.0):
    """Let embeddings follow the direction of steepest descent in ever smaller steps.

    The small scale keeps the softmax from saturating: it changes how strong forces are, not where they point.
    """
    e = start.clone()
    labels = LABEL.expand(len(e))
    for step in range(steps):
        e.requires_grad_()
        (grad,) = torch.autograd.grad(
            softmax_loss(e, proxies, labels, own=own, other=other, scale=1e-3).sum(), e
        )
        e = (e - size * 0.988**step * torch.nn.functional.normalize(grad, eps=1e-300)).detach()
    return e


def outward(proxies):
    """The unit vector that points away from the other proxy."""
    return torch.nn.functional.normalize(proxies[0] - proxies[1], dim=0)


@settings(max_examples=6, deadline=None)
@given(
    proxy_pairs(),
    st.floats(0.5, 5.0),
    st.floats(0.3, 0.9),
    st.floats(1.1, 2.0),
    st.sampled_from([0.0, 1.0, 1.5]),
)
def test_embeddings_settle_at_alpha_on_the_line_beyond_their_proxy(pair, alpha, k1, k2, delta):
    proxies, start = pair
    warp = piecewise(alpha=alpha, k1=k1, k2=k2, delta=delta)
    ends = flow(proxies, start, own=warp, other=identity)
    attractor = proxies[0] + alpha * outward(proxies)
    torch.testing.assert_close(ends, attractor.expand_as(ends), rtol=0, atol=0.05)


@settings(max_examples=6, deadline=None)
@given(proxy_pairs(), st.sampled_from([1.5, 2.0, 3.0]))
def test_with_a_convex_function_they_run_away(pair, exponent):
    proxies, start = pair
    ends = flow(proxies, start, own=power(exponent), other=power(exponent), steps=150, size=0.7)
    travelled = (ends - proxies[0]) @ outward(proxies)
    assert (travelled > 25).all()  # of at most 49 that the steps allow


@settings(max_examples=6, deadline=None)
@given(proxy_pairs(), st.sampled_from([0.3, 0.5, 0.8]))
def test_with_a_concave_function_they_sit_on_the_proxy(pair, exponent):
    proxies, start = pair
    ends = flow(proxies, start, own=power(exponent), other=power(exponent))
    torch.testing.assert_close(ends, proxies[0].expand_as(ends), rtol=0, atol=0.05)


def extrema_on_disk(f, distance, radius):
    """Return the angles of the least and greatest loss on the circle round the other proxy (Lemma 3.1).

    Angle 0 is e_*, the point on the line through both proxies on its own proxy's side.
    """
    angles = torch.linspace(0, 2 * math.pi, 721, dtype=torch.float64)[:-1]
    proxies = torch.tensor([[distance, 0.0], [0.0, 0.0]], dtype=torch.float64)
    circle = radius * torch.stack([angles.cos(), angles.sin()], dim=1)
    losses = softmax_loss(circle, proxies, LABEL.expand(len(circle)), own=f, other=f)
    return angles[losses.argmin()].item(), angles[losses.argmax()].item()


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([identity, power(2.0), power(0.5), power(1.5)]), st.floats(1.0, 5.0), st.floats(0.5, 5.0)
)
def test_lemma_monotone_functions_have_their_extrema_on_the_line(f, distance, radius):
    least, greatest = extrema_on_disk(f, distance, radius)
    assert least == pytest.approx(0.0)
    assert greatest == pytest.approx(math.pi)


def test_lemma_a_function_that_falls_somewhere_breaks_it():
    def hump(t):
        return torch.where(t < 1.0, t, torch.where(t < 2.0, 2.0 - t, t - 2.0))

    least, _ = extrema_on_disk(hump, 3.0, 2.0)
    assert not math.isclose(least, 0.0, abs_tol=0.1)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.5, 8.0), st.floats(0.2, 0.95), st.floats(1.05, 2.5), st.floats(0.0, 3.0))
def test_proposition_the_force_turns_round_exactly_at_alpha(alpha, k1, k2, gap):
    """On the far side of the line, inside alpha the pull is outward, beyond it inward."""
    proxies = torch.tensor([[0.0], [-1.0 - gap]], dtype=torch.float64)
    e = (alpha * torch.tensor([0.5, 0.999, 1.001, 2.0], dtype=torch.float64))[:, None].requires_grad_()
    warp = piecewise(alpha=alpha, k1=k1, k2=k2)
    softmax_loss(e, proxies, LABEL.expand(4), own=warp, other=identity).sum().backward()
    assert np.sign(-e.grad.flatten().numpy()).tolist() == [1, 1, -1, -1]
