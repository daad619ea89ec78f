"""Losses with graphs, networks, classifiers and pair statistics, held to loops in float64."""

import pytest
import torch
from support.cases_graph import CASES
from support.loss_cases import arrays_of

from softwarp.losses import build_loss, card_of, proxy_gml_loss, sgsl_loss
from softwarp.losses.group_loss import anchor_mask, group_loss_per_sample
from softwarp.losses.proxy_gml import nearest_proxies

UNEQUAL = torch.tensor([3, 0, 0, 1, 3, 0, 2, 0, 1, 3])  # one class with a single sample, one absent
SETTINGS = [(name, dict(case.settings)) for name, case in CASES.items()] + [
    ("proxy_gml", {"proxies_per_class": 3, "ratio": 0.01, "weight": 0.0}),
    ("sgsl", {"threshold": 0.1}),
    ("sgsl", {"threshold": 100.0, "label_smoothing": 0.0}),
    ("cbml", {"margin": -0.5, "balance": 0.7}),
    ("hist", {"weight": 0.0}),
    ("intra_batch", {"dropout": 0.0, "layers": 2, "heads": 4, "temperature": 1.0}),
    ("intra_batch", {"dropout": 0.0}),
    ("group_loss", {"temperature": 3.0}),
    ("group_loss", {"anchors": 1, "iterations": 4, "weight": 0.5}),
]


def make(name, size=4, **settings):
    """A loss in float64 whose every parameter is drawn again, so that none hides behind a zero or a one."""
    torch.manual_seed(3)
    loss = build_loss(name, 5, size, **settings).double()
    with torch.no_grad():
        for parameter in loss.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return loss


@pytest.mark.parametrize(("name", "settings"), SETTINGS)
@pytest.mark.parametrize("labels", [UNEQUAL, torch.arange(5).repeat(3)], ids=["unequal", "equal"])
def test_value_equals_the_loop(name, settings, labels):
    loss = make(name, **settings)
    embeddings = 2 * torch.randn(len(labels), 4, dtype=torch.float64)
    expected = CASES[name].reference(embeddings.numpy(), labels.numpy(), arrays_of(loss), **settings)
    assert loss(embeddings, labels).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.surrogate is None])
def test_gradient_is_that_of_the_value(name):
    loss = make(name, **CASES[name].settings)
    embeddings = torch.randn(len(UNEQUAL), 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda e: loss(e, UNEQUAL), embeddings)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("embeddings", "labels"),
    [
        (torch.ones(1, 4), [2]),
        (torch.randn(6, 4), [1] * 6),
        (torch.randn(5, 4), [0, 1, 2, 3, 4]),
        (torch.ones(6, 4), [0, 0, 1, 1, 2, 2]),
        (torch.eye(4).repeat(2, 1), [0, 0, 1, 1, 0, 0, 1, 1]),
        (torch.zeros(6, 4), [0, 0, 1, 1, 2, 2]),
        (1e6 * torch.randn(6, 4), [0, 0, 1, 1, 2, 2]),
        (1e-20 * torch.randn(6, 4), [0, 0, 1, 1, 2, 2]),
    ],
    ids=["one", "one class", "singletons", "same", "duplicates", "zeros", "far", "near"],
)
def test_odd_batches_give_finite_gradients_or_a_clear_error(name, dtype, embeddings, labels):
    torch.manual_seed(0)
    loss = build_loss(name, 5, 4, **CASES[name].settings)
    embeddings, labels = embeddings.to(dtype, copy=True).requires_grad_(), torch.tensor(labels)
    needs_two = name in ("hist", "intra_batch")
    without_pairs = name == "cbml" and len(labels.unique()) in (1, len(labels))
    if without_pairs or (needs_two and len(labels) == 1):
        with pytest.raises(ValueError, match=r"raise batches\."):
            loss(embeddings, labels)
        return
    with torch.autocast("cpu", torch.bfloat16):
        value = loss(embeddings, labels)
    assert value.dtype == torch.float32
    value.backward()
    for tensor in (embeddings, *loss.parameters()):
        assert torch.isfinite(tensor.grad).all()


@pytest.mark.parametrize("name", ["hist", "intra_batch"])
def test_one_sample_is_refused_in_training_and_served_in_evaluation(name):
    loss = build_loss(name, 5, 4)
    with pytest.raises(ValueError, match="2 embeddings"):
        loss(torch.ones(1, 4), torch.tensor([0]))
    assert torch.isfinite(loss.eval()(torch.ones(1, 4), torch.tensor([0])))


@pytest.mark.parametrize("name", CASES)
def test_autocast_does_not_change_the_value(name):
    torch.manual_seed(0)
    loss, embeddings = build_loss(name, 5, 4, **CASES[name].settings), torch.randn(len(UNEQUAL), 4)
    with torch.autocast("cpu", torch.bfloat16):
        value = loss(embeddings, UNEQUAL)
    assert torch.equal(value, loss(embeddings, UNEQUAL))


@pytest.mark.parametrize("name", CASES)
def test_state_dict_makes_the_round_trip(name):
    settings = CASES[name].settings
    loss, copy = make(name, **settings), build_loss(name, 5, 4, **settings).double()
    embeddings = torch.randn(len(UNEQUAL), 4, dtype=torch.float64)
    loss(embeddings, UNEQUAL)  # moves the running statistics of a batch norm
    copy.load_state_dict(loss.state_dict())
    for module in (loss, copy):
        module.eval()
    assert torch.equal(copy(embeddings, UNEQUAL), loss(embeddings, UNEQUAL))


@pytest.mark.parametrize("name", CASES)
def test_order_of_the_batch_does_not_matter(name):
    loss = make(name, **CASES[name].settings)
    embeddings, order = torch.randn(len(UNEQUAL), 4, dtype=torch.float64), torch.randperm(len(UNEQUAL))
    torch.testing.assert_close(loss(embeddings[order], UNEQUAL[order]), loss(embeddings, UNEQUAL))


def test_group_loss_takes_the_first_of_each_class_as_anchors():
    assert anchor_mask(UNEQUAL, 1).nonzero().flatten().tolist() == [0, 1, 3, 6]
    loss = make("group_loss", anchors=1)
    embeddings = torch.randn(len(UNEQUAL), 4, dtype=torch.float64)
    by_class = UNEQUAL.argsort(stable=True)
    value = loss(embeddings, UNEQUAL)
    torch.testing.assert_close(loss(embeddings[by_class], UNEQUAL[by_class]), value)
    backwards = torch.arange(len(UNEQUAL)).flip(0)
    assert abs(loss(embeddings[backwards], UNEQUAL[backwards]) - value) > 1e-6


def test_group_loss_keeps_what_underflows():
    """Logits so far apart that probabilities are zero in float32: the logarithm still says how far."""
    embeddings, labels = torch.eye(4)[:2], torch.tensor([0, 1])
    logits = torch.tensor([[0.0, 500.0], [500.0, 0.0]])
    loss = group_loss_per_sample(embeddings, logits, labels, temperature=1.0, anchors=0, weight=1.0)
    torch.testing.assert_close(loss, torch.full((2,), 1500.0))  # the dynamics square, 1000, and CE is 500


def test_sgsl_gives_the_classifier_no_gradient_from_the_triplet():
    embeddings, labels = torch.randn(6, 4), torch.tensor([0, 0, 1, 1, 2, 2])
    gradients = []
    for threshold in (-1.0, 100.0):
        weights = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
        sgsl_loss(embeddings, weights, labels, threshold=threshold).sum().backward()
        gradients.append(weights.grad)
    torch.testing.assert_close(*gradients)


def test_sgsl_gives_the_embeddings_the_gradient_of_the_value():
    weights, labels = torch.randn(3, 4, dtype=torch.float64), torch.tensor([0, 0, 1, 1, 2, 2])
    embeddings = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda e: sgsl_loss(e, weights, labels, threshold=100.0), embeddings)


def test_proxy_gml_keeps_all_own_proxies_and_then_the_nearest():
    similarities = torch.tensor([[[-0.9, -0.8], [0.1, 0.5], [0.4, 0.2]]])
    kept = nearest_proxies(similarities, torch.tensor([0]), ratio=0.01)
    assert kept.tolist() == [[[True, True], [False, True], [True, False]]]
    kept = nearest_proxies(similarities, torch.tensor([0]), ratio=0.8)
    assert kept.tolist() == [[[True, True], [False, True], [True, True]]]


def test_proxy_gml_teaches_embeddings_also_with_few_classes():
    embeddings = torch.randn(6, 4, requires_grad=True)
    proxy_gml_loss(embeddings, torch.randn(3, 12, 4), torch.tensor([0, 0, 1, 1, 2, 2])).sum().backward()
    assert embeddings.grad.abs().max() > 0


def test_intra_batch_is_random_only_while_it_trains():
    torch.manual_seed(0)
    loss, embeddings = build_loss("intra_batch", 5, 4, dropout=0.5), torch.randn(len(UNEQUAL), 4)
    torch.nn.init.normal_(loss.refined_classifier.weight)
    assert loss(embeddings, UNEQUAL) != loss(embeddings, UNEQUAL)
    loss.eval()
    assert torch.equal(loss(embeddings, UNEQUAL), loss(embeddings, UNEQUAL))


def test_hist_does_not_drop_the_hardest_samples():
    loss = build_loss("hist", 2, 4, tau=1000.0, weight=0.0)
    with torch.no_grad():
        loss.means.copy_(torch.tensor([[1.0, 0, 0, 0], [-1.0, 0, 0, 0]]))
        loss.log_variances.zero_()
    value = loss(torch.tensor([[1.0, 0, 0, 0], [1.0, 0, 0, 0]]), torch.tensor([0, 1]))
    assert value.item() == pytest.approx(2000.0)  # half of 1000 * 4: the other sample has none


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("proxy_nca", {"scale": 0.0}),
        ("proxy_gml", {"ratio": 0.0}),
        ("proxy_gml", {"proxies_per_class": 0}),
        ("sgsl", {"label_smoothing": 1.0}),
        ("cbml", {"negative_width": 0.0}),
        ("hist", {"tau": -1.0}),
        ("intra_batch", {"heads": 3}),
        ("intra_batch", {"dropout": 1.0}),
        ("group_loss", {"temperature": 0.0}),
        ("group_loss", {"iterations": 51}),
    ],
)
def test_settings_out_of_range_are_refused_by_name(name, settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        build_loss(name, 5, 4, **settings)


@pytest.mark.parametrize("name", ["proxy_nca", "sgsl"])
def test_a_single_class_is_refused(name):
    with pytest.raises(ValueError, match=r"num_classes .*2, got 1"):
        build_loss(name, 1, 4)


@pytest.mark.parametrize("name", CASES)
def test_wrong_input_is_refused(name):
    loss = build_loss(name, 5, 4, **CASES[name].settings)
    with pytest.raises(ValueError, match=r"labels .*0 to 4"):
        loss(torch.randn(4, 4), torch.tensor([0, 0, 1, 5]))
    with pytest.raises(ValueError, match=r"3 dimensions|D = 4, got \[4, 3\]"):
        loss(torch.randn(4, 3), torch.tensor([0, 0, 1, 1]))
    with pytest.raises(ValueError, match=r"embeddings .*NaN .*1 of 4 rows"):
        loss(torch.tensor([[torch.nan] * 4] + [[1.0, 2, 3, 4]] * 3), torch.tensor([0, 0, 1, 1]))


def test_group_loss_refuses_a_batch_of_anchors_alone():
    loss, embeddings = build_loss("group_loss", 4, 6), torch.randn(8, 6)
    with pytest.raises(ValueError, match=r"anchors.* 2 samples"):
        loss(embeddings, torch.arange(4).repeat(2))
    assert loss(embeddings, torch.arange(2).repeat(4)) > 0
    assert card_of("group_loss").min_samples == 3
