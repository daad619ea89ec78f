"""Depth of a backbone: freezing its first stages leaves exactly these as they are."""

import pytest
import timm
import torch
from torch import nn

from softwarp.models.stages import freeze_first, stage_of


class Wrapped(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.model = timm.create_model(name, num_classes=0)

    def forward(self, images):
        return self.model(images)


@pytest.mark.parametrize("name", ["test_vit", "test_resnet", "test_efficientnet", "test_convnext"])
def test_stages_count_from_the_image(name):
    backbone = Wrapped(name)
    stages = stage_of(backbone)
    assert set(stages) == {each for each, _ in backbone.named_parameters()}
    first, last = next(iter(stages.values())), max(stages.values())
    assert first == 0
    assert set(stages.values()) == set(range(last + 1))
    assert max(stage_of(backbone, blocks=True).values()) >= last


def test_the_first_stages_do_not_change_and_all_others_do():
    torch.manual_seed(0)
    backbone = Wrapped("test_efficientnet")
    modules, stages = freeze_first(backbone, 2), stage_of(backbone)
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    backbone.train()
    for module in modules:
        module.eval()
    optimizer = torch.optim.SGD(backbone.parameters(), lr=0.1)
    backbone(torch.randn(4, 3, 64, 64)).square().sum().backward()
    optimizer.step()
    changed = {
        name for name, tensor in backbone.state_dict().items() if not torch.equal(tensor, before[name])
    }
    assert {name for name in stages if stages[name] < 2}.isdisjoint(changed)
    assert {name for name in stages if stages[name] >= 2} <= changed
    assert "model.bn1.running_mean" not in changed  # statistics of frozen batch norm
    assert "model.bn2.running_mean" in changed


def test_more_stages_than_there_are_is_an_error_that_says_how_many():
    backbone = Wrapped("test_vit")
    most = max(stage_of(backbone).values())
    with pytest.raises(ValueError, match=f"at most {most}"):
        freeze_first(backbone, most + 1)


def test_a_network_that_is_none_of_timms_is_refused():
    with pytest.raises(ValueError, match="Linear"):
        stage_of(nn.Linear(2, 2))
