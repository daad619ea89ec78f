"""The losses from pytorch-metric-learning (PML) where they do more than hand their settings on."""

import math
import subprocess
import sys
import warnings

import pytest
import torch
from support import references_pml as references

from softwarp.losses import LOSSES, build_loss
from softwarp.losses.from_pml import angles_of, lp_distance
from softwarp.losses.from_pml_pairs import draw_triplets
from softwarp.losses.from_pml_proxies import spread_of_centers
from softwarp.losses.from_pml_tuples import pair_rounds

LABELS = torch.arange(4).repeat(8)


def test_pml_is_imported_only_when_a_loss_is_made():
    code = "import sys, softwarp.losses; print('pytorch_metric_learning' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "False"


def close_points(spread=1e-4):
    torch.manual_seed(0)
    return torch.nn.functional.normalize(torch.randn(4, 6))[LABELS] + spread * torch.randn(32, 6)


def test_small_distances_keep_their_digits_beyond_25_rows():
    """Where PML's own distance, by matrix products, has none left."""
    from pytorch_metric_learning.losses import ContrastiveLoss

    points = close_points()
    expected = references.contrastive(points.double().numpy(), LABELS.numpy(), {}, neg_margin=1e-3)
    assert build_loss("contrastive", 4, 6, neg_margin=1e-3)(points, LABELS).item() == pytest.approx(
        expected, rel=1e-3
    )
    assert ContrastiveLoss(neg_margin=1e-3)(points, LABELS).item() != pytest.approx(expected, rel=1e-2)


def test_distances_are_pml_s_in_double_precision():
    from pytorch_metric_learning.distances import LpDistance

    points = close_points(0.3).double()
    for settings in ({}, {"power": 2}, {"normalize_embeddings": False}):
        torch.testing.assert_close(lp_distance(**settings)(points), LpDistance(**settings)(points))


@pytest.mark.parametrize("mining", ["semihard", "hard", "all"])
def test_triplets_are_mined_as_asked(mining):
    points = close_points(0.5).double()
    expected = references.triplet(points.numpy(), LABELS.numpy(), {}, mining=mining)
    value = build_loss("triplet", 4, 6, mining=mining)(points, LABELS)
    assert value.item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", ["triplet", "multi_similarity"])
def test_a_batch_with_nothing_to_mine_has_loss_zero_and_a_gradient(name):
    points = torch.eye(6)[LABELS].requires_grad_()
    value = build_loss(name, 4, 6)(points, LABELS)
    value.backward()
    assert value.item() == 0
    assert torch.equal(points.grad, torch.zeros_like(points))


def test_the_margin_loss_draws_negatives_from_torch_s_random_numbers():
    loss, points = build_loss("margin", 4, 6), close_points(0.5)
    torch.manual_seed(1)
    first, second = loss(points, LABELS).item(), loss(points, LABELS).item()
    torch.manual_seed(1)
    assert loss(points, LABELS).item() == first != second


def test_boundaries_of_the_margin_loss_are_learned_by_class():
    loss, points = build_loss("margin", 6, 6, sampling="all"), close_points(0.5)
    loss(points, LABELS).backward()
    assert (loss.boundaries.grad[:4] != 0).all()
    assert (loss.boundaries.grad[4:] == 0).all()
    assert torch.equal(loss.boundaries.detach(), torch.full((6,), 1.2))


def test_pairs_of_n_pair_are_one_a_class_and_round():
    labels = torch.tensor([2, 0, 2, 0, 2, 2, 0, 1, 1, 0, 2])
    rounds = [tuple(side.tolist() for side in pairs) for pairs in pair_rounds(labels)]
    assert rounds == [([1, 7, 0], [3, 8, 2]), ([6, 4], [9, 5])]  # the fifth of class 2 is left out


def test_two_samples_a_class_are_the_paper_s_n_pair():
    """One round: cross entropy over the products of anchors and positives."""
    torch.manual_seed(0)
    anchors, positives = torch.randn(5, 6), torch.randn(5, 6)
    expected = torch.nn.functional.cross_entropy(anchors @ positives.T, torch.arange(5))
    loss = build_loss("n_pair", 5, 6, norm_penalty=0.0)
    torch.testing.assert_close(loss(torch.cat([anchors, positives]), torch.arange(5).repeat(2)), expected)


def test_arcface_has_a_gradient_on_its_proxy_and_opposite():
    """The derivative of arccos at 1 and -1 is infinite."""
    loss = build_loss("arcface", 3, 4, scale=1.0)
    loss.proxies.data = torch.eye(3, 4)
    for sign in (1, -1):
        points = (sign * torch.eye(3, 4)).requires_grad_()
        loss(points, torch.arange(3)).backward()
        assert torch.isfinite(points.grad).all()
        assert (points.grad != 0).any()


def test_angles_are_those_of_arccos():
    cosines = torch.linspace(-1, 1, 101, dtype=torch.float64)
    torch.testing.assert_close(angles_of(cosines), torch.acos(cosines))


def test_arcface_takes_radians():
    from pytorch_metric_learning.losses import ArcFaceLoss

    ours, theirs = build_loss("arcface", 4, 6, margin=0.3), ArcFaceLoss(4, 6, margin=math.degrees(0.3))
    theirs.W.data = ours.proxies.data.T
    points = close_points(0.5)
    torch.testing.assert_close(ours(points, LABELS), theirs(points, LABELS))


def test_arcface_beyond_its_last_angle_is_the_official_code_s():
    loss, labels = build_loss("arcface", 2, 2, scale=4.0).double(), torch.tensor([0, 1])
    points = -loss.proxies.detach() + 0.01
    expected = references.arcface(
        points.numpy(), labels.numpy(), {"proxies": loss.proxies.detach().numpy()}, scale=4.0
    )
    assert loss(points, labels).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", ["large_margin_softmax", "sphereface"])
def test_without_its_plain_part_a_multiplied_angle_is_pml_s(name):
    from pytorch_metric_learning import losses

    pml_class = {"large_margin_softmax": losses.LargeMarginSoftmaxLoss, "sphereface": losses.SphereFaceLoss}
    ours = build_loss(name, 4, 6, first_plain=0.0, last_plain=0.0)
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # SciPy's of tensors
        theirs = pml_class[name](4, 6)
    theirs.W.data = ours.proxies.data.T
    points = close_points(0.5)
    torch.testing.assert_close(ours(points, LABELS), theirs(points, LABELS))


@pytest.mark.parametrize("name", ["large_margin_softmax", "sphereface"])
def test_the_plain_part_fades_with_the_steps_of_training(name):
    loss, points = build_loss(name, 4, 6).double(), close_points(0.5).double()
    state = {"proxies": loss.proxies.detach().numpy(), "steps": 0}
    reference = getattr(references, name)
    for step in (0, 1, 2):
        expected = reference(points.numpy(), LABELS.numpy(), state | {"steps": step})
        assert loss.eval()(points, LABELS).item() == pytest.approx(expected, rel=1e-9)  # which counts no step
        assert loss.train()(points, LABELS).item() == pytest.approx(expected, rel=1e-9)
    loss.load_state_dict(loss.state_dict() | {"steps": torch.tensor(10**6)})
    expected = reference(points.numpy(), LABELS.numpy(), state | {"steps": 10**6})
    assert loss(points, LABELS).item() == pytest.approx(expected, rel=1e-9)
    assert expected == reference(points.numpy(), LABELS.numpy(), state, first_plain=5.0, plain_decay=0.0)


def test_the_spread_of_centers_is_pml_s():
    from pytorch_metric_learning.regularizers import SparseCentersRegularizer

    torch.manual_seed(0)
    centers = torch.randn(4, 3, 6, dtype=torch.float64)
    theirs = SparseCentersRegularizer(4, 3)(centers.flatten(0, 1))
    torch.testing.assert_close(spread_of_centers(centers), theirs)
    assert spread_of_centers(centers[:, :1]) == 0


@pytest.mark.parametrize("name", ["proxy_anchor", "cosface", "soft_triple", "margin"])
def test_parameters_in_half_precision_stay_so_and_are_not_replaced(name):
    """PML casts its parameters in place to the type of the embeddings."""
    loss, points = build_loss(name, 4, 6).bfloat16(), close_points(0.5)
    (parameter,) = loss.parameters()
    place, before = parameter.data_ptr(), parameter.detach().clone()
    value = loss(points, LABELS)
    value.backward()
    assert value.dtype == torch.float32
    assert parameter.dtype == parameter.grad.dtype == torch.bfloat16
    assert parameter.data_ptr() == place
    assert torch.equal(parameter, before)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("contrastive", {"pos_margin": -1.0}, "pos_margin .*-1"),
        ("contrastive", {"neg_margin": 0.0}, "neg_margin .*0"),
        ("triplet", {"margin": math.nan}, "margin .*nan"),
        ("triplet", {"mining": "semi"}, "mining .*semihard, hard, all.*'semi'"),
        ("n_pair", {"norm_penalty": -0.1}, "norm_penalty .*-0.1"),
        ("lifted_structure", {"margin": -1.0}, "margin .*-1"),
        ("margin", {"beta": 0.0}, "beta .*0"),
        ("margin", {"sampling": "some"}, "sampling .*distance, all"),
        ("multi_similarity", {"alpha": 0.0}, "alpha .*0"),
        ("circle", {"gamma": math.inf}, "gamma .*inf"),
        ("fast_ap", {"num_bins": 2.5}, "num_bins .*2.5"),
        ("supcon", {"temperature": 0.0}, "temperature .*0"),
        ("proxy_anchor", {"alpha": -1.0}, "alpha .*-1"),
        ("soft_triple", {"centers_per_class": 0}, "centers_per_class .*1, got 0"),
        ("normalized_softmax", {"temperature": -1.0}, "temperature .*-1"),
        ("large_margin_softmax", {"margin": 0.5}, "margin .*0.5"),
        ("sphereface", {"margin": 0}, "margin .*1, got 0"),
        ("cosface", {"scale": 0.0}, "scale .*0"),
        ("arcface", {"margin": 28.6}, "margin .*radians.*28.6"),
    ],
)
def test_a_wrong_setting_is_named(name, settings, message):
    with pytest.raises(ValueError, match=message):
        build_loss(name, 4, 6, **settings)


@pytest.mark.parametrize("name", [name for name in LOSSES if "from_pml" in LOSSES[name].__module__])
def test_numbers_of_classes_and_dimensions_are_checked(name):
    for sizes in ((0, 6), (4, 0)):
        with pytest.raises(ValueError, match=r"(num_classes|embedding_size) .*got 0"):
            build_loss(name, *sizes)


def test_a_batch_that_cannot_serve_is_refused_with_the_cure():
    with pytest.raises(ValueError, match=r"Triplet .*2 classes .*2 samples"):
        build_loss("triplet", 4, 6)(torch.randn(4, 6), torch.arange(4))


def test_one_row_that_is_not_a_number_is_named_also_by_a_miner():
    points = close_points(0.5)
    points[3] = math.nan
    for name in ("triplet", "margin", "multi_similarity", "cosface"):
        with pytest.raises(ValueError, match=r"embeddings .*NaN .*1 of 32 rows \(3\)"):
            build_loss(name, 4, 6)(points, LABELS)


def test_a_close_pair_of_classes_leaves_the_other_anchors_their_negatives():
    """In 512 dimensions PML's miner takes one maximum over the batch, below which the others vanish."""
    from pytorch_metric_learning.miners import DistanceWeightedMiner

    torch.manual_seed(0)
    points, labels = torch.randn(64, 512), torch.arange(16).repeat(4)
    points[1] = points[0] + 0.1 * torch.randn(512)
    anchors, positives, negatives = draw_triplets(points, labels)
    assert anchors.bincount().tolist() == [3] * 64  # each with its three positives
    assert torch.equal(labels[anchors], labels[positives])
    assert (anchors != positives).all()
    assert (labels[anchors] != labels[negatives]).all()
    assert len(DistanceWeightedMiner()(points, labels)[0].unique()) < 16


def test_negatives_are_drawn_evenly_over_distances():
    """On a circle all distances d < 1.4 have the density 1 / sqrt(1 - d^2 / 4)."""
    angles = torch.tensor([0.0, 0.001, 0.6, 0.9, 1.3, 3.0])
    points = torch.stack([angles.cos(), angles.sin()], dim=1)
    labels = torch.tensor([0, 0, 1, 2, 3, 4])
    torch.manual_seed(0)
    drawn = torch.cat([draw_triplets(points, labels)[2] for _ in range(2000)])
    distances = (2 * (angles / 2).sin()).clamp_min(0.5)
    chances = (1 - distances**2 / 4).sqrt() * torch.tensor([0, 0, 1, 1, 1, 0])  # the last is too far
    shares = drawn.bincount(minlength=6) / len(drawn)
    torch.testing.assert_close(shares, chances / chances.sum(), atol=0.03, rtol=0)


def test_an_anchor_whose_negatives_are_all_far_draws_from_all_of_them():
    points, labels = torch.eye(4)[[0, 0, 1, 2]], torch.tensor([0, 0, 1, 2])
    torch.manual_seed(0)
    drawn = torch.cat([draw_triplets(points, labels)[2] for _ in range(50)])
    assert set(drawn.tolist()) == {2, 3}
