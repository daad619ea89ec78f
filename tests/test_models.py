import pytest
import torch

from softwarp.models.embedder import Embedder


def test_pooling_is_maximum_plus_average_then_norm_then_linear():
    torch.manual_seed(0)
    model = Embedder("small_conv", 8).eval()
    images = torch.randint(256, (3, 1, 32, 32), dtype=torch.uint8)
    with torch.no_grad():
        features = model.backbone(images.float() / 255)
        pooled = features.flatten(2).max(dim=2).values + features.flatten(2).mean(dim=2)
        normed = (pooled - pooled.mean(1, keepdim=True)) / (
            pooled.var(1, unbiased=False, keepdim=True) + 1e-5
        ).sqrt()
        expected = normed @ model.head.weight.T + model.head.bias
        torch.testing.assert_close(model(images), expected)
    assert not list(model.norm.parameters())


def test_the_head_starts_as_the_authors_do():
    torch.manual_seed(0)
    head = Embedder("small_conv", 256).head
    assert head.weight.std().item() == pytest.approx((2 / 256) ** 0.5, rel=0.02)
    assert not head.bias.any()


def test_an_unknown_backbone_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean small_conv"):
        Embedder("smal_conv", 8)
