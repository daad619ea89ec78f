"""The registry, and the losses besides the warped softmax."""

import numpy as np
import pytest
import references
import torch

from softwarp.losses import LOSSES, ProxyNCAppLoss, build_loss, proxy_nca_pp_loss

SETTINGS = {
    "warped_softmax": {"alpha": 2.0, "k1": 0.8, "k2": 1.2},
    "cross_entropy": {"dropout": 0.0, "proxy_init": "normal"},
    "intra_batch": {"dropout": 0.0},
    "group_loss": {"anchors": 0},  # the first of a class in the batch: there the order counts
}


def test_a_name_that_is_not_there_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="no loss is called 'warped_sotfmax'; did you mean warped_softmax"):
        build_loss("warped_sotfmax", 3, 2)


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_has_defaults(name):
    assert torch.isfinite(build_loss(name, 6, 4)(torch.randn(6, 4), torch.arange(6)))


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_trains_saves_and_declares(name):
    torch.manual_seed(0)
    loss = build_loss(name, 6, 4, **SETTINGS.get(name, {}))
    embeddings, labels = torch.randn(12, 4, requires_grad=True), torch.arange(6).repeat(2)
    first = loss(embeddings, labels)
    first.backward()
    with torch.no_grad():
        for tensor in (embeddings, *loss.parameters()):
            tensor -= 0.01 * tensor.grad
    assert loss(embeddings, labels) < first
    copy = build_loss(name, 6, 4, **SETTINGS.get(name, {}))
    copy.load_state_dict(loss.state_dict())
    assert torch.equal(copy(embeddings, labels), loss(embeddings, labels))
    assert loss.distance in ("euclidean", "cosine")
    assert type(loss).card.search_space
    assert str(loss).startswith(type(loss).__name__)


@pytest.mark.parametrize("name", LOSSES)
def test_order_of_batch_and_names_of_classes_do_not_matter(name):
    torch.manual_seed(1)
    loss = build_loss(name, 6, 4, **SETTINGS.get(name, {}))
    embeddings, labels = torch.randn(10, 4), torch.randint(6, (10,))
    value = loss(embeddings, labels)
    order = torch.randperm(10)
    torch.testing.assert_close(loss(embeddings[order], labels[order]), value)
    renamed = torch.randperm(6)
    with torch.no_grad():
        for tensor in loss.state_dict().values():
            if isinstance(tensor, torch.Tensor) and tensor.shape[:1] == (6,):
                tensor.copy_(tensor[renamed.argsort()])
    torch.testing.assert_close(loss(embeddings, renamed[labels]), value)


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
