"""What is on this machine, and what is known of networks without fetching anything."""

import pytest
import timm
import torch
from support.hub_cache import put_into_cache

from softwarp.models.adding_weights import add_weights
from softwarp.models.backbones import BACKBONES, build_backbone
from softwarp.models.known_weights import describe_network, only_from_files, weights_here


@pytest.fixture(autouse=True)
def places(monkeypatch, tmp_path):
    """A folder of weights with test_vit, and a cache of the hub with test_resnet."""
    monkeypatch.setenv("SOFTWARP_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    torch.save(build_backbone("test_vit").model.state_dict(), tmp_path / "given.pth")
    add_weights(tmp_path / "given.pth", "test_vit", licence="mit")
    put_into_cache(tmp_path / "hub", "timm/test_resnet.r160_in1k", {"a": torch.ones(1000)})


def test_added_packaged_and_cached_weights_are_listed():
    rows = {row.origin.name: row for row in weights_here()}
    assert list(rows) == ["test_vit", "efficientnet_lite0", "test_resnet.r160_in1k"]
    assert [row.origin.licence for row in rows.values()] == ["mit", "Apache-2.0", "apache-2.0"]
    assert rows["test_vit"].size > 1_000_000
    assert 4_000 < rows["test_resnet.r160_in1k"].size < 5_000


def test_what_was_added_comes_before_the_package(tmp_path):
    torch.save(build_backbone("efficientnet_lite0").model.state_dict(), tmp_path / "lite0.pth")
    add_weights(tmp_path / "lite0.pth", "efficientnet_lite0")
    (row,) = [row for row in weights_here() if row.origin.name == "efficientnet_lite0"]
    assert row.origin.where == "the file lite0.pth"
    assert row.size < 15_000_000  # the package's has a classifier


def test_a_network_is_described_without_its_weights():
    network = describe_network("test_byobnet")
    assert network.address == (
        "https://huggingface.co/timm/test_byobnet.r160_in1k/resolve/main/model.safetensors"
    )
    assert (network.architecture, network.licence) == ("ByobNet", "apache-2.0")
    assert (network.side, network.channels, network.here) == (160, 3, None)
    tensors = timm.create_model("test_byobnet").state_dict().values()
    assert network.size == sum(each.nbytes for each in tensors)


def test_what_is_here_is_said():
    assert describe_network("test_vit").here.licence == "mit"
    assert describe_network("test_vit.r160_in1k").here is None
    assert describe_network("test_resnet").here.where == "the hub's timm/test_resnet.r160_in1k"
    assert describe_network("efficientnet_lite0").here.licence == "Apache-2.0"
    own = describe_network("iresnet18")
    assert (own.side, own.address, own.here) == (112, None, None)
    with pytest.raises(ValueError, match=r"did you mean .*test_vit"):
        describe_network("test_vitt")


def test_networks_without_a_package_and_a_hub_are_known():
    assert {"bn_inception", "iresnet100"} < set(only_from_files()) < set(BACKBONES)
    assert "efficientnet_lite0" not in only_from_files()
