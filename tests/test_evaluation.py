import pytest
import torch
from torch import nn

from softwarp.evaluation import embed


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


class _Broken(nn.Module):
    def forward(self, inputs):
        raise ValueError("broken")
