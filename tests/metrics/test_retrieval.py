import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import references_metrics as references

from softwarp.metrics import (
    counting,
    nearest_neighbours,
    neighbours,
    ranks,
    retrieval_metrics,
    retrieval_per_query,
    scores,
)

KS = (1, 2, 4, 8, 39)


def tables(most=24):
    """Points on a small grid (ties, duplicates), or at random (negative similarities), and their labels."""
    return st.tuples(
        st.integers(1, most), st.integers(1, 5), st.integers(1, 8), st.booleans(), st.integers(0, 2**32 - 1)
    )


def fitting(ks, searched):
    """As large as K may be among so many items."""
    return sorted({min(k, searched) for k in ks} - {0})


def draw(table, dimensions=None):
    count, width, classes, grid, seed = table
    generator = np.random.default_rng(seed)
    shape = (count, dimensions or width)
    points = generator.integers(-2, 3, shape) if grid else generator.normal(size=shape)
    weights = generator.random(classes) ** 3 + 1e-3  # classes of unequal size
    labels = generator.choice(classes, size=count, p=weights / weights.sum())
    return points.astype(np.float32), labels


def assert_equal(values, expected):
    """Each query's every metric, and NaN for those without positives."""
    assert len(expected) > 0
    for i, row in enumerate(expected):
        for name, value in values.items():
            if row is None:
                assert math.isnan(value[i])
            else:
                assert float(value[i]) == pytest.approx(row[name], abs=1e-12), (i, name)


@pytest.fixture(params=["blocks as they are", "tiny blocks", "full product", "in halves", "all of these"])
def path(request, monkeypatch):
    """Every way through the code, also those that only large inputs take."""
    if request.param in ("tiny blocks", "all of these"):
        monkeypatch.setattr(ranks, "BLOCK_ROWS", 3)
        monkeypatch.setattr(scores, "CHUNK", 2)
        monkeypatch.setattr(counting, "DOUBTS_AT_ONCE", 1)
    if request.param in ("full product", "all of these"):
        monkeypatch.setattr(ranks, "SYMMETRIC_POSITIVES", 0)
        monkeypatch.setattr(ranks, "BLOCK_POSITIVES", 8)
    if request.param in ("in halves", "all of these"):
        monkeypatch.setattr(counting, "LISTED_AT_ONCE", 4)
    return request.param


def test_every_query_equals_the_reference(path):
    @settings(max_examples=30, deadline=None)
    @given(tables(), st.sampled_from([KS, (1,), (2, 3)]))
    def check(table, ks):
        points, labels = draw(table)
        ks = fitting(ks, len(points) - 1)
        expected = references.retrieval(points, labels, points, labels, range(len(points)), ks)
        assert_equal(retrieval_per_query(points, labels, ks=ks, map_ks=ks, ndcg_ks=ks), expected)

    check()


def test_every_query_equals_the_reference_with_a_gallery(path):
    @settings(max_examples=30, deadline=None)
    @given(tables(), tables(), st.booleans())
    def check(table, other, overlap):
        points, labels = draw(table)
        items, item_labels = draw(other, points.shape[1])
        own = np.full(len(points), -1)
        if overlap:  # every second query is in the gallery, behind the other items
            own[::2] = len(items) + np.arange(len(points[::2]))
            items, item_labels = (
                np.concatenate([items, points[::2]]),
                np.concatenate([item_labels, labels[::2]]),
            )
        ks = fitting(KS, len(items))
        expected = references.retrieval(points, labels, items, item_labels, own, ks)
        values = retrieval_per_query(
            points,
            labels,
            gallery=items,
            gallery_labels=item_labels,
            query_rows=own,
            ks=ks,
            map_ks=ks,
            ndcg_ks=ks,
        )
        assert_equal(values, expected)

    check()


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 40), st.integers(2, 9), st.integers(0, 2**32 - 1))
def test_cosine_equals_the_reference_with_copies_of_any_length(count, width, seed):
    generator = np.random.default_rng(seed)
    points = generator.normal(size=(count, width))
    points[count // 2 :] = points[: count - count // 2] * generator.choice(
        [0.25, 1, 8], (count - count // 2, 1)
    )
    labels, ks = generator.integers(0, 4, count), fitting(KS, count - 1)
    expected = references.retrieval(points, labels, points, labels, range(count), ks, "cosine")
    values = retrieval_per_query(points, labels, ks=ks, map_ks=ks, ndcg_ks=ks, distance="cosine")
    assert_equal(values, expected)


def test_a_larger_set_with_classes_of_many_equals_the_float64_matrix():
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(1500, 64, generator=generator)
    labels = torch.arange(1500) % 50
    truth = torch.cdist(points.double(), points.double(), compute_mode="donot_use_mm_for_euclid_dist")
    assert_map(points, labels, truth)


def test_many_ties_among_few_positives_are_settled_one_by_one():
    points = torch.randint(-3, 4, (900, 64), generator=torch.Generator().manual_seed(0)).float()
    labels = torch.arange(900) // 3
    distances = torch.cdist(points.double(), points.double()).round(decimals=9).fill_diagonal_(torch.inf)
    same = (labels[:, None] == labels).fill_diagonal_(False)
    hits = same.gather(1, distances.sort(dim=1, stable=True).indices).double()
    expected = (hits * hits.cumsum(dim=1) / torch.arange(1, 901)).sum(dim=1) / 2
    found = retrieval_per_query(points, labels, map_ks=(899,))["map@899"]
    assert torch.allclose(found, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("seed", range(8))
def test_ties_are_counted_in_halves_of_a_block(seed, monkeypatch):
    """Six items as far from the query as its positive, more than are listed at once."""
    monkeypatch.setattr(counting, "LISTED_AT_ONCE", 4)
    generator = np.random.default_rng(seed)
    points = np.concatenate([[0, 1], np.full(6, -1), 1000 + generator.random(80) * 1000])
    labels = np.concatenate([[0, 0], np.arange(1, 87)])
    order = generator.permutation(88)
    points, labels = points[order, None].astype(np.float32), labels[order]
    expected = references.retrieval(points, labels, points, labels, range(88), (2,))
    assert_equal(retrieval_per_query(points, labels, ks=(2,)), expected)


def assert_map(points, labels, truth):
    """MAP@R of each query from a matrix of distances; the mean of ours must be the very same."""
    same = labels[:, None] == labels
    hits = map_from(truth, same)
    assert torch.allclose(retrieval_per_query(points, labels)["map@r"], hits, atol=1e-12, rtol=0)


def map_from(distances, same):
    distances, same = distances.clone().fill_diagonal_(torch.inf), same.clone().fill_diagonal_(False)
    order = distances.sort(dim=1, stable=True).indices
    hits = same.gather(1, order).double()
    positives = same.sum(dim=1)
    within = torch.arange(len(same)) < positives[:, None]
    precision = hits.cumsum(dim=1) / torch.arange(1, len(same) + 1)
    return (hits * precision * within).sum(dim=1) / positives


def far_away(count=600, width=128):
    """Embeddings at norm 1000 that differ by 1e-2."""
    generator = torch.Generator().manual_seed(1)
    direction = torch.randn(width, generator=generator)
    differences = torch.randn(count, width, generator=generator)
    points = 1000 * direction / direction.norm() + 1e-2 * differences / differences.norm(dim=1, keepdim=True)
    assert 999 < float(points.norm(dim=1).mean()) < 1001
    return points.float(), torch.arange(count) % 20


@pytest.mark.parametrize("seed", range(3))
def test_float64_embeddings_very_far_from_the_origin(seed):
    points = 3e6 + np.random.default_rng(seed).normal(size=(90, 16))
    labels = np.arange(90) % 30
    expected = references.retrieval(points, labels, points, labels, range(90), (89,))
    assert_equal(retrieval_per_query(points, labels, ks=(89,), map_ks=(89,), ndcg_ks=(89,)), expected)


def test_order_far_from_the_origin_where_the_float32_expansion_fails():
    points, labels = far_away()
    truth = torch.cdist(points.double(), points.double(), compute_mode="donot_use_mm_for_euclid_dist")
    squares = points.square().sum(dim=1)
    expansion = squares[:, None] + squares - 2 * points @ points.T
    same = labels[:, None] == labels
    wrong = (map_from(expansion, same) - map_from(truth, same)).abs() > 1e-6
    assert wrong.double().mean() > 0.5
    assert_map(points, labels, truth)
    _, indices = nearest_neighbours(points, 10)
    assert torch.equal(indices, truth.fill_diagonal_(torch.inf).sort(dim=1, stable=True).indices[:, :10])


@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_scale_does_not_matter(size):
    points, labels = draw((60, 8, 5, False, 3))
    scaled = (points.astype(np.float64) * size).astype(np.float32)
    expected = references.retrieval(
        scaled.astype(np.float64) / size, labels, scaled.astype(np.float64) / size, labels, range(60), KS
    )
    assert_equal(retrieval_per_query(scaled, labels, ks=KS), expected)


def test_an_outlier_does_not_spoil_the_others():
    points, labels = draw((60, 8, 5, False, 3))
    points[7] *= 1e6
    expected = references.retrieval(points, labels, points, labels, range(60), KS)
    assert_equal(retrieval_per_query(points, labels, ks=KS), expected)


def test_collapsed_embeddings_are_ties_by_index(path):
    points, labels = np.ones((40, 4), dtype=np.float32), np.arange(40) % 3
    expected = references.retrieval(points, labels, points, labels, range(40), KS)
    assert_equal(retrieval_per_query(points, labels, ks=KS, map_ks=KS, ndcg_ks=KS), expected)


@pytest.mark.parametrize("size", [1, 1e154, 1e-200])
def test_doubts_are_few_and_settled_by_float64(monkeypatch, size):
    """Float32 must decide nearly everything, or the speed is gone; what it leaves must come out right."""
    doubts, distances = [], counting._both_distances

    def counted(side, other, query, *others):
        doubts.append(len(query))
        return distances(side, other, query, *others)

    monkeypatch.setattr(counting, "_both_distances", counted)
    monkeypatch.setattr(counting, "_count_exactly", lambda *_: pytest.fail("all of it in float64"))
    points = torch.randn(2000, 64, generator=torch.Generator().manual_seed(2)).double() * size
    retrieval_metrics(points, torch.arange(2000) % 400, ks=(1999,))
    assert 0 < sum(doubts) < 2000 * 2000 * 4 * 2e-3


def test_the_positives_of_one_block_of_queries_are_held_at_a_time(monkeypatch):
    made, seen, rows_of = [], [], ranks._rows
    monkeypatch.setattr(ranks, "_rows", lambda *inputs: made.append(1) or rows_of(*inputs))
    monkeypatch.setattr(ranks, "SYMMETRIC_POSITIVES", 0)
    monkeypatch.setattr(ranks, "BLOCK_ROWS", 8)
    points, labels = draw((60, 8, 5, False, 4))
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        retrieval_metrics(points, labels, advance=lambda _: seen.append(len(made)))
    finally:
        torch.set_num_threads(threads)
    assert seen == list(range(1, 1 + len(seen)))
    assert len(seen) > 5


def test_mixed_precision_around_it_changes_nothing():
    points, labels = draw((60, 8, 5, False, 4))
    plain = retrieval_metrics(points, labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert retrieval_metrics(points, labels) == plain
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert retrieval_metrics(points, labels) == plain
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_inference_mode_and_threads_are_left_as_they_were():
    points, labels = draw((60, 8, 5, False, 4))
    plain, threads = retrieval_metrics(points, labels), torch.get_num_threads()
    with torch.inference_mode():
        inside = torch.from_numpy(points) * 1
        assert retrieval_metrics(inside, torch.from_numpy(labels) * 1) == plain
        assert nearest_neighbours(inside, 3)[1].shape == (60, 3)
    torch.set_num_threads(3)
    try:
        assert retrieval_metrics(points, labels) == plain
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)


def test_means_leave_out_queries_without_positives_and_count_them():
    points, labels = torch.tensor([[0.0], [1.0], [3.0], [3.5]]), torch.tensor([0, 0, 1, 2])
    result = retrieval_metrics(points, labels, ks=(1,))
    assert result["queries"] == 2
    assert result["queries_without_positives"] == 2
    assert result["recall@1"] == 1.0
    alone = retrieval_metrics(points, torch.arange(4))
    assert alone["queries"] == 0
    assert math.isnan(alone["map@r"])


def test_whole_numbers_keep_their_digits():
    points = 2**30 + np.array([[0], [40], [1], [41]])
    for dtype in (np.int32, np.int64):
        assert retrieval_metrics(points.astype(dtype), np.array([0, 1, 0, 1]))["recall@1"] == 1


def test_duplicates_are_neighbours_and_the_query_is_not():
    points, labels = torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])
    assert retrieval_per_query(points, labels, ks=(1,))["recall@1"].tolist() == [0, 0, 1, 0]


def test_agrees_with_pytorch_metric_learning_where_definitions_do():
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    names = {
        "precision@1": "precision_at_1",
        "r_precision": "r_precision",
        "map@r": "mean_average_precision_at_r",
    }
    calculator = AccuracyCalculator(
        include=tuple(names.values()), k="max_bin_count", device=torch.device("cpu")
    )
    points, labels = draw((300, 6, 7, False, 5), dimensions=16)
    labels[0] = 99  # a query without positives: both leave it out
    theirs = calculator.get_accuracy(torch.from_numpy(points), torch.from_numpy(labels))
    ours = retrieval_metrics(points, labels)
    assert ours["queries_without_positives"] >= 1
    for name, their_name in names.items():
        assert ours[name] == pytest.approx(theirs[their_name], abs=1e-9)
    items, item_labels = draw((200, 6, 7, False, 6), dimensions=16)
    theirs = calculator.get_accuracy(
        torch.from_numpy(points),
        torch.from_numpy(labels),
        torch.from_numpy(items),
        torch.from_numpy(item_labels),
    )
    ours = retrieval_metrics(points, labels, gallery=items, gallery_labels=item_labels)
    for name, their_name in names.items():
        assert ours[name] == pytest.approx(theirs[their_name], abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(tables(), st.booleans(), st.booleans(), st.integers(0, 3))
def test_nearest_neighbours_equal_the_reference(table, with_gallery, cosine, spare):
    points, _ = draw(table)
    if cosine:
        points = points[np.abs(points).sum(axis=1) > 0]
    points = points * np.random.default_rng(table[4]).choice([1, 4], (len(points), 1)).astype(np.float32)
    if len(points) < 2:
        return
    items = points[::-1].copy() if with_gallery else points
    k = min(5, len(items) - (not with_gallery))
    distance = "cosine" if cosine else "euclidean"
    before, neighbours.SPARE = neighbours.SPARE, spare
    try:
        found, indices = nearest_neighbours(
            points, k, gallery=items if with_gallery else None, distance=distance
        )
    finally:
        neighbours.SPARE = before
    for i, query in enumerate(points):
        expected = references.neighbours(query, items, -1 if with_gallery else i, distance)[:k]
        true = references.distances_to(query, items, distance)
        if not cosine or not table[3]:  # ties of the cosine on a grid differ in the last bit
            assert indices[i].tolist() == expected
        true = true**2 / 2 if cosine else true
        assert found[i].numpy() == pytest.approx(true[expected], abs=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"embeddings": torch.zeros(3)}, "table"),
        ({"embeddings": torch.zeros(0, 2), "labels": torch.zeros(0, dtype=torch.int64)}, "at least one row"),
        ({"embeddings": torch.tensor([[0.0], [math.nan], [1.0]])}, r"1 row\(s\): 1;"),
        ({"labels": torch.tensor([0, 1])}, "one label for each of 3 rows"),
        ({"labels": torch.tensor([0.0, 1.0, 1.0])}, "whole numbers"),
        ({"distance": "manhattan"}, "euclidean, cosine"),
        ({"distance": "cosine"}, "row 0 is all zeros"),
        ({"ks": (0,)}, "K is 0, .* 1 to 2"),
        ({"ks": (2, 3)}, "K is 3, .* 2 items"),
        ({"map_ks": (2**70,)}, f"K is {2**70}, .* 2 items"),
        (
            {"gallery": torch.zeros(4, 1), "gallery_labels": torch.arange(4), "ndcg_ks": (5,)},
            "K is 5, .* 4 items",
        ),
        ({"gallery": torch.zeros(2, 1)}, "go together"),
        ({"gallery": torch.zeros(2, 4), "gallery_labels": torch.tensor([0, 1])}, "dimensions"),
        ({"query_rows": torch.tensor([0, 1, 2])}, "without a gallery"),
    ],
)
def test_wrong_inputs_are_named(arguments, message):
    given_ = {
        "embeddings": torch.tensor([[0.0], [1.0], [2.0]]),
        "labels": torch.tensor([0, 1, 1]),
    } | arguments
    with pytest.raises(ValueError, match=message):
        retrieval_metrics(**given_)


def test_wrong_query_rows_are_named():
    points, labels = torch.tensor([[0.0], [1.0]]), torch.tensor([0, 1])
    for rows, message in (([2, 0], "a row of the gallery"), ([1, 0], "different labels")):
        with pytest.raises(ValueError, match=message):
            retrieval_metrics(
                points, labels, gallery=points, gallery_labels=labels, query_rows=torch.tensor(rows)
            )


def test_the_usual_ks_are_those_there_are_items_for():
    points, labels = draw((6, 8, 2, False, 3))
    for count, last in ((6, 4), (5, 4), (4, 2)):
        names = [name for name in retrieval_metrics(points[:count], labels[:count]) if "recall" in name]
        assert names[-1] == f"recall@{last}"


def test_too_many_neighbours_is_an_error():
    with pytest.raises(ValueError, match="choose 1 to 1"):
        nearest_neighbours(torch.zeros(2, 1), 2)


def test_the_shares_of_the_work_sum_to_all_of_it(path):
    points, labels = draw((60, 8, 5, False, 3))
    shares = []
    retrieval_metrics(points, labels, advance=shares.append)
    assert sum(shares) == pytest.approx(1)
    assert (len(shares) > 1) == (path in ("tiny blocks", "full product", "all of these"))
