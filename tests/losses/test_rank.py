"""The losses over ranked lists: their values, blocks, gradients by definition, and batches that are odd."""

import itertools

import numpy as np
import pytest
import torch
from support import references_rank
from support.cases_rank import CASES
from support.loss_cases import derivative
from support.references_surrogates import blackbox_ap

from softwarp.losses import (
    LOSSES,
    blackbox_ap_loss,
    build_loss,
    calibration_loss,
    contextual_loss,
    osap_loss,
    ranking,
    recall_at_k_loss,
    smooth_ap_loss,
    softbin_ap_loss,
    sup_ap_loss,
)
from softwarp.losses.ranking import positive_columns
from softwarp.losses.recall_at_k import similarity_mixup

UNEQUAL = torch.tensor([4, 0, 1, 1, 0, 2, 0, 3, 3, 0, 1])  # 2 and 4 are alone
EQUAL = torch.tensor([2, 0, 1, 1, 0, 2, 0, 3, 3, 2, 1, 3])
BLOCKED = [
    smooth_ap_loss,
    sup_ap_loss,
    calibration_loss,
    softbin_ap_loss,
    recall_at_k_loss,
    osap_loss,
]


def batch(labels, size=4, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(len(labels), size, generator=generator, dtype=dtype), labels


def gradient(function, embeddings, labels, **settings):
    embeddings = embeddings.clone().requires_grad_()
    value = function(embeddings, labels, **settings).mean()
    value.backward()
    return value.detach(), embeddings.grad


def test_every_ranking_loss_has_a_case():
    ranking = {name for name, loss in LOSSES.items() if getattr(loss.card, "kind", "") == "ranking"}
    assert len(CASES) == 8
    assert ranking == {*CASES, "fast_ap"}  # which comes from pytorch-metric-learning


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("labels", [UNEQUAL, EQUAL], ids=["unequal", "equal"])
@pytest.mark.parametrize("default", [True, False], ids=["default", "case"])
def test_value_equals_the_loop(name, labels, default):
    settings = {} if default else CASES[name].settings
    loss = build_loss(name, 5, 4, **settings)
    for seed in range(3):
        embeddings, _ = batch(labels, seed=seed)
        expected = CASES[name].reference(embeddings.numpy(), labels.numpy(), {}, **settings)
        assert loss(embeddings, labels).item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.surrogate is None])
def test_gradient_is_the_values(name):
    loss = build_loss(name, 5, 4, **CASES[name].settings)
    embeddings, labels = batch(UNEQUAL)
    assert torch.autograd.gradcheck(lambda e: loss(e, labels), (embeddings.requires_grad_(),))


@pytest.mark.parametrize("function", BLOCKED)
@pytest.mark.parametrize("block_elements", [1, 150])
def test_blocks_change_neither_value_nor_gradient(function, block_elements, monkeypatch):
    embeddings, labels = batch(UNEQUAL)
    whole = gradient(function, embeddings, labels)
    monkeypatch.setattr(ranking, "BLOCK_ELEMENTS", block_elements)
    blocked = gradient(function, embeddings, labels)
    assert whole[1].abs().max() > 0
    torch.testing.assert_close(blocked, whole, rtol=1e-10, atol=1e-12)


def test_blocks_compute_their_gradient_in_full_precision_under_autocast(monkeypatch):
    embeddings, labels = batch(UNEQUAL, dtype=torch.float32)
    expected = gradient(smooth_ap_loss, embeddings, labels)
    monkeypatch.setattr(ranking, "BLOCK_ELEMENTS", 1)
    with torch.autocast("cpu", torch.bfloat16):
        blocked = gradient(smooth_ap_loss, embeddings, labels)
    torch.testing.assert_close(blocked, expected)


def test_blocks_keep_no_comparisons_for_the_gradient(monkeypatch):
    embeddings, labels = batch(torch.arange(30).repeat(2), dtype=torch.float32)
    largest = []
    monkeypatch.setattr(ranking, "BLOCK_ELEMENTS", 60 * 2 * 5)

    def pack(tensor):
        largest.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        smooth_ap_loss(embeddings.requires_grad_(), labels)
    assert 0 < max(largest) <= 60 * 4


def test_positive_columns_are_the_others_of_the_class():
    for with_query in (True, False):
        columns, real = positive_columns(UNEQUAL, with_query=with_query)
        assert columns.shape == (len(UNEQUAL), 4 if with_query else 3)
        for i, (row, mask) in enumerate(zip(columns, real, strict=True)):
            expected = [j for j in range(len(UNEQUAL)) if UNEQUAL[j] == UNEQUAL[i] and (with_query or j != i)]
            assert sorted(row[mask].tolist()) == expected


@pytest.mark.parametrize("name", CASES)
def test_order_and_names_of_classes_do_not_matter(name):
    loss = build_loss(name, 5, 4)
    embeddings, labels = batch(UNEQUAL)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    value, slopes = gradient(loss, embeddings, labels)
    renamed = torch.tensor([3, 0, 4, 1, 2])[labels]
    shuffled, shuffled_slopes = gradient(loss, embeddings[order], renamed[order])
    torch.testing.assert_close(shuffled, value)
    torch.testing.assert_close(shuffled_slopes, slopes[order])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", ["duplicates", "origin", "opposite"])
def test_degenerate_embeddings_give_finite_gradients(name, kind):
    embeddings = {
        "duplicates": torch.ones(11, 4),
        "origin": torch.zeros(11, 4),
        "opposite": torch.where(UNEQUAL[:, None] > 0, 1.0, -1.0).expand(11, 4),
    }[kind]
    value, slopes = gradient(build_loss(name, 5, 4), embeddings, UNEQUAL)
    assert value.isfinite()
    assert slopes.isfinite().all()


@pytest.mark.parametrize("name", CASES)
def test_padding_of_the_last_class_stays_out(name):
    # Its padding meets the query itself, before which nothing comes: no rank may be 0 / 0.
    labels = torch.tensor([0, 0, 0, 0, 1, 1])
    embeddings = torch.tensor([[-1.0, 0.0]] * 4 + [[1.0, 0.2], [1.0, -0.2]])
    value, slopes = gradient(build_loss(name, 2, 2), embeddings, labels)
    expected = CASES[name].reference(embeddings.double().numpy(), labels.numpy(), {})
    assert value.item() == pytest.approx(expected, abs=1e-5)
    assert slopes.isfinite().all()


@pytest.mark.parametrize("name", CASES)
def test_half_precision_and_autocast_equal_the_value_of_their_input(name):
    embeddings, labels = batch(UNEQUAL, dtype=torch.bfloat16)
    loss = build_loss(name, 5, 4)
    expected = loss(embeddings.float(), labels)
    assert loss(embeddings, labels).dtype == torch.float32
    torch.testing.assert_close(loss(embeddings, labels), expected)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(loss(embeddings.float(), labels), expected)
        torch.testing.assert_close(gradient(loss, embeddings.float(), labels)[0], expected)


@pytest.mark.parametrize("name", CASES)
def test_a_batch_that_cannot_be_ranked_is_refused(name):
    loss = build_loss(name, 5, 4)
    with pytest.raises(ValueError, match=r"2 classes .*2 samples.*4 classes with 1"):
        loss(torch.randn(4, 4), torch.arange(4))
    with pytest.raises(ValueError, match=r"2 classes .*got 1 classes"):
        loss(torch.randn(4, 4), torch.zeros(4, dtype=torch.long))
    with pytest.raises(ValueError, match=r"labels .*0 to 4"):
        loss(torch.randn(4, 4), torch.tensor([0, 0, 5, 5]))
    with pytest.raises(ValueError, match="embedding_size"):
        loss(torch.randn(4, 3), torch.tensor([0, 0, 1, 1]))
    broken = torch.randn(4, 4)
    broken[2, 1] = float("nan")
    with pytest.raises(ValueError, match=r"embeddings .*NaN .*1 of 4 rows \(2\)"):
        loss(broken, torch.tensor([0, 0, 1, 1]))


@pytest.mark.parametrize("function", [smooth_ap_loss, sup_ap_loss, recall_at_k_loss, blackbox_ap_loss])
def test_the_functions_refuse_a_batch_without_positives(function):
    with pytest.raises(ValueError, match=r"no sample .*batches\.samples"):
        function(torch.randn(3, 2), torch.arange(3))


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("smooth_ap", {"temperature": 0.0}, "temperature .*0"),
        ("roadmap", {"knee": -1.0}, "knee .*-1"),
        ("softbin_ap", {"bins": 1}, "bins .*2, got 1"),
        ("blackbox_ap", {"interpolation": 0.0}, "interpolation .*0"),
        ("blackbox_recall", {"weighting": "square"}, "weighting .*log, loglog.*square"),
        ("recall_at_k", {"cutoffs": [0]}, r"cutoffs .*\[0\]"),
        ("contextual", {"neighbours": 1}, "neighbours .*2, got 1"),
        ("osap", {"scale": -1.0}, "scale .*-1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(name, settings, message):
    with pytest.raises(ValueError, match=message):
        build_loss(name, 5, 4, **settings)
    with pytest.raises(ValueError, match=r"num_classes .*1, got 0"):
        build_loss(name, 0, 4)


@pytest.mark.parametrize("name", CASES)
def test_a_perfect_ranking_is_better_than_a_random_one(name):
    loss = build_loss(name, 4, 8)
    labels = torch.arange(4).repeat_interleave(4)
    perfect = torch.eye(8)[labels] + 0.01 * batch(labels, 8, dtype=torch.float32)[0]
    assert loss(perfect, labels) < loss(batch(labels, 8, dtype=torch.float32)[0], labels) - 0.1


@pytest.mark.parametrize("name", ["smooth_ap", "roadmap", "recall_at_k", "blackbox_ap", "contextual", "osap"])
def test_descent_raises_the_true_average_precision(name):
    embeddings, labels = batch(EQUAL, 6, dtype=torch.float64)
    embeddings.requires_grad_()
    loss = build_loss(name, 5, 6)
    before = references_rank.blackbox_ap(embeddings.detach().numpy(), labels.numpy(), margin=0.0)
    optimizer = torch.optim.Adam([embeddings], lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        loss(embeddings, labels).backward()
        optimizer.step()
    after = references_rank.blackbox_ap(embeddings.detach().numpy(), labels.numpy(), margin=0.0)
    assert after < 0.5 * before


def test_sup_ap_is_never_below_the_true_average_precision():
    for seed in range(5):
        embeddings, labels = batch(UNEQUAL, seed=seed)
        s = references_rank.similarities(embeddings.numpy())
        for index, q in enumerate(references_rank.queries(labels.numpy())):
            own = references_rank.positives_of(q, labels.numpy(), with_query=True)
            precision = np.mean([sum(s[q, j] >= s[q, i] for j in own) / sum(s[q] >= s[q, i]) for i in own])
            assert sup_ap_loss(embeddings, labels)[index] >= 1 - precision - 1e-12


@pytest.mark.parametrize("interpolation", [0.5, 4.0, 40.0])
def test_blackbox_gradient_is_its_definition(interpolation):
    embeddings, labels = batch(UNEQUAL)
    settings = {"interpolation": interpolation, "margin": 0.1}
    expected, points = np.zeros_like(embeddings), embeddings.numpy()
    for index in np.ndindex(*embeddings.shape):
        direction = np.zeros_like(points)
        direction[index] = 1.0
        expected[index] = derivative(
            lambda moved: blackbox_ap(moved, labels.numpy(), {}, points, {}, **settings), points, direction
        )
    assert np.abs(expected).max() > 1e-3
    slopes = gradient(blackbox_ap_loss, embeddings, labels, **settings)[1]
    np.testing.assert_allclose(slopes, expected, atol=1e-8)


def test_simix_appends_each_pair_of_a_class_once():
    items, labels = batch(UNEQUAL)
    torch.manual_seed(3)
    mixed, mixed_labels = similarity_mixup(items, labels)
    assert len(mixed) == len(mixed_labels) == 11 + 6 + 3 + 1
    assert mixed_labels[11:].bincount().tolist() == [6, 3, 0, 1]
    torch.testing.assert_close(mixed[:11], items)
    pairs = [(i, j) for i, j in itertools.combinations(range(11), 2) if labels[i] == labels[j]]
    for (i, j), item in zip(pairs, mixed[11:], strict=True):
        # On the segment between both.
        direct = (items[i] - items[j]).norm()
        torch.testing.assert_close((items[i] - item).norm() + (item - items[j]).norm(), direct)


def test_simix_equals_the_loop_and_follows_the_seed():
    embeddings, labels = batch(UNEQUAL)
    loss = build_loss("recall_at_k", 5, 4, mix=True, rank_temperature=0.1)
    torch.manual_seed(5)
    shares = torch.rand(10, 1, dtype=torch.float64).flatten().numpy()
    expected = references_rank.recall_at_k(
        embeddings.numpy(), labels.numpy(), rank_temperature=0.1, shares=shares
    )
    values = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        values.append(loss(embeddings, labels).item())
    assert values[0] == values[1] == pytest.approx(expected, rel=1e-9)
    assert values[2] != values[0]


@pytest.mark.parametrize("temperature", [1.0, (0.5, 1.0, 2.0, 4.0)])
def test_the_authors_rank_the_query_too(temperature):
    """Which moves every positive down by one place: the query is nearest to itself."""
    embeddings, labels = batch(UNEQUAL)
    settings = {"cutoffs": (1, 2, 4, 8), "recall_temperature": temperature, "rank_temperature": 0.1}
    values = []
    for query_ranked in (False, True):
        loss = build_loss("recall_at_k", 5, 4, query_ranked=query_ranked, **settings)
        values.append(loss(embeddings, labels).item())
        expected = references_rank.recall_at_k(
            embeddings.numpy(), labels.numpy(), query_ranked=query_ranked, **settings
        )
        assert values[-1] == pytest.approx(expected, rel=1e-9)
    assert values[1] > values[0] + 0.05


def test_recall_has_one_temperature_or_one_for_each_cutoff():
    with pytest.raises(ValueError, match=r"recall_temperature .*3 .*5 "):
        build_loss("recall_at_k", 5, 4, recall_temperature=(1.0, 2.0, 4.0))
    with pytest.raises(ValueError, match=r"recall_temperature .*-1"):
        build_loss("recall_at_k", 5, 4, cutoffs=(1, 2), recall_temperature=(1.0, -1.0))


def test_contextual_gradient_is_that_of_the_step_with_its_gain():
    # A gradient flows through N alone, so that it grows with the gain; the value does not.
    embeddings, labels = batch(EQUAL)
    value, slopes = gradient(contextual_loss, embeddings, labels, gain=10.0)
    same, without = gradient(contextual_loss, embeddings, labels, gain=0.0)
    assert same == value
    assert without.abs().max() == 0
    _, twice = gradient(contextual_loss, embeddings, labels, gain=20.0)
    assert slopes.abs().max() > 0
    torch.testing.assert_close(twice, 2 * slopes)


def test_osap_acts_on_what_comes_after_a_positive_where_average_precision_does_not():
    # Every list is perfect already, but negatives come close behind.
    embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.01], [0.98, 0.2], [0.98, 0.21]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 1])
    alone = gradient(osap_loss, embeddings, labels, after_weight=0.0, temperature=1e-4)[1]
    both = gradient(osap_loss, embeddings, labels, temperature=1e-4)[1]
    assert alone.abs().max() < 1e-12
    assert both.abs().max() > 0.1
