import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, auc, roc_curve
from sklearn.model_selection import KFold

from softwarp.metrics import combine_flipped, pair_distances, verification_metrics


def pairs(seed, count=600, scale=40.0, digits=None):
    """Distances far beyond [0, 4], alternating runs of same and different pairs as in pairs.txt."""
    generator = np.random.default_rng(seed)
    same = (np.arange(count) // (count // 20)) % 2 == 0
    distances = scale * generator.gamma(np.where(same, 6, 9))
    return (distances if digits is None else distances.round(digits)), same


def accuracies_by_kfold(distances, same, folds):
    """Every threshold tried on nine folds, the smallest best one used on the tenth, by scikit-learn."""
    results = []
    for train, test in KFold(n_splits=folds, shuffle=False).split(distances):
        levels = np.unique(distances[train])
        between = (levels[1:] + levels[:-1]) / 2
        grid = np.concatenate([levels[:1], between, [np.nextafter(levels[-1], np.inf)]])
        scores = ((distances[train] < grid[:, None]) == same[train]).mean(axis=1)
        results.append(accuracy_score(same[test], distances[test] < grid[int(np.argmax(scores))]))
    return results


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("folds", "digits"), [(10, None), (10, -1), (7, None)])
def test_accuracy_equals_scikit_learns_folds(seed, folds, digits):
    distances, same = pairs(seed, digits=digits)
    expected = accuracies_by_kfold(distances, same, folds)
    result = verification_metrics(distances, same, folds=folds)
    assert result["accuracy"] == np.mean(expected)
    assert result["accuracy_std"] == np.std(expected)


def test_area_and_best_threshold():
    distances, same = pairs(1, digits=0)
    result = verification_metrics(distances, same)
    assert result["auc"] == pytest.approx(auc(*roc_curve(same, -distances)[:2]), abs=1e-12)
    best = max(np.mean((distances < threshold) == same) for threshold in np.unique(distances))
    assert result["best_accuracy"] == best
    assert np.mean((distances < result["best_threshold"]) == same) == best


def test_tar_at_far_between_the_points_of_the_roc():
    """Different pairs at 1, 3, 5, 7, same ones at 0, 2, 2, 4: accepting one of four lets in three of four."""
    distances = np.array([0.0, 2, 2, 4, 1, 3, 5, 7])
    same = np.array([True] * 4 + [False] * 4)
    result = verification_metrics(distances, same, folds=2, fars=(0, 0.125, 0.25, 0.375, 0.5))
    found = [result[f"tar@far={far:g}"] for far in (0, 0.125, 0.25, 0.375, 0.5)]
    assert found == pytest.approx([0.25, 0.5, 0.75, 0.875, 1.0])


def val_of_insightface(distances, same, far, folds, grid):
    """As its eval/verification.py goes about it: FAR on a grid of thresholds, interpolated, fold by fold.

    It calls SciPy's interp1d, which refuses repeated rates today; np.interp takes the last, as that did.
    """
    values = []
    for train, test in KFold(n_splits=folds, shuffle=False).split(distances):
        rates = [np.sum((distances[train] < t) & ~same[train]) / np.sum(~same[train]) for t in grid]
        threshold = np.interp(far, rates, grid) if max(rates) >= far else 0.0
        values.append(np.sum((distances[test] < threshold) & same[test]) / np.sum(same[test]))
    return values


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("count", "folds"), [(600, 10), (420, 7)])
def test_tar_by_fold_is_insightface_s(seed, count, folds):
    """No two distances lie between the same two thresholds of the grid, which could not tell them apart."""
    distances, same = pairs(seed, count=count)
    distances = distances.argsort().argsort() + 0.5
    grid = np.arange(count + 1, dtype=np.float64)
    fars = (0.001, 0.01, 0.037, 0.1, 0.25)
    result = verification_metrics(distances, same, folds=folds, fars=fars)
    for far in fars:
        expected = val_of_insightface(distances, same, far, folds, grid)
        assert result[f"fold_tar@far={far:g}"] == pytest.approx(np.mean(expected), abs=1e-12)
        assert result[f"fold_tar_std@far={far:g}"] == pytest.approx(np.std(expected), abs=1e-12)
    assert any(result[f"fold_tar@far={far:g}"] != result[f"tar@far={far:g}"] for far in fars)


def test_a_fold_without_same_pairs_is_left_out_of_tar():
    distances, same = np.array([1.0, 5, 2, 6, 3, 9, 7, 8]), np.array([1, 0, 1, 0, 1, 0, 0, 0])
    folds = [0, 0, 1, 1, 2, 2, 3, 3]
    result = verification_metrics(distances, same, folds=folds, fars=(0.0, 0.2))
    assert result["fold_tar@far=0.2"] == result["fold_tar@far=0"] == 1.0
    assert verification_metrics(distances + 5 * same, same, folds=folds, fars=(0,))["fold_tar@far=0"] == 0.0
    one_sided = verification_metrics(distances[:4], same[:4], folds=[0, 1, 0, 1], fars=(0.5,))
    assert one_sided["fold_tar@far=0.5"] == 1.0


def test_any_scale_of_distances():
    distances, same = pairs(2)
    small = verification_metrics(distances / 1e6, same)
    large = verification_metrics(distances * 1e6, same)
    assert small["accuracy"] == large["accuracy"] > 0.6
    assert small["tar@far=0.01"] == pytest.approx(large["tar@far=0.01"])


def test_neighbouring_floats_have_a_threshold_between_them():
    low = 1.0
    high = np.nextafter(low, 2)
    distances, same = np.array([low, high] * 4), np.array([True, False] * 4)
    assert verification_metrics(distances, same, folds=2)["accuracy"] == 1.0


def test_nothing_or_everything_accepted_when_that_is_best():
    backwards = np.array([5.0, 1, 5, 1, 5, 1, 1, 1]), np.array([1, 0, 1, 0, 1, 0, 0, 0])
    assert verification_metrics(*backwards, folds=2)["best_accuracy"] == 5 / 8
    mostly = np.array([5.0, 1, 5, 5, 5, 5]), np.array([1, 0, 1, 1, 1, 0])
    assert verification_metrics(*mostly, folds=2)["best_accuracy"] == 4 / 6


def test_pair_distances_and_flips():
    left, right = torch.tensor([[3.0, 0.0], [1.0, 1.0]]), torch.tensor([[0.0, 4.0], [2.0, 2.0]])
    assert pair_distances(left, right).tolist() == pytest.approx([5.0, 2**0.5])
    assert pair_distances(left, right, distance="cosine").tolist() == pytest.approx([1.0, 0.0], abs=1e-12)
    assert combine_flipped(left, right).tolist() == [[1.5, 2.0], [1.5, 1.5]]


def test_wrong_inputs_are_named():
    distances, same = pairs(0)
    with pytest.raises(ValueError, match="one kind"):
        verification_metrics(distances, np.ones_like(same))
    with pytest.raises(ValueError, match="one distance and one"):
        verification_metrics(distances[1:], same)
    with pytest.raises(ValueError, match="folds"):
        verification_metrics(distances, same, folds=1)
    with pytest.raises(ValueError, match="distance 4 is not"):
        verification_metrics(np.where(np.arange(len(distances)) == 4, np.nan, distances), same)
    with pytest.raises(ValueError, match="as many left as right"):
        pair_distances(torch.ones(2, 3), torch.ones(3, 3))
    with pytest.raises(ValueError, match="must agree"):
        combine_flipped(torch.ones(2, 3), torch.ones(3, 3))
