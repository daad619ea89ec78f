"""Mutants of the fused form: each must change a value or a gradient that the loop in float64 knows."""

import inspect
import types

import numpy as np
import pytest
import torch
from support.references_own import warped_softmax

from softwarp.losses import (
    EuclideanSoftmaxLoss,
    WarpedSoftmaxLoss,
    fused,
    fused_warped_softmax_loss,
    warped_softmax_loss,
)

SOURCE = inspect.getsource(fused)
MUTANTS = [
    ("inside = t < alpha", "inside = t > alpha"),
    ("torch.where(inside, k1, k2)", "torch.where(inside, k2, k1)"),
    ("delta * (1 - k1) * t", "(1 - k1) * t"),
    ("(1 - k2) * alpha", "(k2 - 1) * alpha"),
    ("own = scale * (slope", "own = (slope"),
    ("(scale / len(t)) * slope", "(1 / len(t)) * slope"),
    ("(scale / len(t)) * slope", "(scale / len(t)) * 1"),
    ("t.masked_fill_(t == 0, torch.inf)", "t"),
    ("-torch.expm1(-loss)", "torch.exp(-loss)"),
    ("own_grad, alpha=-1)", "own_grad, alpha=1)"),
    ("own_grad.add_(one_tensor(grads))", "own_grad"),
    ("return loss.mean()", "return loss.sum()"),
    ("[grad * grad_loss for grad in grads]", "[grad for grad in grads]"),
    ("y - part.start", "y"),
    ("total.log_().sub_(minimum)", "total.log_().add_(minimum)"),
    ("torch.stack(sums).logsumexp(0)", "torch.stack(sums).amax(0)"),
    ("softplus(others.add_(own), threshold=40)", "softplus(others.add_(own), threshold=1)"),
    ("(own - loss - minimum)", "(own - loss)"),
    ("(scale or 1.0) / batch", "1 / batch"),
    ("(scale or 1.0) / batch", "scale"),
    ("grad.addmm_(a, vectors[part])", "grad"),
    ("a.sum(0)[:, None], value=-1)", "a.sum(0)[:, None], value=1)"),
    (".addmm_(a.T, e)", ""),
    ("addcmul_(e, pull[:, None], value=-1)", "addcmul_(e, pull[:, None], value=1)"),
    ("pull.add_(a.sum(1))", "pull.copy_(a.sum(1))"),
    ("addmm_(e, p.T, alpha=-2)", "addmm_(e, p.T, alpha=-1)"),
    ("tile.scatter_(1, own[:, None], torch.inf)", "tile"),
    ("masked_fill_(here, value)", "masked_fill_(here, 0.0)"),
    ("(index >= 0) &", ""),
    ("& (index < tile.shape[1])", ""),
    ("torch.add(minimum[:, None], t, alpha=-scale)", "torch.add(minimum[:, None], t, alpha=-1)"),
    ("torch.div(u, t, out=t)", "u"),
    ("posinf=0.0", "posinf=torch.inf"),
]
WARP = {"alpha": torch.tensor([0.5, 1.5, 2.0, 4.5, 5.0, 3.0]).double(), "k1": 0.7, "k2": 1.4, "delta": 0.6}


def batch():
    """Nine samples near six proxies: one on its own proxy, one on another's."""
    generator = torch.Generator().manual_seed(0)
    embeddings = 2 * torch.randn(9, 3, generator=generator, dtype=torch.float64)
    proxies = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 3, 4, 5, 0, 1, 5])
    proxies[3] = torch.tensor([1.0, -2.0, 0.0])  # whose squares cancel without rounding
    embeddings[0], embeddings[1] = proxies[0], proxies[3]
    return embeddings, proxies, labels


def outcome(module, **chunks):
    """Three times the value and its gradients, as one row of numbers."""
    embeddings, proxies, labels = batch()
    embeddings, proxies = embeddings.requires_grad_(), proxies.requires_grad_()
    value = 3 * module.fused_softmax(embeddings, proxies, labels, scale=1.5, **WARP, **chunks)
    value.backward()
    return torch.cat([value.detach()[None], embeddings.grad.flatten(), proxies.grad.flatten()]).numpy()


def expected():
    embeddings, proxies, labels = (tensor.numpy() for tensor in batch())
    warp = {**WARP, "alpha": WARP["alpha"].numpy()}
    losses, of_embeddings, of_proxies = warped_softmax(embeddings, proxies, labels, scale=1.5, **warp)
    parts = [[losses.sum()], of_embeddings.flatten(), of_proxies.flatten()]
    return 3 * np.concatenate(parts) / len(labels)


TRIALS = [{"chunk_rows": 4, "tile_columns": 4}, {"chunk_rows": 9, "tile_columns": 6}]


def load(source):
    module = types.ModuleType("fused_mutant")
    exec(compile(source, "fused_mutant", "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("chunks", TRIALS)
def test_the_fused_form_equals_the_loop(chunks):
    np.testing.assert_allclose(outcome(load(SOURCE), **chunks), expected(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("old", "new"), MUTANTS, ids=[new or old for old, new in MUTANTS])
def test_the_loop_kills_mutants(old, new):
    """A mutant that raises fails the test: it proves nothing."""
    assert SOURCE.count(old) == 1, f"{old!r} must stand once in fused.py"
    mutant = load(SOURCE.replace(old, new))
    assert any(not np.allclose(outcome(mutant, **trial), expected(), rtol=1e-9) for trial in TRIALS)


@pytest.mark.parametrize("loss", [WarpedSoftmaxLoss(6, 3), EuclideanSoftmaxLoss(6, 3)])
def test_second_derivatives_are_refused_with_what_has_them(loss):
    embeddings, _, labels = batch()
    value = loss.double()(embeddings.requires_grad_(), labels)
    with pytest.raises(ValueError, match="warped_softmax_loss"):
        torch.autograd.grad(value, embeddings, create_graph=True)


def test_the_specification_has_second_derivatives():
    embeddings, proxies, labels = batch()
    value = warped_softmax_loss(embeddings.requires_grad_(), proxies, labels, scale=1.5, **WARP).mean()
    (gradient,) = torch.autograd.grad(value, embeddings, create_graph=True)
    (second,) = torch.autograd.grad(gradient.square().sum(), embeddings)
    assert second.abs().max() > 0


def test_a_first_derivative_inside_another_graph_is_allowed():
    """Only a graph of the gradient is refused, not a graph that is used twice."""
    embeddings, proxies, labels = batch()
    value = fused_warped_softmax_loss(embeddings.requires_grad_(), proxies, labels, scale=1.5, **WARP)
    first = torch.autograd.grad(value.square(), embeddings, retain_graph=True)
    assert torch.equal(*first, *torch.autograd.grad(value.square(), embeddings))
