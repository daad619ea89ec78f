"""A head of principal directions keeps distances or cosines; class means are those of loops."""

import pytest
import torch

from softwarp.models.principal import class_means, principal_head


@pytest.fixture
def features():
    torch.manual_seed(0)
    return (5 + torch.randn(40, 6) @ torch.randn(6, 10)).double()  # of rank six, and one for the mean


def test_distances_stay_and_the_mean_lands_on_the_origin(features):
    weight, bias = principal_head(features, 6, centre=True)
    embeddings = features @ weight.T + bias
    torch.testing.assert_close(
        torch.cdist(embeddings, embeddings), torch.cdist(features, features), rtol=1e-6, atol=1e-6
    )
    torch.testing.assert_close(embeddings.mean(0), torch.zeros(6).double(), rtol=0, atol=1e-9)
    deviations = embeddings.std(0)
    assert (deviations[:-1] > deviations[1:]).all()  # the largest first


def test_cosines_stay_without_centring(features):
    weight, bias = principal_head(features, 7, centre=False)
    assert not bias.any()
    embeddings = features @ weight.T
    for a, b in ((0, 1), (3, 30)):
        cosines = [torch.cosine_similarity(each[a], each[b], dim=0) for each in (features, embeddings)]
        torch.testing.assert_close(*cosines)


@pytest.mark.parametrize("samples", [1, 3, 40])
def test_more_coordinates_than_directions_are_empty_and_fewer_samples_leave_an_orthonormal_head(
    features, samples
):
    weight, bias = principal_head(features[:samples], 13, centre=True)
    torch.testing.assert_close(weight[:10] @ weight[:10].T, torch.eye(10).double())
    assert not weight[10:].any()
    assert not bias[10:].any()
    assert principal_head(features.float(), 13, centre=True)[0].dtype == torch.float32


def test_signs_do_not_depend_on_the_library(features):
    weight, _ = principal_head(features, 10, centre=True)
    assert (weight.gather(1, weight.abs().argmax(1, keepdim=True)) > 0).all()


def test_class_means_and_a_class_without_samples():
    points = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 4.0]])
    labels = torch.tensor([0, 0, 2])
    torch.testing.assert_close(
        class_means(points, labels, range(3), unit=False),
        torch.tensor([[2.0, 0.0], [4 / 3, 4 / 3], [0.0, 4.0]]),
    )
    means = class_means(points, labels, range(3), unit=True)
    torch.testing.assert_close(means.norm(dim=1), torch.ones(3))
    torch.testing.assert_close(means[1], torch.tensor([2.0, 1.0]) / 5**0.5)
