import pytest
import torch
from torch import nn

from softwarp.evaluation import embed, whole_gallery_metrics


def test_every_module_keeps_its_mode_also_after_an_error():
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.BatchNorm1d(4))
    model[2].eval()  # frozen, as fine-tuning does
    embed(model, torch.randn(3, 1, 2, 2))
    assert [module.training for module in model] == [True, True, False]
    with pytest.raises(ValueError, match="broken"):
        embed(nn.Sequential(model, _Broken()), torch.randn(3, 1, 2, 2))
    assert [module.training for module in model] == [True, True, False]


def test_images_are_embedded_in_evaluation_mode_batch_by_batch():
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4))
    images = torch.randn(7, 1, 2, 2)
    expected = images.flatten(1) / (1 + 1e-5) ** 0.5  # the statistics that a batch norm starts with
    torch.testing.assert_close(embed(model, images, batch_size=3), expected)


def test_in_the_whole_gallery_other_classes_are_in_the_way_and_nobody_finds_itself():
    places = torch.tensor([[0.0], [1.0], [4.0], [4.0], [9.0]])
    arrays = {"embeddings": places, "labels": torch.tensor([0, 0, 1, 1, 2])}  # nobody to find for the last
    found = whole_gallery_metrics(arrays, torch.tensor([[0.4], [3.0]]), distance="euclidean")
    assert found == {"whole_gallery_recall@1": 2 / 4, "whole_gallery_map@r": 2 / 4}
    none = whole_gallery_metrics(arrays, torch.empty(0, 1), distance="euclidean")
    assert none == {"whole_gallery_recall@1": 1.0, "whole_gallery_map@r": 1.0}


def test_in_the_whole_gallery_a_given_gallery_is_searched_not_the_queries():
    queries, gallery = torch.tensor([[0.0], [0.1]]), torch.tensor([[2.0], [3.0]])
    arrays = {"embeddings": queries, "labels": torch.tensor([0, 0])}
    arrays |= {"gallery": gallery, "gallery_labels": torch.tensor([0, 0])}
    found = whole_gallery_metrics(arrays, torch.tensor([[2.5]]), distance="euclidean")
    assert found == {"whole_gallery_recall@1": 1.0, "whole_gallery_map@r": 1 / 2}


class _Broken(nn.Module):
    def forward(self, inputs):
        raise ValueError("broken")
