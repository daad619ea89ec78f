import numpy as np
import pytest
import torch

from softwarp.metrics import identification_metrics, roc_points, verification_metrics


def by_hand(probes, people, gallery, known, ranks, fpirs):
    """Loops over probes; the threshold is the largest that lets in few enough strangers."""
    found, nearest = {f"rank@{rank}": [] for rank in ranks}, []
    for probe, person in zip(probes, people, strict=True):
        distances = [float(((probe - each) ** 2).sum() ** 0.5) for each in gallery]
        order = np.argsort(distances, kind="stable")
        nearest.append((distances[order[0]], known[order[0]] == person, person in known))
        if person in known:
            first = next(place for place, item in enumerate(order) if known[item] == person)
            for rank in ranks:
                found[f"rank@{rank}"].append(first < rank)
    result = {name: np.mean(values) for name, values in found.items()}
    strangers = sorted(distance for distance, _, mated in nearest if not mated)
    mated = [each for each in nearest if each[2]]
    for fpir in fpirs:
        best = 0.0
        for threshold in [*strangers, *(distance for distance, *_ in mated)]:
            if sum(distance < threshold for distance in strangers) <= fpir * len(strangers) + 1e-9:
                best = max(best, np.mean([right and distance < threshold for distance, right, _ in mated]))
        result[f"tpir@fpir={fpir:g}"] = best
    return result | {"mated": len(mated), "others": len(strangers)}


@pytest.mark.parametrize("seed", range(5))
def test_equals_loops(seed):
    generator = np.random.default_rng(seed)
    gallery, known = generator.normal(size=(12, 3)), generator.permutation(15)[:12]
    people = generator.integers(0, 15, 60)
    centres = generator.normal(size=(15, 3))
    gallery += centres[known]
    probes = centres[people] + 0.7 * generator.normal(size=(60, 3))
    expected = by_hand(probes, people, gallery, known, (1, 5, 10), (0.5, 0.1, 0.01))
    found = identification_metrics(probes, people, gallery, known, fpirs=(0.5, 0.1, 0.01))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-12), name


def test_without_strangers_there_is_no_tpir_and_without_mates_nothing():
    gallery, known = torch.eye(3), torch.arange(3)
    found = identification_metrics(gallery, known, gallery, known)
    assert found == {"rank@1": 1.0, "mated": 3, "others": 0}
    with pytest.raises(ValueError, match="no probe"):
        identification_metrics(gallery, known + 3, gallery, known)


def test_folds_may_be_given_and_need_not_be_successive():
    generator = np.random.default_rng(0)
    same = np.tile([True, False], 100)
    distances = generator.gamma(np.where(same, 6, 9))
    order = generator.permutation(200)
    folds = np.repeat(np.arange(10), 20)
    plain = verification_metrics(distances, same)
    mixed = verification_metrics(distances[order], same[order], folds=folds[order] + 5)
    assert mixed["accuracy"] == pytest.approx(plain["accuracy"], abs=1e-12)
    assert mixed["accuracy_std"] == pytest.approx(plain["accuracy_std"], abs=1e-12)
    with pytest.raises(ValueError, match="200 pairs"):
        verification_metrics(distances, same, folds=folds[:10])
    with pytest.raises(ValueError, match="two folds"):
        verification_metrics(distances, same, folds=np.zeros(200, int))


def test_points_of_the_roc_are_shares_of_pairs_up_to_a_distance():
    generator = np.random.default_rng(1)
    same = generator.random(300) < 0.4
    distances = generator.gamma(np.where(same, 6, 9)).round(1)
    far, tar, upto = roc_points(distances, same)
    assert (far[0], tar[0], far[-1], tar[-1]) == (0, 0, 1, 1)
    for rate, hits, most in list(zip(far, tar, upto, strict=True))[1:]:
        assert rate == pytest.approx(np.mean(distances[~same] <= most))
        assert hits == pytest.approx(np.mean(distances[same] <= most))
