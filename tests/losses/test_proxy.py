"""The proxy and classifier losses against their loops, on degenerate batches, and through a state dict."""

import math

import numpy as np
import pytest
import torch
from support.cases_proxy import CASES
from support.loss_cases import arrays_of

from softwarp.losses import (
    HierarchicalProxiesLoss,
    build_loss,
    center_contrastive_loss,
    cross_entropy_loss,
    magface_loss,
    power_loss,
    scaled_loss,
    softmax_loss,
)
from softwarp.losses.hierarchical_proxies import cluster_means, cluster_proxies

CLASSES, SIZE = 5, 4
EXTRA = {  # settings besides those of CASES
    "power": [{"exponent": 2.0}, {"exponent": 0.5, "scale": 2.0}],
    "scaled": [{"factor": 0.5}, {"factor": 2.0, "scale": 3.0}],
    "magface": [{}, {"regularizer": 0.0, "lower_margin": 0.0, "upper_margin": 0.0}],
    "l2_softmax": [{"alpha": 4.0}],
    "cross_entropy": [
        {"dropout": 0.0, "proxy_init": "normal", "label_smoothing": 0.0},
        {"dropout": 0.0, "proxy_init": "normal", "feature_norm": True},
    ],
    "center_contrastive": [{}, {"margin": 0.3, "weight": 0.0}],
    "hierarchical_proxies": [{}, {"loss": "euclidean_softmax", "scale": 2.0, "coarse_classes": 3}],
}
TRIALS = [
    pytest.param(name, settings, id=f"{name}-{number}")
    for name, case in CASES.items()
    for number, settings in enumerate([dict(case.settings), *EXTRA[name]])
]


def make(name, settings, seed=0, classes=CLASSES):
    torch.manual_seed(seed)
    return build_loss(name, classes, SIZE, **settings).double()


def batch(seed=0, size=9):
    generator = torch.Generator().manual_seed(seed)
    embeddings = 2 * torch.randn(size, SIZE, dtype=torch.float64, generator=generator)
    return embeddings.requires_grad_(), torch.randint(CLASSES, (size,), generator=generator)


def all_finite(loss, embeddings, labels):
    """Whether value and every gradient are finite."""
    value = loss(embeddings, labels)
    value.backward()
    gradients = [embeddings.grad, *(parameter.grad for parameter in loss.parameters())]
    return all(torch.isfinite(tensor).all() for tensor in (value, *gradients))


@pytest.mark.parametrize(("name", "settings"), TRIALS)
@pytest.mark.parametrize("seed", range(3))
def test_value_equals_the_loop(name, settings, seed):
    loss = make(name, settings, seed)
    embeddings, labels = batch(seed)
    with torch.no_grad():
        for parameter in loss.parameters():  # a bias of zero would hide mistakes
            parameter += 0.3 * torch.randn_like(parameter)
    points = embeddings.detach().numpy()
    expected = CASES[name].reference(points, labels.numpy(), arrays_of(loss), **settings)
    np.testing.assert_allclose(loss(embeddings, labels).item(), expected, rtol=1e-9)


@pytest.mark.parametrize(("name", "settings"), TRIALS)
def test_gradient_is_that_of_the_value(name, settings):
    loss = make(name, settings)
    embeddings, labels = batch()
    parameters = dict(loss.named_parameters())

    def value(embeddings, *tensors):
        given = dict(zip(parameters, tensors, strict=True))
        return torch.func.functional_call(loss, given, (embeddings, labels))

    assert torch.autograd.gradcheck(value, (embeddings, *parameters.values()))


@pytest.mark.parametrize(("name", "settings"), TRIALS)
def test_degenerate_batches_are_finite(name, settings):
    embeddings, labels = batch(size=6)
    points = embeddings.detach()
    loss = make(name, settings)
    held = next(loss.parameters()).detach()
    batches = {
        "one class": (points, torch.zeros(6, dtype=torch.long)),
        "duplicates": (points[:1].repeat(6, 1), labels),
        "on proxies": (held.clone(), torch.arange(CLASSES)),
        "opposite proxies": (-held, torch.arange(CLASSES)),
        "zeros": (torch.zeros(6, SIZE, dtype=torch.float64), labels),
        "far": (1e4 * points, labels),
    }
    for what, (these, those) in batches.items():
        assert all_finite(make(name, settings), these.clone().requires_grad_(), those), what
        assert all_finite(make(name, settings).float(), these.float().requires_grad_(), those), what


@pytest.mark.parametrize(("name", "settings"), TRIALS)
def test_one_sample_and_one_known_class(name, settings):
    embeddings, labels = batch(size=1)
    if settings.get("feature_norm"):
        with pytest.raises(ValueError, match="2 embeddings"):
            make(name, settings)(embeddings, labels)
        return
    assert all_finite(make(name, settings), embeddings, labels)
    alone = {**settings, "coarse_classes": 1} if name == "hierarchical_proxies" else settings
    assert all_finite(make(name, alone, classes=1), batch(size=1)[0], torch.tensor([0]))


@pytest.mark.parametrize(("name", "settings"), TRIALS)
def test_cosines_of_exactly_one_are_finite(name, settings):
    loss = make(name, settings)
    with torch.no_grad():
        next(loss.parameters()).copy_(torch.cat([torch.eye(SIZE), -torch.eye(SIZE)[:1]]))
    embeddings = 2 * torch.eye(SIZE, dtype=torch.float64)[[0, 0, 1]]
    assert all_finite(loss, embeddings.requires_grad_(), torch.tensor([0, 4, 1]))


def test_a_single_class_costs_nothing():
    embeddings, labels = torch.randn(3, SIZE), torch.zeros(3, dtype=torch.long)
    for name, settings in (("cross_entropy", {"dropout": 0.0}), ("l2_softmax", {}), ("power", {})):
        assert build_loss(name, 1, SIZE, **settings)(embeddings, labels) == 0


@pytest.mark.parametrize(("name", "settings"), TRIALS)
def test_state_dict_round_trip(name, settings):
    first, second = make(name, settings, seed=0), make(name, settings, seed=1)
    embeddings, labels = batch()
    assert first(embeddings, labels) != second(embeddings, labels)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(embeddings, labels), second(embeddings, labels))


@pytest.mark.parametrize(("name", "settings"), TRIALS)
def test_autocast_changes_nothing(name, settings):
    loss = make(name, settings).float()
    embeddings, labels = batch()
    plain = loss(embeddings.float(), labels)
    with torch.autocast("cpu", torch.bfloat16):
        cast = loss(embeddings.float(), labels)
    assert cast.dtype == torch.float32
    torch.testing.assert_close(cast, plain)


@pytest.mark.parametrize("name", CASES)
def test_refuses_bad_batches(name):
    loss = build_loss(name, CLASSES, SIZE)
    labels = torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"got \[2, 3\]"):
        loss(torch.randn(2, 3), labels)
    with pytest.raises(ValueError, match=r"labels .*0 to 4"):
        loss(torch.randn(2, SIZE), labels + CLASSES)
    with pytest.raises(ValueError, match=r"embeddings .*NaN"):
        loss(torch.full((2, SIZE), math.nan), labels)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("power", {"exponent": 0.0}, "exponent .*0"),
        ("scaled", {"factor": -1.0}, "factor .*-1"),
        ("scaled", {"scale": math.inf}, "scale .*inf"),
        ("magface", {"lower_norm": 0.0}, "lower_norm .*0"),
        ("magface", {"upper_norm": 5.0}, "lower_norm < upper_norm"),
        ("magface", {"lower_margin": 0.9}, "lower_margin <= upper_margin"),
        ("l2_softmax", {"alpha": 0.0}, "alpha .*0"),
        ("cross_entropy", {"dropout": 1.0}, "dropout .*1.0"),
        ("cross_entropy", {"label_smoothing": -0.1}, "label_smoothing .*-0.1"),
        ("center_contrastive", {"margin": -0.1}, "margin .*-0.1"),
        ("hierarchical_proxies", {"coarse_classes": 6}, "coarse_classes .*5.*6"),
        ("hierarchical_proxies", {"coarse_classes": 1.5}, "coarse_classes .*1.5"),
        ("hierarchical_proxies", {"refresh": 0}, "refresh .*0"),
        ("hierarchical_proxies", {"weight": 0.0}, "weight .*0"),
        ("hierarchical_proxies", {"loss": "l2_softmax"}, "l2_softmax .*hierarchical"),
        ("hierarchical_proxies", {"loss": "hierarchical_proxies"}, "hierarchical_proxies .*hierarchical"),
    ],
)
def test_refuses_bad_settings(name, settings, message):
    with pytest.raises(ValueError, match=message):
        build_loss(name, CLASSES, SIZE, **settings)


def test_family_holds_the_euclidean_softmax():
    embeddings, labels = batch()
    proxies = make("power", {}).proxies
    plain = softmax_loss(embeddings, proxies, labels)
    torch.testing.assert_close(power_loss(embeddings, proxies, labels, exponent=1.0), plain)
    torch.testing.assert_close(scaled_loss(embeddings, proxies, labels, factor=1.0), plain)


def test_magface_rewards_length_within_its_bounds_only():
    proxies, labels = torch.eye(2), torch.tensor([0, 0, 0])
    embeddings = torch.tensor([[5.0, 5.0], [30.0, 30.0], [90.0, 90.0]], requires_grad=True)
    magface_loss(embeddings, proxies, labels, scale=1.0).sum().backward()
    radial = (embeddings.grad * embeddings.detach()).sum(dim=1)
    assert radial[0].abs() < 1e-6  # shorter than 10
    assert radial[1] < 0  # longer is better
    assert radial[2].abs() < 1e-5  # longer than 110


def test_cross_entropy_is_torch_without_smoothing_and_least_at_the_target():
    embeddings, labels = batch()
    weight, bias = make("cross_entropy", {"proxy_init": "normal"}).weight, torch.randn(CLASSES)
    ours = cross_entropy_loss(embeddings, weight, bias, labels, label_smoothing=0.0)
    logits = embeddings @ weight.T + bias
    torch.testing.assert_close(ours, torch.nn.functional.cross_entropy(logits, labels, reduction="none"))
    wanted = torch.full((1, 3), 0.05).scatter(1, torch.tensor([[0]]), 0.9)
    least = cross_entropy_loss(wanted.log(), torch.eye(3), torch.zeros(3), torch.tensor([0]))
    torch.testing.assert_close(least, torch.zeros(1), atol=1e-6, rtol=0)


def test_cross_entropy_drops_features_in_training_only():
    loss = build_loss("cross_entropy", CLASSES, SIZE, proxy_init="normal")
    embeddings, labels = batch()
    assert loss(embeddings, labels) != loss(embeddings, labels)
    loss.eval()
    assert loss(embeddings, labels) == loss(embeddings, labels)


def test_center_contrastive_pull_grows_with_weight():
    embeddings, labels = batch()
    proxies = make("center_contrastive", {}).proxies
    without, with_pull = (
        center_contrastive_loss(embeddings, proxies, labels, weight=weight) for weight in (0.0, 2.0)
    )
    own = torch.nn.functional.normalize(proxies)[labels]
    pull = (torch.nn.functional.normalize(embeddings) - own).square().sum(dim=1)
    torch.testing.assert_close(with_pull - without, 2 * pull)


def two_groups():
    """Six proxies around (9, 0), six around (0, 9)."""
    torch.manual_seed(0)
    centres = torch.tensor([[9.0, 0.0], [0.0, 9.0]]).repeat_interleave(6, dim=0)
    return centres + 0.1 * torch.randn(12, 2)


def test_clusters_are_the_groups_and_the_same_for_the_same_seed():
    proxies = two_groups()
    found = cluster_proxies(proxies, 2)
    assert len(found[:6].unique()) == len(found[6:].unique()) == 1
    assert found[0] != found[6]
    noise = torch.randn(200, 8)
    assert torch.equal(cluster_proxies(noise, 14), cluster_proxies(noise, 14))
    means = cluster_means(proxies, found)
    torch.testing.assert_close(means[found[0]], proxies[:6].mean(dim=0))


def test_equal_proxies_leave_no_empty_cluster():
    found = cluster_proxies(torch.ones(8, 3), 4)
    assert found.bincount().min() > 0
    loss = HierarchicalProxiesLoss(8, 3, loss="euclidean_softmax", coarse_classes=4, proxy_init="zeros")
    assert torch.isfinite(loss(torch.randn(4, 3), torch.arange(4)))


@pytest.mark.parametrize("name", ["warped_softmax", "power", "magface", "center_contrastive"])
def test_wrapper_takes_the_distance_and_proxies_of_what_it_wraps(name):
    loss = HierarchicalProxiesLoss(CLASSES, SIZE, loss=name)
    assert loss.distance == build_loss(name, CLASSES, SIZE).distance
    assert loss.proxies is loss.fine.proxies
    embeddings, labels = batch()
    assert all_finite(loss, embeddings.detach().float().requires_grad_(), labels)


def test_wrapper_refreshes_in_training_every_so_many_passes():
    loss = HierarchicalProxiesLoss(12, 2, loss="euclidean_softmax", coarse_classes=2, refresh=3)
    old = loss.assignment.clone()
    with torch.no_grad():
        loss.proxies.copy_(two_groups())
    new = cluster_proxies(loss.proxies, 2)
    assert not torch.equal(old, new)
    embeddings, labels = torch.randn(4, 2), torch.arange(4)
    loss.eval()
    for _ in range(5):
        loss(embeddings, labels)
    loss.train()
    for _ in range(3):
        loss(embeddings, labels)
        assert torch.equal(loss.assignment, old)
    loss(embeddings, labels)
    assert torch.equal(loss.assignment, new)


def test_wrapper_resumes_with_its_clusters_and_count():
    settings = {"loss": "euclidean_softmax", "coarse_classes": 2, "refresh": 3}
    loss = HierarchicalProxiesLoss(12, 2, **settings)
    embeddings, labels = torch.randn(4, 2), torch.arange(4)
    for _ in range(2):
        loss(embeddings, labels)
    with torch.no_grad():
        loss.proxies.copy_(two_groups())
    copy = HierarchicalProxiesLoss(12, 2, **settings)
    copy.load_state_dict(loss.state_dict())
    assert torch.equal(copy.assignment, loss.assignment)
    for _ in range(3):
        assert torch.equal(copy(embeddings, labels), loss(embeddings, labels))
    assert torch.equal(copy.assignment, cluster_proxies(two_groups(), 2))


def test_coarse_gradient_reaches_every_proxy_of_a_cluster():
    loss = HierarchicalProxiesLoss(12, 2, loss="scaled", coarse_classes=2)
    with torch.no_grad():
        loss.proxies.copy_(two_groups())
    loss.assignment = cluster_proxies(loss.proxies, 2)
    gradients = []
    for weight in (0.0, 1.0):
        loss.weight = weight
        (gradient,) = torch.autograd.grad(loss(torch.tensor([[5.0, 4.0]]), torch.tensor([0])), loss.proxies)
        gradients.append(gradient)
    share = gradients[1] - gradients[0]
    torch.testing.assert_close(share[:6], share[:1].expand(6, 2))
    assert share[0].abs().sum() > 0


@pytest.mark.parametrize("name", ["proxy_anchor", "arcface", "sphereface", "normalized_softmax"])
def test_wrapper_around_losses_that_know_their_number_of_classes(name):
    torch.manual_seed(0)
    embeddings, labels = torch.randn(8, 4), torch.arange(8) % 5
    loss = build_loss("hierarchical_proxies", 5, 4, loss=name, coarse_classes=2, weight=0.5)
    value = loss(embeddings, labels)
    fine, coarse = build_loss(name, 5, 4), build_loss(name, 2, 4)
    fine.proxies.data = loss.proxies.data
    coarse.proxies.data = cluster_means(loss._points(), loss.assignment).detach()
    if name == "sphereface":
        assert loss.fine.steps == 1  # a pass is one step, counted before the coarse value is made
        coarse.steps += 1
    expected = fine(embeddings, labels) + 0.5 * coarse(embeddings, loss.assignment[labels])
    torch.testing.assert_close(value, expected)
    assert loss.fine.training
