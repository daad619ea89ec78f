import pytest
import torch
from support.batch_norm_processes import batch, layers, run, work
from torch import multiprocessing, nn

from softwarp.models.sync_batch_norm import SyncBatchNorm, sync_batch_norm


def test_two_processes_normalise_like_one(tmp_path):
    multiprocessing.spawn(work, args=(tmp_path,), nprocs=2)
    told = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    model = layers()
    for step in (batch(), batch() + 1):
        outputs, gradient = run(model, step)
    close = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(torch.cat([part["outputs"] for part in told]), outputs, **close)
    torch.testing.assert_close(torch.cat([part["gradient"] for part in told]), gradient, rtol=1e-5, atol=1e-5)
    model.eval()
    for part in told:
        assert list(part["state"]) == list(model.state_dict())
        for name, value in model.state_dict().items():
            torch.testing.assert_close(part["state"][name], value, **close)
        torch.testing.assert_close(part["eval"], model(batch()).detach(), **close)


def test_layers_are_replaced_in_place_and_keep_their_tensors():
    model = layers()
    before, weight = model(batch()), model[1].weight
    model = layers()
    parameters = list(model.parameters())
    sync_batch_norm(model)
    assert type(model[1]) is SyncBatchNorm
    assert all(new is old for new, old in zip(model.parameters(), parameters, strict=True))
    assert torch.equal(model[1].weight, weight)
    assert torch.equal(model(batch()), before)  # no process group: plain batch norm
    assert model[1].num_batches_tracked == 1
    frozen = layers()
    frozen[1].eval()
    sync_batch_norm(frozen)
    assert [layer.training for layer in frozen] == [True, False, True, True, True]


@pytest.mark.parametrize("device", ["cpu", "meta"])  # meta takes the road of every device but the CPU
def test_the_activation_inside_timms_batch_norm_stays(device):
    norm_act = pytest.importorskip("timm.layers.norm_act")
    model = nn.Sequential(norm_act.BatchNormAct2d(3, act_layer=nn.ReLU6, drop_layer=nn.Dropout2d)).to(device)
    sync_batch_norm(model)
    assert type(model[0]) is not norm_act.BatchNormAct2d
    assert isinstance(model[0].act, nn.ReLU6)
    assert isinstance(model[0].drop, nn.Dropout2d)
    assert isinstance(model[0], SyncBatchNorm if device == "cpu" else norm_act.SyncBatchNormAct)
    if device == "cpu":
        outputs = model(torch.randn(4, 3, 8, 8) * 100)
        assert outputs.min() == 0
