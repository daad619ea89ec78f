import math

import pytest
import torch
from support.blobs import blobs
from torch.nn import functional as F

from softwarp.models.whitening import ClassScatter
from softwarp.recipe.schema import StartPart, parse_recipe
from softwarp.training.head import embed, starting_head, trained_heads, whitened_head

LOSSES = ("normalized_softmax", "proxy_nca_pp", "euclidean_softmax", "warped_softmax")


def share_found(embeddings, labels):
    """Recall@1 by cosine."""
    similar = F.normalize(embeddings) @ F.normalize(embeddings).T
    return float((labels[similar.fill_diagonal_(-2).argmax(1)] == labels).float().mean())


def test_calibrated_features_find_new_classes_that_the_features_do_not():
    features, labels = blobs()
    new, new_labels = blobs(seed=1)
    head = starting_head(features, labels, 10, StartPart(shrinkage=0.01), seed=0)
    assert share_found(new, new_labels) < 0.7
    assert share_found(embed(head, new), new_labels) > 0.9
    assert embed(head, new).norm(dim=1).allclose(torch.ones(len(new)))


def test_infinite_shrinkage_only_subtracts_the_mean():
    features, labels = blobs()
    weight, bias = starting_head(features, labels, 10, StartPart(shrinkage=None), seed=0)
    assert torch.equal(weight, torch.eye(10))
    assert bias.allclose(-features.mean(0), atol=1e-5)


def test_a_smaller_head_keeps_the_directions_in_which_calibrated_features_differ():
    features, labels = blobs()
    start = StartPart(shrinkage=0.01)
    whole, small = (starting_head(features, labels, size, start, seed=0) for size in (10, 5))
    assert (small[0].shape, small[1].shape) == ((5, 10), (5,))
    assert all(share_found(embed(head, features), labels) > 0.95 for head in (whole, small))


def test_turned_and_stretched_features_have_the_cosines_of_the_whitened_ones():
    features, labels = blobs()
    scatter = ClassScatter.of(features, labels)
    for shrinkage in (0.01, 3.0, math.inf):
        turned = F.normalize(scatter.turned(features) * scatter.stretch(shrinkage).float())
        part = StartPart(shrinkage=None if math.isinf(shrinkage) else shrinkage)
        whitened = embed(whitened_head(scatter, features, part, 10), features)
        assert (turned @ turned.T).allclose(whitened @ whitened.T, atol=1e-4)


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_trains_the_head_alike_whatever_else_draws_at_random(loss):
    features, labels = blobs()
    labels = labels + 5  # labels need not count from 0
    start = StartPart(shrinkage=1.0, loss=loss, steps=6, learning_rate=1e-3)
    first = whitened_head(ClassScatter.of(features, labels), features, start, 10)
    looks = trained_heads(features, labels, first, start, looks=(3, 6), seed=0)
    three = next(looks)
    torch.manual_seed(7)
    six = next(looks)
    assert not torch.equal(three[0], first[0])
    assert not torch.equal(six[0], three[0])
    again = starting_head(features, labels, 10, start, seed=0)
    assert torch.equal(again[0], six[0])
    assert torch.equal(again[1], six[1])


def test_steps_need_a_loss():
    with pytest.raises(ValueError, match=r"3 steps need a loss.*start\.loss"):
        parse_recipe(
            {
                "loss": {"name": "triplet"},
                "start": {"steps": 3},
                "phases": [{"epochs": 1, "learning_rate": 0.1, "proxy_learning_rate": 0.1}],
            }
        )
