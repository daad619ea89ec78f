"""The registry and ProxyNCA++; what all losses are held to is in test_loss_conformance.py."""

import numpy as np
import pytest
import torch
from support import references_own as references

from softwarp.losses import LOSSES, ProxyNCAppLoss, build_loss, card_of, proxy_nca_pp_loss


def test_a_name_that_is_not_there_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match=r"'warped_sotfmax'.*did you mean warped_softmax"):
        build_loss("warped_sotfmax", 3, 2)
    with pytest.raises(ValueError, match=r"'HIST'.*did you mean hist"):
        build_loss("HIST", 3, 2)


def test_a_setting_that_is_not_there_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match=r"warped_softmax .*'aplha'.*did you mean alpha"):
        build_loss("warped_softmax", 3, 2, aplha=2.0)
    with pytest.raises(ValueError, match=r"proxy_nca_pp .*'aplha'"):
        build_loss("hierarchical_proxies", 6, 2, aplha=2.0)


def test_a_setting_of_the_wrong_type_is_named_with_its_default():
    message = r"recall_at_k .*cutoffs=4 \(default \(1, 2, 4, 8, 16\)\)"
    with pytest.raises(ValueError, match=message):
        build_loss("recall_at_k", 10, 16, cutoffs=4)


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_has_defaults(name):
    labels = torch.arange(6).repeat_interleave(3)
    assert torch.isfinite(build_loss(name, 6, 8)(torch.randn(18, 8), labels))


def test_proxy_nca_pp_equals_the_loop_and_its_gradient():
    torch.manual_seed(0)
    embeddings = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    proxies = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(5, (7,))
    expected = references.proxy_nca_pp(
        embeddings.detach().numpy(), proxies.detach().numpy(), labels.numpy(), scale=4.0
    )
    np.testing.assert_allclose(
        proxy_nca_pp_loss(embeddings, proxies, labels, scale=4.0).detach(), expected, rtol=1e-9
    )
    assert torch.autograd.gradcheck(lambda e, p: proxy_nca_pp_loss(e, p, labels), (embeddings, proxies))


def test_proxy_nca_pp_equals_pytorch_metric_learning():
    from pytorch_metric_learning.losses import ProxyNCALoss

    torch.manual_seed(0)
    ours, theirs = ProxyNCAppLoss(6, 4, scale=9.0), ProxyNCALoss(6, 4, softmax_scale=9)
    theirs.proxies.data.copy_(ours.proxies.data)
    embeddings, labels = torch.randn(10, 4), torch.randint(6, (10,))
    torch.testing.assert_close(ours(embeddings, labels), theirs(embeddings, labels))


def test_proxy_nca_pp_keeps_samples_whose_probability_underflows():
    """Where pytorch-metric-learning drops them from its mean: the worst samples teach nothing there."""
    from pytorch_metric_learning.losses import ProxyNCALoss

    ours, theirs = ProxyNCAppLoss(2, 2, scale=64.0), ProxyNCALoss(2, 2, softmax_scale=64)
    ours.proxies.data = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    theirs.proxies.data = ours.proxies.data.clone()
    embeddings, labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([1, 1])
    expected = references.proxy_nca_pp(
        embeddings.double().numpy(), ours.proxies.detach().double().numpy(), labels.numpy(), scale=64.0
    )
    assert expected == pytest.approx([256.0, np.log(2)])
    assert ours(embeddings, labels).item() == pytest.approx(expected.mean())
    assert theirs(embeddings, labels).item() == pytest.approx(expected[1])


def test_proxy_nca_pp_stays_finite_in_bfloat16_and_at_the_origin():
    loss = ProxyNCAppLoss(6, 4)
    embeddings = torch.zeros(3, 4, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        loss(embeddings, torch.tensor([0, 1, 2])).backward()
    assert torch.isfinite(embeddings.grad).all()


def test_proxy_nca_pp_refuses_a_scale_that_is_not_positive():
    with pytest.raises(ValueError, match="scale must be positive"):
        ProxyNCAppLoss(6, 4, scale=0.0)
    with pytest.raises(ValueError, match="scale must be positive"):
        proxy_nca_pp_loss(torch.ones(1, 2), torch.ones(2, 2), torch.tensor([0]), scale=-1.0)


def test_a_loss_without_a_card_is_told_so(monkeypatch):
    monkeypatch.setitem(LOSSES, "bare", torch.nn.Identity)
    with pytest.raises(ValueError, match=r"bare .*card"):
        card_of("bare")
